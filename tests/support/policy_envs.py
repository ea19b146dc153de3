"""Small environments and networks for every kind of observation and action."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn


class NoiseEnv(gym.Env[Any, Any]):
    """Observes samples of its observation space; episodes have 5 steps, ended and cut off in turn.

    With ``mask`` it says in ``info`` which actions are allowed: about half, never none.
    """

    def __init__(self, observation: gym.Space[Any], action: gym.Space[Any], mask: bool = False) -> None:
        self.observation_space, self.action_space, self.mask = observation, action, mask
        self.count = self.episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        self.episodes += 1
        return self.observe()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), repr(action)
        self.count += 1
        over, cut = self.count == 5, self.episodes % 2 == 1
        observation, info = self.observe()
        return observation, float(np.sum(action)), over and not cut, over and cut, info

    def observe(self) -> tuple[Any, dict[str, Any]]:
        observation: Any = self.observation_space.sample()
        if isinstance(observation, dict) and "action_mask" in observation:
            return {**observation, "action_mask": self._allowed()}, {}
        return observation, {"action_mask": self._allowed()} if self.mask else {}

    def _allowed(self) -> np.ndarray:
        space: Any = self.action_space
        sizes = [space.n] if isinstance(space, spaces.Discrete) else space.nvec.reshape(-1)
        return np.concatenate([self._some_of(int(size)) for size in sizes])

    def _some_of(self, size: int) -> np.ndarray:
        allowed = self.np_random.integers(0, 2, size).astype(np.int8)
        allowed[self.np_random.integers(size)] = 1
        return allowed


def image_env() -> gym.Env[Any, Any]:
    """A uint8 image and three actions."""
    return NoiseEnv(spaces.Box(0, 255, (12, 12, 3), np.uint8), spaces.Discrete(3))


def masked_env() -> gym.Env[Any, Any]:
    """Numbers, and actions 5 to 9 of which some are forbidden."""
    return NoiseEnv(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(5, start=5), mask=True)


def dict_env() -> gym.Env[Any, Any]:
    """A nested Dict with categories, bytes and numbers, a mask among them, and two-dimensional actions."""
    observation = spaces.Dict(
        {
            "arm": spaces.Dict({"joints": spaces.Box(-3, 3, (2,), np.float64), "grip": spaces.MultiBinary(2)}),
            "goal": spaces.Discrete(4, start=1),
            "inventory": spaces.MultiDiscrete([2, 3], start=[1, 2]),
            "pixels": spaces.Box(0, 255, (3,), np.uint8),
            "action_mask": spaces.MultiBinary(5),
        }
    )
    return NoiseEnv(observation, spaces.MultiDiscrete([2, 3], start=[10, 20]))


def multi_discrete_env() -> gym.Env[Any, Any]:
    """A category in, a table of categories out, in the small integers that some environments use."""
    return NoiseEnv(spaces.Discrete(6), spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), "int32"))


def box_env() -> gym.Env[Any, Any]:
    """Numbers far from 0, and actions in a float64 box that float32 can't hold exactly."""
    return NoiseEnv(spaces.Box(90, 110, (3,), np.float32), spaces.Box(-0.1, 0.3, (2, 2), np.float64))


class DrawingEnv(NoiseEnv):
    """Says that it renders, but ``drawing`` is ``nothing``, or ``fails``."""

    def __init__(self, drawing: str, render_mode: str | None = None) -> None:
        super().__init__(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))
        self.drawing, self.render_mode = drawing, render_mode

    def render(self) -> Any:
        if self.drawing == "fails":
            raise OSError("no display")


def drawing_env(drawing: str, render_mode: str | None = None) -> gym.Env[Any, Any]:
    """Return a DrawingEnv."""
    return DrawingEnv(drawing, render_mode)


class StatefulNetwork(nn.Module):
    """An encoder whose values may not be put off: it declares so."""

    deferrable = False

    def __init__(self, observation_space: gym.Space[Any], width: int = 8) -> None:
        super().__init__()
        self.layer = nn.Linear(int(np.prod(observation_space.shape or ())), width)
        self.output_size = width

    def forward(self, observation: Tensor) -> Tensor:
        return torch.relu(self.layer(observation.flatten(1)))


class UserNetwork(nn.Module):
    """An encoder of a user's, with dropout and batch statistics that acting must not see, shared by both heads."""

    shared = True

    def __init__(self, observation_space: gym.Space[Any], width: int = 8) -> None:
        super().__init__()
        size = int(np.prod(observation_space.shape or ()))
        self.layers = nn.Sequential(nn.Linear(size, width), nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Tanh())
        self.output_size = width

    def forward(self, observation: Tensor) -> Tensor:
        features: Tensor = self.layers(observation.flatten(1))
        return features
