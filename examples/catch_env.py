"""Catch, from pixels: a ball falls straight down, and a paddle at the bottom row should be under it when it lands.

The game is the one of Mnih et al. 2014 ("Recurrent models of visual attention"), which bsuite made a standard test. The
policy sees nothing but the picture. The reward is 1 for a catch and -1 for a miss, at the end of the episode alone, so
a perfect policy has a mean reward of 1; one that acts at random catches about one ball in seven.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

WHITE = 255
BALL_SIZE = 2
PADDLE_WIDTH = 4
STEP = 2  # pixels that the ball falls and that the paddle moves in one step


class Catch(gym.Env[np.ndarray, np.int64]):
    """One ball an episode; the actions are left, stay and right.

    Args:
        size: edge of the square picture in pixels, even.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012

    def __init__(self, size: int = 24, render_mode: str | None = None) -> None:
        if size < 8 or size % STEP:
            raise ValueError(f"size must be even and at least 8, got {size}")
        self.size, self.render_mode = size, render_mode
        self.observation_space = gym.spaces.Box(0, WHITE, (size, size, 1), np.uint8)
        self.action_space = gym.spaces.Discrete(3)
        self._ball_x = self._ball_y = self._paddle_x = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._ball_y = 0
        self._ball_x = STEP * int(self.np_random.integers((self.size - BALL_SIZE) // STEP + 1))
        self._paddle_x = STEP * int(self.np_random.integers((self.size - PADDLE_WIDTH) // STEP + 1))
        return self._picture(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        moved = self._paddle_x + STEP * (int(action) - 1)
        self._paddle_x = min(max(moved, 0), self.size - PADDLE_WIDTH)
        self._ball_y += STEP
        landed = self._ball_y == self.size - BALL_SIZE
        reward = 0.0
        if landed:
            reward = 1.0 if self._paddle_x <= self._ball_x <= self._paddle_x + PADDLE_WIDTH - BALL_SIZE else -1.0
        return self._picture(), reward, landed, False, {}

    def render(self) -> np.ndarray | None:
        """Return the picture as RGB, eight times as large."""
        if self.render_mode is None:
            return None
        return self._picture().repeat(8, 0).repeat(8, 1).repeat(3, 2)

    def _picture(self) -> np.ndarray:
        picture = np.zeros((self.size, self.size, 1), np.uint8)
        picture[self._ball_y : self._ball_y + BALL_SIZE, self._ball_x : self._ball_x + BALL_SIZE] = WHITE
        picture[-BALL_SIZE:, self._paddle_x : self._paddle_x + PADDLE_WIDTH] = WHITE
        return picture


def make(size: int = 24, render_mode: str | None = None) -> Catch:
    """Return a new game; the manifest names this function."""
    return Catch(size, render_mode)
