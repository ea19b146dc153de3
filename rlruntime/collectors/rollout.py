"""The canonical rollout: `T` steps of `B` environment copies, time first.

Autoreset is Gymnasium's NEXT_STEP. ``observation`` has `T + 1` rows, so that the next observation is the view
``observation[1:]``, which holds the true final observation of an episode that ended. The row after it is not
``valid``: its action was ignored, its reward is 0, and it stands for no decision. Frames, losses, statistics and
rates leave it out.

A column that was cut short holds fewer than `T` steps. The rows after them aren't ``valid`` either, and each of their
observations is the last one there is, which the next rollout begins with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlruntime.envs.protocol import EnvSpaces, Observation, StepSlot, allocate_observation
from rlruntime.policies.distributions import ActionDistribution
from rlruntime.policies.observations import ObservationTensor, map_observation

if TYPE_CHECKING:
    from tensordict import TensorDict  # takes as long to import as torch: only where one is made

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
"""Returns an array of zeros of a shape and a type."""


class Rollout:
    """One rollout in preallocated tensors on the CPU. The collector that owns it overwrites it with a later one.

    Args:
        state_shapes: of one row of what a policy with memory remembers, by name.
        allocate: where its tensors lie; memory of their own by default.

    Attributes:
        observation: ``[T + 1, B, ...]`` as the environments gave it, or a flat dict of such.
        action: ``[T, B, ...]`` as the policy chose it, in its own units.
        params: ``[T, B, P]`` of the distribution each action was drawn from.
        env_reward: ``[T, B]`` float32 as the environments gave it.
        reward: ``[T, B]`` float32 to learn from; the same tensor where no transform changes rewards.
        terminated, truncated, valid: ``[T, B]`` bool.
        action_mask: ``[T + 1, B, n]`` bool, or None.
        behaviour_log_prob: ``[T, B]`` of each action under the distribution that it was drawn from.
        value: ``[T + 1, B]`` at the time of collection.
        is_init: ``[T, B]`` bool, whether a row is the first of its episode.
        trajectory_id: ``[T, B]`` int64, the same in all rows of an episode and in no other, whatever collects it, and
            -1 in rows that aren't valid.
        policy_version: ``[T, B]`` int64, of the weights that chose the action.
        initial_state: ``[B, ...]`` by name, what a policy with memory remembers before the first step; zeros where that
            begins an episode. Empty for policies without memory.
        num_filled: ``[B]`` int64, steps of each column: `T` where it wasn't cut short.
        num_valid: rows that are valid, as a number.
    """

    def __init__(
        self,
        spaces: EnvSpaces,
        distribution: ActionDistribution,
        num_steps: int,
        num_envs: int,
        *,
        state_shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
        allocate: Allocate = np.zeros,
    ) -> None:
        def zeros(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.from_numpy(allocate(shape, torch.zeros((), dtype=dtype).numpy().dtype))

        leading = (num_steps, num_envs)
        self.num_steps, self.num_envs = leading
        self._observation_arrays = allocate_observation(spaces.observation, (num_steps + 1, num_envs), allocate)
        self.observation: ObservationTensor = _as_tensors(self._observation_arrays)
        self.action = zeros((*leading, *distribution.action_shape), distribution.action_dtype)
        self.params = zeros((*leading, _num_complete_params(distribution)))
        self.env_reward = zeros(leading)
        self.reward = self.env_reward
        self.terminated, self.truncated, self.valid = (zeros(leading, torch.bool) for _ in range(3))
        self.action_mask: Tensor | None = None
        if spaces.action_mask is not None:
            self.action_mask = zeros((num_steps + 1, num_envs, spaces.action_mask_size), torch.bool).fill_(True)
        self.behaviour_log_prob = zeros(leading)
        self.value = zeros((num_steps + 1, num_envs))
        self.is_init = zeros(leading, torch.bool)
        self.trajectory_id = zeros(leading, torch.int64)
        self.policy_version = zeros(leading, torch.int64)
        self.initial_state = {name: zeros((num_envs, *shape)) for name, shape in state_shapes.items()}
        self.num_filled = zeros((num_envs,), torch.int64).fill_(num_steps)
        self.num_valid = 0

    def columns(self, first: int, last: int) -> Rollout:
        """Return the columns ``first .. last - 1`` as a rollout of views."""
        part = object.__new__(Rollout)
        part.num_steps, part.num_envs, part.num_valid = self.num_steps, last - first, 0
        part.observation = map_observation(lambda leaf: leaf[:, first:last], self.observation)
        part._observation_arrays = _as_arrays(part.observation)
        for name in _TENSORS:
            setattr(part, name, getattr(self, name)[:, first:last])
        part.reward = part.env_reward if self.reward is self.env_reward else self.reward[:, first:last]
        part.action_mask = None if self.action_mask is None else self.action_mask[:, first:last]
        part.initial_state = {name: rows[first:last] for name, rows in self.initial_state.items()}
        part.num_filled = self.num_filled[first:last]
        return part

    def slots(self) -> list[StepSlot]:
        """Return where each of the `T` steps is written; the arrays are views into this rollout."""
        arrays = self._observation_arrays
        reward, terminated = self.env_reward.numpy(), self.terminated.numpy()
        truncated, valid = self.truncated.numpy(), self.valid.numpy()
        mask = None if self.action_mask is None else self.action_mask.numpy()
        return [
            StepSlot(
                observation=_step_view(arrays, step + 1),
                reward=reward[step],
                terminated=terminated[step],
                truncated=truncated[step],
                valid=valid[step],
                action_mask=None if mask is None else mask[step + 1],
            )
            for step in range(self.num_steps)
        ]

    def first_slot(self) -> StepSlot:
        """Return a slot whose observation and mask are those before the first step; the rest is scratch memory."""
        return StepSlot(
            observation=_step_view(self._observation_arrays, 0),
            reward=np.zeros(self.num_envs, np.float32),
            terminated=np.zeros(self.num_envs, np.bool_),
            truncated=np.zeros(self.num_envs, np.bool_),
            valid=np.zeros(self.num_envs, np.bool_),
            action_mask=None if self.action_mask is None else self.action_mask.numpy()[0],
        )

    def begin_after(self, other: Rollout) -> None:
        """Make the last observation and mask of ``other``, which may be this rollout, the first ones of this one."""
        sources, targets = _leaves(other), _leaves(self)
        for source, target in zip(sources, targets, strict=True):
            target[0].copy_(source[-1])

    def begin_at(self, other: Rollout) -> None:
        """Make the first observation and mask of ``other`` the first ones of this one."""
        for source, target in zip(_leaves(other), _leaves(self), strict=True):
            target[0].copy_(source[0])

    def cut(self, num_filled: int) -> None:
        """Say that only so many steps were taken, of every column."""
        for leaf in _leaves(self):
            leaf[num_filled + 1 :] = leaf[num_filled]
        for tensor in (self.valid, self.terminated, self.truncated, self.env_reward):
            tensor[num_filled:] = 0
        self.num_filled.fill_(num_filled)

    def to_tensordict(self) -> TensorDict:
        """Return a TensorDict of batch size ``[T, B]`` with nested ``next``; its tensors are views.

        Keys: ``observation`` (nested for Dict spaces), ``action``, ``behaviour_log_prob``, ``value``, ``valid``,
        ``is_init``, ``trajectory_id``, ``policy_version``, ``action_mask`` where there is one, and ``next``:
        ``observation``, ``reward``, ``terminated``, ``truncated``, ``done``.
        """
        from tensordict import TensorDict

        size = [self.num_steps, self.num_envs]
        outcome = TensorDict(
            {
                "observation": _nested(map_observation(lambda leaf: leaf[1:], self.observation), size),
                "reward": self.reward,
                "terminated": self.terminated,
                "truncated": self.truncated,
                "done": self.terminated | self.truncated,
            },
            size,
        )
        rollout = TensorDict(
            {
                "observation": _nested(map_observation(lambda leaf: leaf[:-1], self.observation), size),
                "action": self.action,
                "behaviour_log_prob": self.behaviour_log_prob,
                "value": self.value[:-1],
                "valid": self.valid,
                "is_init": self.is_init,
                "trajectory_id": self.trajectory_id,
                "policy_version": self.policy_version,
                "next": outcome,
            },
            size,
        )
        if self.action_mask is not None:
            rollout.set("action_mask", self.action_mask[:-1])
        return rollout

    def to_batch_major(self) -> TensorDict:
        """Return `to_tensordict` with batch size ``[B, T]``."""
        batch_major: TensorDict = self.to_tensordict().transpose(0, 1)  # type: ignore[no-untyped-call]
        return batch_major


_TENSORS = (
    "action",
    "params",
    "env_reward",
    "terminated",
    "truncated",
    "valid",
    "behaviour_log_prob",
    "value",
    "is_init",
    "trajectory_id",
    "policy_version",
)
"""Attributes of the shape ``[T, B, ...]`` or ``[T + 1, B]``, which every rollout has."""


def take_columns(source: Rollout, columns: Tensor, target: Rollout) -> None:
    """Copy columns ``[b]`` of one rollout into another of `b`."""
    pairs = [(getattr(source, name), getattr(target, name)) for name in _TENSORS]
    pairs += zip(_leaves(source), _leaves(target), strict=True)
    for tensor, taken in pairs:
        torch.index_select(tensor, 1, columns, out=taken)
    for name, rows in source.initial_state.items():
        torch.index_select(rows, 0, columns, out=target.initial_state[name])
    target.num_filled.copy_(source.num_filled[columns])


def _leaves(rollout: Rollout) -> list[Tensor]:
    """Return the tensors with a row more than there are steps, which say what was seen: observations and masks."""
    observation = rollout.observation
    leaves = list(observation.values()) if isinstance(observation, dict) else [observation]
    return leaves if rollout.action_mask is None else [*leaves, rollout.action_mask]


def _as_tensors(arrays: Observation) -> ObservationTensor:
    if isinstance(arrays, dict):
        return {key: torch.from_numpy(leaf) for key, leaf in arrays.items()}
    return torch.from_numpy(arrays)


def _as_arrays(tensors: ObservationTensor) -> Observation:
    return {key: leaf.numpy() for key, leaf in tensors.items()} if isinstance(tensors, dict) else tensors.numpy()


def _step_view(arrays: Observation, step: int) -> Observation:
    return {key: leaf[step] for key, leaf in arrays.items()} if isinstance(arrays, dict) else arrays[step]


def _nested(observation: ObservationTensor, size: list[int]) -> Any:
    if not isinstance(observation, dict):
        return observation
    from tensordict import TensorDict

    return TensorDict(dict(observation), size).unflatten_keys(".")


def _num_complete_params(distribution: ActionDistribution) -> int:
    with torch.no_grad():
        return distribution.complete(torch.zeros(1, distribution.num_params)).shape[-1]
