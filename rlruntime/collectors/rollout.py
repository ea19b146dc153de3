"""The canonical rollout: `T` steps of `B` environment copies, time first.

Autoreset is Gymnasium's NEXT_STEP. ``observation`` has `T + 1` rows, so that the next observation is the view
``observation[1:]``, which holds the true final observation of an episode that ended. The row after it is not
``valid``: its action was ignored, its reward is 0, and it stands for no decision. Frames, losses, statistics and
rates leave it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlruntime.envs.protocol import EnvSpaces, Observation, StepSlot, allocate_observation
from rlruntime.policies.distributions import ActionDistribution
from rlruntime.policies.observations import ObservationTensor, map_observation

if TYPE_CHECKING:
    from tensordict import TensorDict  # takes as long to import as torch: only where one is made


class Rollout:
    """One rollout in preallocated tensors on the CPU. The collector that owns it overwrites it with the next one.

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
        num_valid: rows that are valid, as a number.
    """

    def __init__(self, spaces: EnvSpaces, distribution: ActionDistribution, num_steps: int, num_envs: int) -> None:
        leading = (num_steps, num_envs)
        self._observation_arrays = allocate_observation(spaces.observation, (num_steps + 1, num_envs))
        self.observation: ObservationTensor = _as_tensors(self._observation_arrays)
        self.action = torch.zeros((*leading, *distribution.action_shape), dtype=distribution.action_dtype)
        self.params = torch.zeros((*leading, _num_complete_params(distribution)))
        self.env_reward = torch.zeros(leading)
        self.reward = self.env_reward
        self.terminated = torch.zeros(leading, dtype=torch.bool)
        self.truncated = torch.zeros(leading, dtype=torch.bool)
        self.valid = torch.zeros(leading, dtype=torch.bool)
        self.action_mask: Tensor | None = None
        if spaces.action_mask is not None:
            mask_shape = (num_steps + 1, num_envs, spaces.action_mask_size)
            self.action_mask = torch.ones(mask_shape, dtype=torch.bool)
        self.behaviour_log_prob = torch.zeros(leading)
        self.value = torch.zeros((num_steps + 1, num_envs))
        self.num_valid = 0
        self.num_steps, self.num_envs = leading

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

    def carry_over(self) -> None:
        """Make the last observation and mask the first ones of the next rollout."""
        map_observation(lambda leaf: leaf[0].copy_(leaf[-1]), self.observation)
        if self.action_mask is not None:
            self.action_mask[0].copy_(self.action_mask[-1])

    def to_tensordict(self) -> TensorDict:
        """Return a TensorDict of batch size ``[T, B]`` with nested ``next``; its tensors are views.

        Keys: ``observation`` (nested for Dict spaces), ``action``, ``behaviour_log_prob``, ``value``, ``valid``,
        ``action_mask`` where there is one, and ``next``: ``observation``, ``reward``, ``terminated``, ``truncated``,
        ``done``.
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


def _as_tensors(arrays: Observation) -> ObservationTensor:
    if isinstance(arrays, dict):
        return {key: torch.from_numpy(leaf) for key, leaf in arrays.items()}
    return torch.from_numpy(arrays)


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
