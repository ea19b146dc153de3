"""CartPole that takes its time, and some copies of it more: what a simulator or a robot is like.

The manifest names `slow_env:make`, which is called once for each copy.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import gymnasium as gym

_SLOW_ONE_IN = 8
_SLOWER = 10
_numbers = itertools.count()


class Sleepy(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose every step takes ``seconds`` more."""

    def __init__(self, env: gym.Env[Any, Any], seconds: float) -> None:
        super().__init__(env)
        self.seconds = seconds

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(self.seconds)
        return self.env.step(action)


def make(milliseconds: float = 1.0) -> gym.Env[Any, Any]:
    """Return a copy; of those that a process makes, every eighth is ten times as slow."""
    slow = next(_numbers) % _SLOW_ONE_IN == 0
    return Sleepy(gym.make("CartPole-v1"), milliseconds * 1e-3 * (_SLOWER if slow else 1))
