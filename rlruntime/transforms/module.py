"""`ModuleTransform`: any `torch.nn.Module` as a transform of observations, or of actions."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlruntime.envs.protocol import EnvSpaces
from rlruntime.errors import ConfigError
from rlruntime.registry import import_object, register
from rlruntime.spec.training.transforms import ModuleTransformConfig
from rlruntime.transforms.actions import ActionTransform
from rlruntime.transforms.base import FIELD, SEATS, Copies, ObservationTensor, Seat, Transform, no_inverse, space_leaves
from rlruntime.transforms.leafwise import require_keys
from rlruntime.transforms.observation import unbounded

_ROWS = 2  # of the batch that a module is tried on: never an empty one


@register("transform", "ModuleTransform")
class ModuleTransform(ActionTransform):
    """Run a module on rows: of observations, on their way to the policy, or with ``inverse`` of the policy's actions,
    on their way to the environment.

    The transform has a copy of the module, in evaluation mode, whose weights are its own: they change by
    `update_weights` alone, and by learning where ``requires_grad`` says so; `weights_version` counts the updates.
    Without gradients nothing is recorded for them.

    Args:
        config: what to run; ``factory`` is called unless ``module`` is given.
        space: of the observation; of the environment's action where ``inverse`` is set.
        module: takes the place of the factory.
        output_space: of what the module returns (where ``inverse`` is set: of the actions that it takes); where it
            isn't given, neither here nor by the config, a batch of two rows is tried.

    Attributes:
        module: the copy.
        weights_version: number of updates so far.

    Raises:
        ConfigError: no module, or one that returns something else than it should.
    """

    Config = ModuleTransformConfig
    seats: frozenset[Seat] = frozenset(SEATS)
    updates: Tensor

    def __init__(
        self,
        config: ModuleTransformConfig,
        space: gym.Space[Any],
        *,
        module: nn.Module | None = None,
        output_space: gym.Space[Any] | None = None,
    ) -> None:
        super().__init__()
        self.config, self.seats = config, self.seats_of(config)
        self.module = _build(config) if module is None else copy.deepcopy(module)
        self.module.eval()
        self.module.requires_grad_(config.requires_grad)
        self._device = None if config.device is None else torch.device(config.device)
        if self._device is not None:
            self.module.to(self._device)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        given = _given_space(config) if output_space is None else output_space
        if config.inverse:
            self._settle_actions(space, given)
        else:
            self._settle_observation(space, given)

    @classmethod
    def seats_of(cls, config: Any) -> frozenset[Seat]:
        return ActionTransform.seats if config.inverse else cls.seats

    @classmethod
    def space_of(cls, config: Any, spaces: EnvSpaces) -> gym.Space[Any]:
        return spaces.action if config.inverse else spaces.observation

    @property
    def weights_version(self) -> int:
        """How often the weights were updated."""
        return int(self.updates)

    @property
    def rewrites(self) -> bool:
        return not self.config.inverse

    def update_weights(self, state_dict: Mapping[str, Tensor]) -> int:
        """Copy weights into the module and return the new `weights_version`. All of them, or none.

        Raises:
            ValueError: a name is missing or new, or a shape differs.
        """
        own = self.module.state_dict()
        for name in sorted(own.keys() | state_dict.keys()):
            ours, theirs = own.get(name), state_dict.get(name)
            if ours is None or theirs is None or ours.shape != theirs.shape:
                given = "none" if theirs is None else tuple(theirs.shape)
                held = "none" if ours is None else tuple(ours.shape)
                raise ValueError(f"the weight {name!r} of the module has shape {held}, and the one given {given}")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state_dict[name])
            self.updates += 1
        return self.weights_version

    def train(self, mode: bool = True) -> ModuleTransform:
        """Stay in evaluation mode: rows must not depend on those beside them."""
        super().train(False)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> ModuleTransform:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._device is not None:
            self.module.to(self._device)
        return self

    # Observations.

    def observation_space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        if self.config.inverse:
            return space
        if not self.config.out_keys:
            return self._outcomes[""]
        kept = {key: leaf for key, leaf in space_leaves(space).items() if self._keeps(key)}
        return gym.spaces.Dict({**kept, **self._outcomes})

    def bind(self, spaces: EnvSpaces, copies: Copies) -> EnvSpaces:
        return super().bind(spaces, copies) if self.config.inverse else Transform.bind(self, spaces, copies)

    def passes(self, space: gym.Space[Any]) -> dict[str, str]:
        if self.config.inverse:
            return super().passes(space)
        return {key: key for key in space_leaves(space) if self.config.out_keys and self._keeps(key)}

    def forward(self, observation: ObservationTensor) -> ObservationTensor:
        if self.config.inverse:
            return observation
        outcome = self._call(observation)
        if not self.config.out_keys:
            return outcome[""]
        assert isinstance(observation, dict)
        return {**{key: leaf for key, leaf in observation.items() if self._keeps(key)}, **outcome}

    def inverse(self, observation: ObservationTensor) -> ObservationTensor:
        if self.config.inverse:
            return observation
        raise no_inverse(self)

    # Actions.

    def before_step(self, actions: np.ndarray) -> np.ndarray:
        return super().before_step(actions) if self.config.inverse else actions

    def action_inverse(self, action: Tensor) -> Tensor:
        if not self.config.inverse:
            return action
        with torch.set_grad_enabled(self.config.requires_grad and torch.is_grad_enabled()):
            mapped: Tensor = self.module(self._there(action)).to(action.device)
        return mapped

    def action_forward(self, action: Tensor) -> Tensor:
        if not self.config.inverse:
            return action
        raise no_inverse(self)

    # What it is made of.

    def _settle_observation(self, space: gym.Space[Any], given: gym.Space[Any] | None) -> None:
        keys, out_keys = self.config.in_keys, self.config.out_keys
        require_keys("ModuleTransform", keys, space)
        if out_keys and not isinstance(space, gym.spaces.Dict):
            raise _wrong("outKeys name parts of a Dict observation", list(out_keys), "leave them out")
        if self.config.keep and not out_keys:
            raise _wrong("what stays needs names beside it", True, "give outKeys, or leave keep out")
        rows = {key: torch.from_numpy(_rows_of(leaf)) for key, leaf in space_leaves(space).items()}
        self._in_keys = keys or (() if not isinstance(space, gym.spaces.Dict) else tuple(rows))
        tried = self._call(rows if isinstance(space, gym.spaces.Dict) else rows[""])
        spaces = {key: unbounded(outcome) for key, outcome in tried.items()}
        if isinstance(given, gym.spaces.Dict) and out_keys:
            spaces.update({key: leaf for key, leaf in given.spaces.items() if key in spaces})
        elif given is not None and len(spaces) == 1:
            spaces = dict.fromkeys(spaces, given)
        for key, outcome in tried.items():
            if tuple(outcome.shape[1:]) != tuple(spaces[key].shape or ()):
                raise _wrong(
                    f"the module returned rows of shape {tuple(outcome.shape[1:])}", spaces[key], "make them agree"
                )
        self._outcomes = spaces

    def _settle_actions(self, action_space: gym.Space[Any], given: gym.Space[Any] | None) -> None:
        if given is None:
            raise _wrong(
                "a module of actions doesn't tell which ones it takes", None, "give shape, low and high of the policy's"
            )
        self.env_space, self.policy_space = action_space, given
        tried = self.action_inverse(torch.from_numpy(_rows_of(given)))
        if tuple(tried.shape[1:]) != tuple(action_space.shape or ()):
            raise _wrong(
                f"the module returned actions of shape {tuple(tried.shape[1:])}", action_space, "make them agree"
            )

    def _call(self, observation: ObservationTensor) -> dict[str, Tensor]:
        """Return what the module makes of rows, by out key (``""`` where there is none)."""
        keys = self.config.in_keys
        inputs: list[Any]
        if not isinstance(observation, dict):
            inputs, source = [self._there(observation)], observation.device
        else:
            source = next(iter(observation.values())).device
            there = {key: self._there(observation[key]) for key in self._in_keys}
            inputs = [there[key] for key in keys] if keys else [there]
        with torch.set_grad_enabled(self.config.requires_grad and torch.is_grad_enabled()):
            returned: Any = self.module(*inputs)
        names = self.config.out_keys or ("",)
        if isinstance(returned, Mapping):
            returned = tuple(returned.get(name) for name in names)
        parts = returned if isinstance(returned, tuple | list) else (returned,)
        num_rows = next(iter(observation.values())).shape[0] if isinstance(observation, dict) else observation.shape[0]
        if len(parts) != len(names) or not all(isinstance(p, Tensor) and p.shape[:1] == (num_rows,) for p in parts):
            words = f"{len(names)} tensor(s) with a row for each row"
            raise _wrong(f"the module must return {words}", type(returned).__name__, "correct it, or outKeys")
        return {name: part.to(source) for name, part in zip(names, parts, strict=True)}

    def _keeps(self, key: str) -> bool:
        used = key in self._in_keys and not self.config.keep
        return not used and key not in self.config.out_keys

    def _there(self, rows: Tensor) -> Tensor:
        return rows if self._device is None else rows.to(self._device)


def _build(config: ModuleTransformConfig) -> nn.Module:
    if config.factory is None:
        raise _wrong("ModuleTransform has no module", None, "give factory: package.module:callable")
    factory = import_object(config.factory, field=f"{FIELD}.config.factory")
    with torch.random.fork_rng(devices=[]):  # torch's own state stays
        torch.manual_seed(config.seed)
        module = factory(**config.kwargs)
    if not isinstance(module, nn.Module):
        raise _wrong("the factory returned no torch.nn.Module", type(module).__name__, "return one")
    return module


def _given_space(config: ModuleTransformConfig) -> gym.Space[Any] | None:
    if config.shape is None:
        return None
    low = -np.inf if config.low is None else config.low
    high = np.inf if config.high is None else config.high
    return gym.spaces.Box(low, high, config.shape, np.float32)


def _rows_of(space: gym.Space[Any]) -> np.ndarray:
    """Return rows to try a module on: zeros, or what is nearest to them in the space."""
    rows = np.zeros((_ROWS, *(space.shape or ())), np.float32 if np.dtype(space.dtype).kind == "f" else space.dtype)
    if isinstance(space, gym.spaces.Box):
        rows = np.clip(rows, space.low.astype(rows.dtype), space.high.astype(rows.dtype))
    elif isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        rows = rows + space.start
    return rows


def _wrong(problem: str, value: Any, remedy: str) -> ConfigError:
    return ConfigError(problem, field=FIELD, value=value, remedy=remedy)
