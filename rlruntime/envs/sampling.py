"""Actions at random for the checks of an environment: only what its mask allows, for it may raise on the others."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

from rlruntime.envs.spaces import MASK_KEY, flat_mask


class ActionSampler:
    """Draws actions for one environment or for a vector environment of Gymnasium; its own spaces are left alone.

    Args:
        env: whose actions are drawn.
        seed: of the draws; samplers of one seed that see the same masks draw the same actions.
    """

    def __init__(self, env: Any, seed: int) -> None:
        self._batched = isinstance(env, gym.vector.VectorEnv)
        self._space: gym.Space[Any] = copy.deepcopy(env.action_space)
        self._single: gym.Space[Any] = copy.deepcopy(env.single_action_space) if self._batched else self._space
        self._space.seed(seed)
        self._single.seed(seed)

    def draw(self, mask: Any | None) -> Any:
        """Return an action, one per copy where there are several.

        Args:
            mask: what `mask_of` found.
        """
        if mask is None or not isinstance(self._single, gs.Discrete | gs.MultiDiscrete):
            return self._space.sample()
        if self._batched:
            return np.stack([self._draw_one(row) for row in mask])
        return self._draw_one(mask)

    def _draw_one(self, mask: Any) -> Any:
        allowed = flat_mask(mask).astype(np.int8)
        if isinstance(self._single, gs.MultiDiscrete):
            parts = np.split(allowed, np.cumsum(self._single.nvec.reshape(-1))[:-1])
            choices = [int(np.argmax(part * self._single.np_random.random(len(part)))) for part in parts]
            return (self._single.start + np.reshape(choices, self._single.shape)).astype(self._single.dtype)
        return self._single.sample(allowed)


def mask_of(observation: Any, info: Any) -> Any | None:
    """Return the action mask that came with an observation, or None."""
    if isinstance(observation, dict) and MASK_KEY in observation:
        return observation[MASK_KEY]
    return info.get(MASK_KEY) if isinstance(info, dict) else None
