"""A courier on a small map, with an observation of several parts; the way can't be known from fewer.

Two depots lie somewhere on the map, at different places each episode. The order says to which depot the parcel goes,
the map shows where that depot is, and the courier's position comes as two numbers, for the map does not show it:

    map              Box(0, 255, (4, 4, 2), uint8)   a picture with one channel for each depot
    order            Discrete(2)                     the depot that waits for the parcel
    courier.position Box(-1, 1, (2,), float32)       row and column
    courier.fuel     Box(0, 1, (1,), float32)        share of the steps that are left

A step costs 0.02; the right depot brings 1 and ends the episode, as an empty tank does. The shortest way takes 2.67
steps on average, so a perfect courier has a mean reward of 0.947.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

DEPOTS = 2
STEP_COST = 0.02
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right

Observation = dict[str, Any]


class Courier(gym.Env[Observation, np.int64]):
    """One parcel an episode.

    Args:
        size: edge of the square map in fields.
        fuel: steps that an episode may take.
    """

    metadata = {"render_modes": [], "render_fps": 4}  # noqa: RUF012

    def __init__(self, size: int = 4, fuel: int = 30) -> None:
        self.size, self.fuel = size, fuel
        self.observation_space = gym.spaces.Dict(
            {
                "map": gym.spaces.Box(0, 255, (size, size, DEPOTS), np.uint8),
                "order": gym.spaces.Discrete(DEPOTS),
                "courier": gym.spaces.Dict(
                    {
                        "position": gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
                        "fuel": gym.spaces.Box(0.0, 1.0, (1,), np.float32),
                    }
                ),
            }
        )
        self.action_space = gym.spaces.Discrete(len(MOVES))
        self._map = np.zeros((size, size, DEPOTS), np.uint8)
        self._order = self._left = 0
        self._at = self._goal = (0, 0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        fields = self.np_random.choice(self.size**2, DEPOTS + 1, replace=False).tolist()
        *depots, self._at = (divmod(field, self.size) for field in fields)
        self._order, self._left = int(self.np_random.integers(DEPOTS)), self.fuel
        self._goal = depots[self._order]
        self._map = np.zeros_like(self._map)
        for number, (row, column) in enumerate(depots):
            self._map[row, column, number] = 255
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        row, column = (place + move for place, move in zip(self._at, MOVES[int(action)], strict=True))
        self._at = (min(max(row, 0), self.size - 1), min(max(column, 0), self.size - 1))
        self._left -= 1
        arrived = self._at == self._goal
        return self._observation(), float(arrived) - STEP_COST, arrived or self._left == 0, False, {}

    def _observation(self) -> Observation:
        half = (self.size - 1) / 2
        return {
            "map": self._map.copy(),
            "order": self._order,
            "courier": {
                "position": np.array([self._at[0] / half - 1, self._at[1] / half - 1], np.float32),
                "fuel": np.array([self._left / self.fuel], np.float32),
            },
        }


def make(size: int = 4, fuel: int = 30) -> Courier:
    """Return a new map; the manifest names this function."""
    return Courier(size, fuel)
