"""Wrappers of a single copy, for transforms that decide when it is stepped, reset or cut off.

Copies are stepped together, and none can be left out of a step; what repeats an action, or ends an episode, therefore
happens within each copy. There it runs in the worker process too, and its state is a part of the copy's own snapshot.
This module imports no torch, so that worker processes start fast.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rlruntime.errors import ConfigError

FIELD = "spec.training.env.transforms"
_NOOPS, _TRUNCATION = 1, 2  # so that the draws of two wrappers of one seed differ

Step = tuple[Any, float, bool, bool, dict[str, Any]]
Reset = tuple[Any, dict[str, Any]]


class FrameSkip(gym.Wrapper[Any, Any, Any, Any]):
    """Repeat each action ``frames`` times and sum the rewards; the end of an episode stops it.

    Args:
        env: the copy.
        frames: steps in one decision.
        max_pool: the observation is the largest, element by element, of the last so many.
    """

    def __init__(self, env: gym.Env[Any, Any], frames: int, max_pool: int = 1) -> None:
        super().__init__(env)
        if max_pool > 1 and not isinstance(env.observation_space, gym.spaces.Box):
            raise ConfigError(
                "FrameSkip can pool a Box observation only",
                field=FIELD,
                value=env.observation_space,
                remedy="leave maxPool out",
            )
        self._frames, self._max_pool = frames, max_pool

    def step(self, action: Any) -> Step:
        total, pooled = 0.0, None
        for frame in range(self._frames):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if frame >= self._frames - self._max_pool or terminated or truncated:
                pooled = self._pool(pooled, observation)
            if terminated or truncated:
                break
        return pooled, total, terminated, truncated, info

    def _pool(self, pooled: Any, observation: Any) -> Any:
        if self._max_pool == 1:
            return observation
        return np.array(observation) if pooled is None else np.maximum(pooled, observation, out=pooled)


class StepLimit(gym.Wrapper[Any, Any, Any, Any]):
    """Truncate an episode after ``limit`` decisions."""

    def __init__(self, env: gym.Env[Any, Any], limit: int) -> None:
        super().__init__(env)
        self._limit, self._count = limit, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        self._count = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._count += 1
        return observation, float(reward), terminated, truncated or self._count >= self._limit, info


class RandomTruncation(gym.Wrapper[Any, Any, Any, Any]):
    """Truncate an episode after each step with a probability; draws follow the seed that the copy was reset with."""

    def __init__(self, env: gym.Env[Any, Any], probability: float) -> None:
        super().__init__(env)
        self._probability, self._draws = probability, _generator(0, _TRUNCATION)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        if seed is not None:
            self._draws = _generator(seed, _TRUNCATION)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        cut = bool(self._draws.random() < self._probability)
        return observation, float(reward), terminated, truncated or cut, info


class NoopReset(gym.Wrapper[Any, Any, Any, Any]):
    """Begin an episode after 1 to ``max_noops`` steps that do nothing (Mnih et al. 2015).

    Args:
        env: the copy.
        max_noops: most steps; their number is drawn by the seed that the copy was reset with.
        action: what does nothing; None for the first action, or zeros for a Box.
    """

    def __init__(self, env: gym.Env[Any, Any], max_noops: int, action: int | None = None) -> None:
        super().__init__(env)
        self._max_noops, self._noop = max_noops, _noop("NoopReset", env, action)
        self._draws = _generator(0, _NOOPS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        if seed is not None:
            self._draws = _generator(seed, _NOOPS)
        observation, info = self.env.reset(seed=seed, options=options)
        for _ in range(int(self._draws.integers(1, self._max_noops + 1))):
            observation, _, terminated, truncated, info = self.env.step(self._noop)
            if terminated or truncated:
                observation, info = self.env.reset(options=options)
        return observation, info


class EndOfLife(gym.Wrapper[Any, Any, Any, Any]):
    """End the episode where a life is lost; the next one goes on in the same game, after a step of ``action``.

    The lives left are ``info["lives"]``, or those of the Atari emulator.
    """

    def __init__(self, env: gym.Env[Any, Any], action: int | None = None) -> None:
        super().__init__(env)
        self._noop = _noop("EndOfLife", env, action)
        self._lives, self._life_lost = 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        if self._life_lost and seed is None:
            observation, _, terminated, truncated, info = self.env.step(self._noop)
            if terminated or truncated:
                observation, info = self.env.reset(options=options)
        else:
            observation, info = self.env.reset(seed=seed, options=options)
        self._lives, self._life_lost = self._lives_left(info), False
        return observation, info

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        lives = self._lives_left(info)
        self._life_lost = 0 < lives < self._lives and not terminated and not truncated
        self._lives = lives
        return observation, float(reward), bool(terminated or self._life_lost), truncated, info

    def _lives_left(self, info: dict[str, Any]) -> int:
        if "lives" in info:
            return int(info["lives"])
        emulator = getattr(self.env.unwrapped, "ale", None)
        if emulator is None:
            raise ConfigError(
                "EndOfLife finds no lives: neither info['lives'] nor an Atari emulator",
                field=FIELD,
                value="EndOfLife",
                remedy="return lives in info, or remove the transform",
            )
        return int(emulator.lives())


def _generator(seed: int, stream: int) -> np.random.Generator:
    return np.random.default_rng([seed, stream])


def _noop(name: str, env: gym.Env[Any, Any], action: int | None) -> Any:
    """Return the action that does nothing, as the environment takes it."""
    space: Any = env.action_space
    if isinstance(space, gym.spaces.Discrete):
        found: Any = space.dtype.type(space.start if action is None else action)
    elif action is None and isinstance(space, gym.spaces.MultiDiscrete):
        found = np.array(space.start, space.dtype)
    elif action is None and isinstance(space, gym.spaces.Box):
        found = np.zeros(space.shape, space.dtype)
    else:
        found = action
    if not space.contains(found):
        raise ConfigError(
            f"{name} has no action that does nothing in {space}",
            field=FIELD,
            value=action,
            remedy="give another action",
        )
    return found
