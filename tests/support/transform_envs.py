"""Small environments, and modules, for the tests of transforms."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

F32 = np.float32


class Episodes(gym.Env[Any, Any]):
    """Episodes of 3 to 5 steps, ended and cut off in turn; step `n` has reward `n`. Subclasses say what is observed."""

    action_space: gym.Space[Any] = spaces.Discrete(3)

    def __init__(self) -> None:
        self.count = self.episode = self.seed_seen = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.seed_seen, self.episode = seed, 0
        else:
            self.episode += 1
        self.count = 0
        return self.observe(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), repr(action)
        self.count += 1
        over = self.count >= 3 + (self.seed_seen + self.episode) % 3
        cut = self.episode % 2 == 1
        return self.observe(), float(self.count), over and not cut, over and cut, self.info()

    def observe(self) -> Any:
        raise NotImplementedError

    def info(self) -> dict[str, Any]:
        return {}


class Walker(Episodes):
    """Observes ``[seed, episode, step]`` and takes two bounded numbers."""

    observation_space = spaces.Box(-1, 100, (3,), np.float32)
    action_space: gym.Space[Any] = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 0.1]), dtype=np.float64)

    def observe(self) -> np.ndarray:
        return np.array([self.seed_seen, self.episode, self.count], F32)


class Choice(Walker):
    """Walker with three actions to choose from."""

    action_space = spaces.Discrete(3)


class Pixels(Episodes):
    """Observes an image of 8 x 10 pixels whose values follow seed, episode and step."""

    observation_space = spaces.Box(0, 255, (8, 10, 3), np.uint8)

    def observe(self) -> np.ndarray:
        ramp = np.arange(8 * 10 * 3).reshape(8, 10, 3)
        return ((ramp + 7 * self.count + 31 * self.episode + 101 * self.seed_seen) % 256).astype(np.uint8)


class Parts(Episodes):
    """Observes a Dict of numbers, bytes and categories, among them the actions that are allowed."""

    observation_space = spaces.Dict(
        {
            "arm": spaces.Box(-10, 10, (2,), np.float32),
            "camera": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "goal": spaces.Discrete(4),
            "legal": spaces.MultiBinary(3),
            "speed": spaces.Box(-10, 10, (1,), np.float32),
        }
    )

    def observe(self) -> dict[str, Any]:
        return {
            "arm": np.array([self.count, -self.episode], F32),
            "camera": np.full((4, 4, 3), 10 * self.count, np.uint8),
            "goal": self.count % 4,
            "legal": np.array([1, self.count % 2, 0], np.int8),
            "speed": np.array([self.seed_seen % 7], F32),
        }


class Lives(Walker):
    """Three lives a game, one lost at every second step; the third ends it. Observes ``[game, step, lives]``."""

    action_space = spaces.Discrete(2)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self.observe(), 1.0, self.lives == 0, False, self.info()

    @property
    def lives(self) -> int:
        return 3 - self.count // 2

    def observe(self) -> np.ndarray:
        return np.array([self.episode, self.count, self.lives], F32)

    def info(self) -> dict[str, Any]:
        return {"lives": self.lives}


class Endless(Walker):
    """Episodes that never end by themselves; counts 1 for each step of the environment."""

    action_space = spaces.Discrete(2)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self.observe(), 1.0, False, False, {}


def double(rows: Tensor) -> Tensor:
    """Return twice the rows."""
    return rows * 2.0


def wide_module(size_in: int = 3, size_out: int = 7) -> nn.Module:
    """Return a linear map with dropout, which must be off."""
    return nn.Sequential(nn.Linear(size_in, size_out), nn.Dropout(0.5))


class BoundedActions(nn.Module):
    """Maps one number from -1 to 1 to two actions within Walker's bounds."""

    def forward(self, action: Tensor) -> Tensor:
        return torch.cat([2.0 * action, 0.05 + 0.04 * action], -1).to(torch.float64)
