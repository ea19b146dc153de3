"""The protocol of a transform, and the seats that it can take.

A transform is a module with buffers. Its seats are the places where it may work:

- ``policy``: `forward` is part of the policy. It runs where the policy acts, is saved and exported with it, and is
  frozen for the whole of a rollout and of the update that learns from it: the statistics behind `forward` move between
  rollouts alone.
- ``environment``: it changes what an environment returns, or the actions that it takes; see
  `rlruntime.transforms.environment`. There, and there alone, a transform may remember something of each copy's episode.
- ``rollout``: it changes the rewards, or the observations, of a rollout that is complete.
- ``write`` and ``read``: it changes columns on their way into a replay buffer and out of it; see
  `rlruntime.transforms.columns`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlruntime.envs.protocol import EnvSpaces, StepSlot
from rlruntime.errors import ConfigError
from rlruntime.transforms.moments import Delta

if TYPE_CHECKING:
    from rlruntime.spec.training.component import Component

ObservationTensor = Tensor | dict[str, Tensor]
Leaves = dict[str, np.ndarray]
"""Arrays ``[B, ...]`` of an observation by key; the one key is ``""`` where the observation is no Dict."""

Seat = Literal["policy", "environment", "rollout", "write", "read"]
MOVING_SEATS: frozenset[Seat] = frozenset({"policy", "rollout", "read"})
"""Those of transforms whose statistics move: elsewhere they would leave rows in different units behind."""
SEATS: tuple[Seat, ...] = ("policy", "environment", "rollout", "write", "read")
FIELD = "spec.training.env.transforms"
_PLACES: dict[Seat, str] = {
    "policy": "as a part of the policy",
    "environment": "in an environment (make_transformed_env)",
    "rollout": "on a finished rollout",
    "write": "on the write side of a buffer",
    "read": "on the read side of a buffer",
}


class Copies(NamedTuple):
    """The copies that an environment steps, which may be some of all that a job has.

    Attributes:
        num: how many it steps, `B`.
        first: number of the first among all.
        total: how many there are in all.
    """

    num: int
    first: int
    total: int


class RolloutView(NamedTuple):
    """What transforms see of a finished rollout.

    Attributes:
        observation: ``[T, B, ...]`` that was acted on: for `Transform.update` as the transforms before it left it, for
            `Transform.reward` as the environments gave it.
        reward: ``[T, B]`` of the environments.
        terminated, truncated, valid: ``[T, B]`` bool.
    """

    observation: ObservationTensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor


class Transform(nn.Module):
    """Base of all transforms; by itself it changes nothing.

    One of your own is named in the manifest as ``package.module:Class``. It is built with its config (as its ``Config``
    model, or as keyword arguments) and the space of the observation, and overrides `observation_space` and `forward`,
    `map_reward` or `reward`, and `update` where it has statistics.

    Attributes:
        seats: where it may work; by default anywhere, but not where statistics that `update` moves would do harm.
        training_only: whether evaluations leave it out.
        needs_wrapper: whether it works in an environment only with a wrapper of each copy, as `make_transformed_env`
            builds it.
        reads_reward: whether it needs rewards as the environment gives them.
        manifest_field: its path in the manifest, for errors; that of all transforms where it isn't known.
        resizable_buffers: names of buffers whose shape follows the number of environment copies; a saved policy may
            bring them in another shape, which ``_load_from_state_dict`` must take over.
    """

    seats: frozenset[Seat] = frozenset(SEATS)
    training_only: bool = False
    needs_wrapper: bool = False
    reads_reward: bool = False
    manifest_field: str = FIELD
    resizable_buffers: frozenset[str] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "update" in cls.__dict__ and "seats" not in cls.__dict__:
            cls.seats = MOVING_SEATS

    @classmethod
    def seats_of(cls, config: Any) -> frozenset[Seat]:
        """Return the seats of one with this config, where that depends on it."""
        return cls.seats

    @classmethod
    def space_of(cls, config: Any, spaces: EnvSpaces) -> gym.Space[Any]:
        """Return which of an environment's spaces it is built with."""
        return spaces.observation

    @classmethod
    def copy_wrapper(cls, config: Any) -> Component | None:
        """Return the wrapper that each copy of the environment needs; None where it needs none."""
        return None

    # What it makes of spaces, and which leaves of an observation it leaves as they are.

    def observation_space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        """Return the space that `forward` maps ``space`` to."""
        return space

    def bind(self, spaces: EnvSpaces, copies: Copies) -> EnvSpaces:
        """Take a seat in an environment, and return the spaces that are seen behind it.

        Raises:
            ConfigError: it can't work with these spaces.
        """
        return EnvSpaces(
            self.observation_space(spaces.observation), spaces.action, spaces.action_mask, spaces.action_mask_size
        )

    def passes(self, space: gym.Space[Any]) -> dict[str, str]:
        """Return which keys of the outcome are keys of ``space`` as they are, so that nothing is copied for them."""
        if self.rewrites:
            return {}
        return {key: key for key in space_leaves(space)}

    @property
    def rewrites(self) -> bool:
        """Whether observations differ behind it."""
        return type(self).forward is not Transform.forward

    # Rows.

    def forward(self, observation: ObservationTensor) -> ObservationTensor:
        """Map `N` rows of an observation. Pure: no statistics move."""
        return observation

    def inverse(self, observation: ObservationTensor) -> ObservationTensor:
        """Map `N` rows back to what `forward` had taken, as far as rounding and clipping allow.

        Raises:
            ConfigError: that can't be done.
        """
        if not self.rewrites:
            return observation
        raise no_inverse(self)

    def map_reward(self, reward: Tensor) -> Tensor:
        """Map rewards of any shape, each by itself. Pure: no statistics move."""
        return reward

    @property
    def scales_rewards(self) -> bool:
        """Whether `map_reward` is a multiplication by one factor, so that it may be given sums of rewards."""
        return type(self).map_reward is Transform.map_reward

    def unmap_reward(self, reward: Tensor) -> Tensor:
        """Map rewards back to what `map_reward` had taken.

        Raises:
            ConfigError: that can't be done.
        """
        if type(self).map_reward is Transform.map_reward:
            return reward
        raise no_inverse(self)

    def action_forward(self, action: Tensor) -> Tensor:
        """Map actions ``[N, ...]`` of the environment to those of the policy; the inverse of `action_inverse`."""
        return action

    def action_inverse(self, action: Tensor) -> Tensor:
        """Map actions ``[N, ...]`` of the policy to those of the environment."""
        return action

    # Rollouts and statistics.

    def reward(self, rollout: RolloutView, reward: Tensor) -> Tensor:
        """Return the rewards ``[T, B]`` to learn from, given those of the transforms before this one."""
        if type(self).map_reward is Transform.map_reward:
            return reward
        return torch.where(rollout.valid, self.map_reward(reward), 0.0)

    def restart_episodes(self) -> None:
        """Forget what belongs to unfinished episodes: every copy begins a new one."""

    def update(self, rollout: RolloutView) -> None:
        """Move running statistics by a rollout that has been learned from."""

    def delta(self, rollout: RolloutView) -> Delta:
        """Return what a rollout adds to the statistics, and move none of them.

        Where several processes collect, each sends the delta of each of its rollouts, and whoever owns the statistics
        merges them: every row counts once, in whatever order they arrive.
        """
        return {}

    def merge(self, delta: Delta) -> None:
        """Take in what rollouts elsewhere added."""

    # The seat in an environment.

    def before_step(self, actions: np.ndarray) -> np.ndarray:
        """Return the environment's actions for the policy's, ``[B, ...]``."""
        return actions

    def after_step(self, seen: Leaves, out: Leaves, row: StepSlot, begins: np.ndarray | None) -> None:
        """Write the observation of one step of all copies, and change the rest of it in place.

        Args:
            seen: the observation as the transforms before left it.
            out: where it is written, all keys but those of `passes`.
            row: reward, flags and mask of the step; its observation is not for use.
            begins: ``[B]`` bool, the copies whose row is the first of an episode; None where there are none.
        """
        if self.rewrites:
            with torch.no_grad():
                outcome = self.forward(as_tensors(seen))
            write_leaves(outcome, out)
        if type(self).map_reward is not Transform.map_reward:
            row.reward[...] = self.map_reward(torch.from_numpy(row.reward)).numpy()
            row.reward[~row.valid] = 0.0

    def memory(self) -> Mapping[str, np.ndarray]:
        """Return what it remembers of each copy, ``[B, ...]`` arrays by name, for a snapshot."""
        return {}

    def load_memory(self, memory: Mapping[str, np.ndarray]) -> None:
        """Take over what `memory` returned."""


@contextmanager
def naming(field: str) -> Iterator[None]:
    """Let a ConfigError of one transform within bear its path, where it bears that of all."""
    try:
        yield
    except ConfigError as error:
        if field == FIELD or not error.field.startswith(FIELD):
            raise
        setting = error.field.removeprefix(FIELD)
        if setting and not setting.startswith("."):
            raise
        raise error.at(f"{field}{setting}") from None


def require_seat(transform: Any, seat: Seat) -> None:
    """Raise a ConfigError where a transform can't take a seat. Objects that are no `Transform` may sit anywhere."""
    seats = getattr(transform, "seats", frozenset(SEATS))
    if seat not in seats:
        raise wrong_seat(type(transform).__name__, seat, seats, getattr(transform, "manifest_field", FIELD))


def wrong_seat(name: str, seat: Seat, seats: frozenset[Seat], field: str = FIELD) -> ConfigError:
    """Return the error for a transform in a seat that isn't one of its own."""
    own = " or ".join(_PLACES[place] for place in SEATS if place in seats)
    return ConfigError(f"{name} can't work {_PLACES[seat]}", field=field, value=name, remedy=f"use it {own}")


def no_inverse(transform: Transform) -> ConfigError:
    """Return the error for a transform that can't be undone."""
    name = type(transform).__name__
    return ConfigError(
        f"{name} has no inverse", field=transform.manifest_field, value=name, remedy="leave it out on this side"
    )


def space_leaves(space: gym.Space[Any]) -> dict[str, gym.Space[Any]]:
    """Return the leaf spaces by key; a space that is no Dict has the one key ``""``."""
    return dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {"": space}


def torch_dtype(space: gym.Space[Any]) -> torch.dtype:
    """Return the type of a space's elements."""
    dtype: torch.dtype = getattr(torch, np.dtype(space.dtype).name)
    return dtype


def as_tensors(leaves: Leaves) -> ObservationTensor:
    """Return views of the arrays as an observation."""
    if "" in leaves:
        return torch.from_numpy(leaves[""])
    return {key: torch.from_numpy(array) for key, array in leaves.items()}


def write_leaves(observation: ObservationTensor, out: Leaves) -> None:
    """Copy an observation into arrays; keys that ``out`` lacks are left out."""
    if not isinstance(observation, dict):
        np.copyto(out[""], observation.numpy(), casting="same_kind")
        return
    for key, array in out.items():
        np.copyto(array, observation[key].numpy(), casting="same_kind")
