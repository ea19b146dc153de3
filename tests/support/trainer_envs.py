"""Environments for the tests of the trainer."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Unsaveable(CartPoleEnv):
    """CartPole that holds a lock, which nothing can save."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def unsaveable() -> gym.Env[Any, Any]:
    """Return an environment whose state can't be saved."""
    return gym.wrappers.TimeLimit(Unsaveable(), 50)


class Constant(gym.Env[Any, Any]):
    """Episodes of ``length`` steps with a reward of ``reward`` each.

    Step ``bad_step`` observes NaN, step ``bad_reward_step`` gives an infinite reward. A step hangs once ``hang_file``
    exists.
    """

    def __init__(
        self,
        reward: float = 1.0,
        length: int = 5,
        bad_step: int = -1,
        bad_reward_step: int = -1,
        hang_file: str | None = None,
    ) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.reward, self.length, self.hang_file = reward, length, hang_file
        self.bad_step, self.bad_reward_step = bad_step, bad_reward_step
        self.count = self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        self.steps += 1
        if self.hang_file is not None and Path(self.hang_file).exists():
            time.sleep(600.0)
        observation = np.full(2, np.nan if self.steps == self.bad_step else 0.5, np.float32)
        reward = np.inf if self.steps == self.bad_reward_step else self.reward
        return observation, reward, self.count >= self.length, False, {}


def constant(**kwargs: Any) -> gym.Env[Any, Any]:
    """Return a `Constant` environment."""
    return Constant(**kwargs)


class TextObservation(Constant):
    """Observes text."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Text(10)


class TextAction(Constant):
    """Acts by text."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Text(10)
