"""The protocol of a transform.

A transform is a module with buffers. What it does to an observation (`forward`) is part of the policy: it runs where
the policy acts, is saved and exported with it, and is frozen for the whole of a rollout and of the update that learns
from it: the statistics behind `forward` move in `update` alone, between rollouts. What it does to rewards happens once,
when a rollout is complete; statistics of rewards take that rollout in first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
from torch import Tensor, nn

ObservationTensor = Tensor | dict[str, Tensor]


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

    Attributes:
        resizable_buffers: names of buffers whose shape follows the number of environment copies; a saved policy may
            bring them in another shape, which ``_load_from_state_dict`` must take over.
    """

    resizable_buffers: frozenset[str] = frozenset()

    def observation_space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        """Return the space that `forward` maps ``space`` to."""
        return space

    def forward(self, observation: ObservationTensor) -> ObservationTensor:
        """Map `N` rows of an observation. Pure: no statistics move."""
        return observation

    def reward(self, rollout: RolloutView, reward: Tensor) -> Tensor:
        """Return the rewards ``[T, B]`` to learn from, given those of the transforms before this one."""
        return reward

    def restart_episodes(self) -> None:
        """Forget what belongs to unfinished episodes: every copy begins a new one."""

    def update(self, rollout: RolloutView) -> None:
        """Move running statistics by a rollout that has been learned from."""
