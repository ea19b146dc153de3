"""The T-maze: a sign at the beginning says which way to turn at the end, and is out of sight by then.

After Bakker 2002, "Reinforcement Learning with Long Short-Term Memory". The walk down the corridor goes by itself; what
the policy decides counts at the junction alone, where all that it sees is the junction. So a policy without memory can
only guess, with a mean reward of 0; one that remembers the sign has a mean reward of 1.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

LEFT, RIGHT = 0, 1


class TMaze(gym.Env[np.ndarray, np.int64]):
    """One walk an episode; the actions are left and right.

    Observed are the sign (-1 for left, 1 for right, 0 where it is out of sight), and 1 at the junction, else 0. The
    reward is 1 for the right turn and -1 for the wrong one, at the end alone.

    Args:
        length: steps from the sign to the junction, at least 1.
    """

    def __init__(self, length: int = 10) -> None:
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        self.length = length
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._goal, self._place = LEFT, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._goal, self._place = int(self.np_random.integers(2)), 0
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._place == self.length:
            return self._seen(), 1.0 if int(action) == self._goal else -1.0, True, False, {}
        self._place += 1
        return self._seen(), 0.0, False, False, {}

    def _seen(self) -> np.ndarray:
        sign = (1.0 if self._goal == RIGHT else -1.0) if self._place == 0 else 0.0
        return np.array([sign, float(self._place == self.length)], np.float32)
