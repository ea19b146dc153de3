"""A policy: what acts, for every algorithm.

Keys of the TensorDict protocol, for `N` rows: ``observation [N, ...]`` (nested for Dict spaces),
``action_mask [N, n]`` where the environment has one; written are ``action`` and ``log_prob [N]``. A policy with
memory reads ``recurrent_state.<name> [N, ...]`` and ``is_init [N]`` too, and writes ``next.recurrent_state.<name>``;
without a state, and where ``is_init``, an episode begins. See `rlruntime.policies.recurrent` for the names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.nn import functional

from rlruntime.envs.protocol import EnvSpaces
from rlruntime.policies.distributions import ActionDistribution
from rlruntime.policies.networks import orthogonal_
from rlruntime.policies.observations import ObservationTensor
from rlruntime.policies.recurrent import Shapes, State, encode_step, named_shapes, zeros_of
from rlruntime.spec.training.component import Component
from rlruntime.transforms.base import Transform

if TYPE_CHECKING:
    from tensordict import TensorDictBase  # takes as long to import as torch


class Policy(nn.Module):
    """An encoder and a head behind the observation transforms; the head gives the parameters of a distribution.

    Modules stay in evaluation mode, in collection and in learning: what is learned must be the function that acted,
    which dropout and batch statistics would break.

    Attributes:
        kind: the name that `rlruntime.policies.build.build_policy` builds it by.
        spaces: what it was built for.
        distribution: of its actions.
        transforms: between the environment's observation and the encoders, in order.
        encoder_space: of what the transforms make of an observation.
        network, transform_components: what it was built from.
        state_shapes: of one row of what the policy remembers, by name; empty where it has no memory.
        deferrable: whether values computed in one pass after a rollout equal those computed step by step. An encoder
            whose output depends on more than its row, its state and its parameters declares ``deferrable = False``.

    Args:
        further_encoders: modules by name that lie between encoder and head in ``parameters()``, whose order is that of
            an optimiser's flat state.
        head_gain: of the orthogonal initialisation of the head.
    """

    actor_encoder: nn.Module

    def __init__(
        self,
        spaces: EnvSpaces,
        distribution: ActionDistribution,
        transforms: Sequence[Transform],
        actor_encoder: nn.Module,
        *,
        kind: str,
        encoder_space: gym.Space[Any],
        network: Component,
        transform_components: Sequence[Component] = (),
        further_encoders: Mapping[str, nn.Module] | None = None,
        head_gain: float = 0.01,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.spaces, self.encoder_space = spaces, encoder_space
        self.network, self.transform_components = network, tuple(transform_components)
        self.distribution = distribution
        self.transforms = nn.ModuleList(transforms)
        encoders = {"actor_encoder": actor_encoder, **(further_encoders or {})}
        for name, encoder in encoders.items():
            self.add_module(name, encoder)
        self.state_shapes: Shapes = named_shapes(
            (name.removesuffix("_encoder"), encoder) for name, encoder in encoders.items()
        )
        self.actor_head = orthogonal_(nn.Linear(output_size(actor_encoder), distribution.num_params), head_gain)
        self.deferrable = all(getattr(encoder, "deferrable", True) for encoder in encoders.values())
        self.eval()

    def train(self, mode: bool = True) -> Policy:
        """Stay in evaluation mode; see the class."""
        super().train(False)
        return self

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return self.actor_head.weight.device

    def preprocess(self, observation: ObservationTensor) -> ObservationTensor:
        """Apply the observation transforms to `N` rows."""
        for transform in self.transforms:
            observation = transform(observation)
        return observation

    def action_params(self, observation: ObservationTensor) -> Tensor:
        """Return the parameters ``[N, P]`` of the action distribution."""
        return self.params_of(self.preprocess(observation))

    def params_of(self, preprocessed: ObservationTensor) -> Tensor:
        """Return the parameters ``[N, P]`` for rows that went through `preprocess`."""
        return self.head(self.actor_encoder(preprocessed))

    def head(self, features: Tensor) -> Tensor:
        """Return the parameters ``[N, P]`` for the encoder's features."""
        output = functional.linear(features, self.actor_head.weight, self.actor_head.bias)
        return self.distribution.complete(output)

    @property
    def is_recurrent(self) -> bool:
        """Whether it has memory, so that it acts by `step` alone."""
        return bool(self.state_shapes)

    def initial_state(self, num_rows: int) -> State:
        """Return the state of `N` episodes that begin."""
        return zeros_of(self.state_shapes, num_rows, self.device)

    def step(self, observation: ObservationTensor, state: State, is_init: Tensor) -> tuple[Tensor, State]:
        """Return the parameters ``[N, P]`` for `N` rows, and the state after them; for any policy.

        Args:
            observation: `N` rows.
            state: before them, as `initial_state` or the step before returned it.
            is_init: ``[N]`` bool, whether a row is the first of its episode.
        """
        features, state = encode_step(self.actor_encoder, "actor", self.preprocess(observation), state, is_init)
        return self.head(features), state

    def forward(self, td: TensorDictBase, *, generator: torch.Generator | None = None) -> TensorDictBase:
        """Act on a TensorDict of batch size ``[N]``; see the module for its keys.

        Args:
            td: rows to act on; it is written to and returned.
            generator: of the policy's noise; None takes the most probable action.
        """
        params, state = self.step(flat_observation(td), *self._read_state(td))
        self._write_state(td, state)
        return self._write_action(td, params, generator)

    def _read_state(self, td: TensorDictBase) -> tuple[State, Tensor]:
        num_rows = td.batch_size[0]
        is_init = td.get("is_init", None)
        if is_init is None:
            is_init = torch.zeros(num_rows, dtype=torch.bool, device=self.device)
        held = td.get("recurrent_state", None)
        if held is None or not self.is_recurrent:
            return self.initial_state(num_rows), is_init
        return dict(held.flatten_keys(".").items()), is_init

    def _write_state(self, td: TensorDictBase, state: State) -> None:
        for name, rows in state.items():
            td.set(("next", "recurrent_state", *name.split(".")), rows)

    def _write_action(self, td: TensorDictBase, params: Tensor, generator: torch.Generator | None) -> TensorDictBase:
        mask = td.get("action_mask", None)
        if generator is None:
            action = self.distribution.mode(params, mask)
        else:
            noise = self.distribution.draw_noise((params.shape[0],), generator, params.device)
            shape = (params.shape[0], *self.distribution.action_shape)
            action = torch.empty(shape, dtype=self.distribution.action_dtype, device=params.device)
            self.distribution.sample(params, noise, mask, action)
        td.set("action", action)
        td.set("log_prob", self.distribution.evaluate(params, action, mask).log_prob)
        return td


def output_size(encoder: nn.Module) -> int:
    """Return the number of features of an encoder."""
    size = encoder.output_size
    assert isinstance(size, int)
    return size


def flat_observation(td: TensorDictBase) -> ObservationTensor:
    """Return the observation of a TensorDict as a tensor, or as a flat dict with dotted keys."""
    observation = td.get("observation")
    if isinstance(observation, Tensor):
        return observation
    return dict(observation.flatten_keys(".").items())
