"""Rollouts in memory that processes share. It has no name, so that nothing is left behind however a process ends."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlruntime.collectors.rollout import Rollout
from rlruntime.envs.protocol import EnvSpaces
from rlruntime.policies.distributions import ActionDistribution

_ALIGN = 64
_WORDS = 8  # int64 in a cache line
RUN, CUT_SHORT, PAUSE = range(3)
"""What a worker is told between two steps."""
IDLE, STEPPING, PAUSED = range(3)
"""What a worker is doing."""


class Control:
    """What owner and worker tell each other while the worker steps, in a cache line of its own.

    Args:
        words: int64 ``[8]``.
    """

    def __init__(self, words: np.ndarray) -> None:
        self._words: memoryview[int] = words.data

    @property
    def told(self) -> int:
        """What the worker is to do."""
        return int(self._words[0])

    @told.setter
    def told(self, value: int) -> None:
        self._words[0] = value

    @property
    def progress(self) -> int:
        """A number that grows with every step, and with whatever else the worker finishes."""
        return int(self._words[1])

    @progress.setter
    def progress(self, value: int) -> None:
        self._words[1] = value

    @property
    def state(self) -> int:
        """What the worker is doing."""
        return int(self._words[2])

    @state.setter
    def state(self, value: int) -> None:
        self._words[2] = value

    @property
    def steps(self) -> int:
        """Steps of single copies that the worker took."""
        return int(self._words[3])

    @steps.setter
    def steps(self, value: int) -> None:
        self._words[3] = value


class SharedRollouts:
    """Rollouts ``[T, B]`` and a line of control for each worker, the same in every process that maps them.

    Args:
        spaces, distribution, state_shapes: of the policy.
        num_steps, num_envs: `T` and `B`.
        num_rollouts: rollouts.
        num_workers: lines of control.
        memory: mapped, of the size `size_of` returns; None to find that out.
    """

    def __init__(
        self,
        spaces: EnvSpaces,
        distribution: ActionDistribution,
        state_shapes: Mapping[str, tuple[int, ...]],
        *,
        num_steps: int,
        num_envs: int,
        num_rollouts: int,
        num_workers: int,
        memory: mmap.mmap | None = None,
    ) -> None:
        arena = _Arena(memory)
        self.rollouts = [
            Rollout(spaces, distribution, num_steps, num_envs, state_shapes=state_shapes, allocate=arena.take)
            for _ in range(num_rollouts)
        ]
        words = arena.take((num_workers, _WORDS), np.dtype(np.int64))
        self.control = [Control(line) for line in words]
        self.size = arena.offset


class _Arena:
    """Arrays one after the other; in memory of their own, and only counted, where none is given."""

    def __init__(self, memory: mmap.mmap | None) -> None:
        self._memory, self.offset = memory, 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return the next array."""
        start = self.offset
        self.offset += -(-math.prod(shape) * dtype.itemsize // _ALIGN) * _ALIGN
        if self._memory is None:
            return np.zeros(shape, dtype)
        return np.ndarray(shape, dtype, buffer=self._memory, offset=start)
