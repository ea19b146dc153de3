"""An environment of one's own: a boat is steered to its berth, around buoys that drift.

What an environment has to be is Gymnasium's: spaces, `reset` and `step`. The observation is a Dict; the manifest's
network decides what to make of it.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

_STEP, _BERTH, _REACH = 0.1, 0.15, 0.2


class Harbour(gym.Env[dict[str, np.ndarray], np.ndarray]):
    """A boat on the square from -1 to 1.

    The action is its velocity. Reward: by how much the berth came nearer, 1 on arrival, -0.5 at every step within reach
    of a buoy. An episode ends on arrival, and is cut off after 50 steps.

    Args:
        buoys: how many.
    """

    def __init__(self, buoys: int = 3) -> None:
        def box(*shape: int) -> gym.spaces.Box:
            return gym.spaces.Box(-2.0, 2.0, shape, np.float32)

        self.observation_space = gym.spaces.Dict({"boat": box(2), "berth": box(2), "buoys": box(buoys, 4)})
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.num_buoys = buoys

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._boat, self._berth = self.np_random.uniform(-1, 1, (2, 2))
        self._buoys = self.np_random.uniform(-1, 1, (self.num_buoys, 2))
        self._drift = self.np_random.uniform(-0.05, 0.05, (self.num_buoys, 2))
        self._steps = 0
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before = np.linalg.norm(self._berth - self._boat)
        self._boat = np.clip(self._boat + _STEP * np.clip(action, -1, 1), -1, 1)
        self._buoys = np.clip(self._buoys + self._drift, -1, 1)
        self._steps += 1
        distance = np.linalg.norm(self._berth - self._boat)
        touched = np.linalg.norm(self._buoys - self._boat, axis=1).min(initial=np.inf) < _REACH
        arrived = bool(distance < _BERTH)
        reward = float(before - distance) + 1.0 * arrived - 0.5 * bool(touched)
        return self._observation(), reward, arrived, self._steps >= 50, {}

    def _observation(self) -> dict[str, np.ndarray]:
        return {
            "boat": self._boat.astype(np.float32),
            "berth": (self._berth - self._boat).astype(np.float32),
            "buoys": np.concatenate([self._buoys - self._boat, self._drift], 1).astype(np.float32),
        }
