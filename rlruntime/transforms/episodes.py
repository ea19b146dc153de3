"""What is known of an episode, as parts of the observation: steps, rewards, its first row, its number, its target."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rlruntime.envs.protocol import EnvSpaces, StepSlot
from rlruntime.registry import register
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.transforms import (
    InitTrackerConfig,
    RewardSumConfig,
    StepCounterConfig,
    TargetReturnConfig,
    TrajectoryCounterConfig,
)
from rlruntime.transforms.base import Copies
from rlruntime.transforms.remembering import AddedKey, column

_MOST = int(np.iinfo(np.int64).max)


@register("transform", "StepCounter")
class StepCounter(AddedKey):
    """Count the decisions of an episode, 0 in its first observation; with ``limit``, truncate it after so many.

    The limit never terminates: learning goes on to bootstrap. It is kept by a wrapper of each copy
    (`rlruntime.transforms.copies.StepLimit`), which `make_transformed_env` puts there.
    """

    Config = StepCounterConfig

    def __init__(self, config: StepCounterConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__(config.key)
        self.limit = config.limit
        self.needs_wrapper = config.limit is not None

    @classmethod
    def copy_wrapper(cls, config: Any) -> Component | None:
        if config.limit is None:
            return None
        return Component(type="rlruntime.transforms.copies:StepLimit", config={"limit": config.limit})

    def start(self, spaces: EnvSpaces, copies: Copies) -> gym.Space[Any]:
        self.remember("count", column(copies.num, 0, np.int64))
        return gym.spaces.Box(0, _MOST if self.limit is None else self.limit, (1,), np.int64)

    def follow(self, row: StepSlot, begins: np.ndarray | None, out: np.ndarray) -> None:
        count = self.held["count"]
        count += 1
        if begins is not None:
            count[begins] = 0
        out[...] = count


@register("transform", "RewardSum")
class RewardSum(AddedKey):
    """Sum the rewards of an episode, as they stand where it is in the list; 0 in the first observation."""

    Config = RewardSumConfig
    reads_reward = True

    def __init__(self, config: RewardSumConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__(config.key)

    def start(self, spaces: EnvSpaces, copies: Copies) -> gym.Space[Any]:
        self.remember("total", column(copies.num, 0, np.float64))
        return gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def follow(self, row: StepSlot, begins: np.ndarray | None, out: np.ndarray) -> None:
        total = self.held["total"]
        total[:, 0] += row.reward
        if begins is not None:
            total[begins] = 0.0
        out[...] = total


@register("transform", "InitTracker")
class InitTracker(AddedKey):
    """Say whether an observation is the first of its episode."""

    Config = InitTrackerConfig

    def __init__(self, config: InitTrackerConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__(config.key)

    def start(self, spaces: EnvSpaces, copies: Copies) -> gym.Space[Any]:
        return gym.spaces.MultiBinary(1)

    def follow(self, row: StepSlot, begins: np.ndarray | None, out: np.ndarray) -> None:
        if begins is None:
            out.fill(0)
        else:
            out[:, 0] = begins


@register("transform", "TrajectoryCounter")
class TrajectoryCounter(AddedKey):
    """Number the episodes: the `k`-th of copy `i` of `n` is ``k * n + i``, so that no two of a job have one number."""

    Config = TrajectoryCounterConfig

    def __init__(self, config: TrajectoryCounterConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__(config.key)

    def start(self, spaces: EnvSpaces, copies: Copies) -> gym.Space[Any]:
        self._total = copies.total
        numbers = np.arange(copies.first, copies.first + copies.num, dtype=np.int64)[:, None]
        self.remember("number", numbers - copies.total)
        return gym.spaces.Box(0, _MOST, (1,), np.int64)

    def follow(self, row: StepSlot, begins: np.ndarray | None, out: np.ndarray) -> None:
        number = self.held["number"]
        if begins is not None:
            number[begins] += self._total
        out[...] = number


@register("transform", "TargetReturn")
class TargetReturn(AddedKey):
    """Say which return is still to be reached in an episode (Chen et al. 2021, "Decision Transformer")."""

    Config = TargetReturnConfig
    reads_reward = True

    def __init__(self, config: TargetReturnConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__(config.key)
        self.target, self.reduces = config.target, config.mode == "Reduce"

    def start(self, spaces: EnvSpaces, copies: Copies) -> gym.Space[Any]:
        self.remember("left", column(copies.num, self.target, np.float64))
        return gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def follow(self, row: StepSlot, begins: np.ndarray | None, out: np.ndarray) -> None:
        left = self.held["left"]
        if self.reduces:
            left[:, 0] -= row.reward
            if begins is not None:
                left[begins] = self.target
        out[...] = left
