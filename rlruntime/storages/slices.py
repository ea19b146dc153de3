"""Slices: successive rows of one trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlruntime.errors import ConfigError
from rlruntime.registry import register
from rlruntime.spec.training.storages import SliceSamplerConfig
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.samplers import Draw, Sampler
from rlruntime.storages.storage import ArrayStorage
from rlruntime.storages.trajectories import TrajectoryIndex


@register("sampler", "Slice")
class SliceSampler(Sampler):
    """``batch_size / sliceLength`` slices, each one uniform over all that are at hand.

    The rows that a slice can end with are kept in a list, in order; a draw picks from it, so that its cost doesn't
    grow with the number of rows. A batch has the leading dimensions ``(slices, sliceLength)``.
    """

    Config = SliceSamplerConfig
    needs_order = True

    def __init__(self, config: SliceSamplerConfig, seed: int) -> None:
        super().__init__(seed)
        self.config = config
        self._index = TrajectoryIndex(config)
        self._ends = np.zeros(0, np.int64)
        self._first = self._last = 0

    def draw(self, storage: ArrayStorage, batch_size: int) -> Draw:
        """Return rows, slice after slice; see `Sampler.draw`.

        Raises:
            ConfigError: ``batch_size`` is no whole number of slices, or the columns don't tell trajectories apart.
            TooFewRowsError: no trajectory is long enough yet.
        """
        length, stride = self.config.slice_length, self.config.num_envs
        if batch_size % length:
            raise ConfigError(
                f"{batch_size} rows are no whole number of slices of {length}",
                value=batch_size,
                remedy="use a multiple",
            )
        self._follow(storage)
        if self._first == self._last:
            raise TooFewRowsError(
                f"none of the {storage.window.size} rows at hand ends {length} successive rows of one trajectory; "
                "rows of several environments that take turns need numEnvs"
            )
        num_slices = batch_size // length
        ends = self._ends[self.rng.integers(self._first, self._last, num_slices) % len(self._ends)]
        positions = ends[:, None] + np.arange(1 - length, 1) * stride
        return Draw(positions.reshape(-1), leading=(num_slices, length))

    def load_state_dict(self, state: Mapping[str, Any], storage: ArrayStorage) -> None:
        """Take what ``state_dict`` returned; what is known of trajectories is found again in the rows."""
        super().load_state_dict(state, storage)
        self._index.restart()
        self._ends, self._first, self._last = np.zeros(0, np.int64), 0, 0

    def _follow(self, storage: ArrayStorage) -> None:
        """Append new ends, and let go of those whose slice isn't at hand in full any more."""
        if len(self._ends) != storage.capacity:
            self._ends = np.zeros(storage.capacity, np.int64)
        low, high = self._index.follow(storage)
        reach = (self.config.slice_length - 1) * self.config.num_envs
        self._drop(storage.window.start + reach)
        if low < high:
            positions = np.arange(low, high)
            fresh = positions[self._index.run(positions) >= self.config.slice_length]
            fresh = fresh[fresh >= storage.window.start + reach]
            self._ends[(self._last + np.arange(len(fresh))) % len(self._ends)] = fresh
            self._last += len(fresh)

    def _drop(self, least: int) -> None:
        """Move the first end to the first one of at least ``least``: a binary search in the ring."""
        low, high = self._first, self._last
        while low < high:
            middle = (low + high) // 2
            if self._ends[middle % len(self._ends)] < least:
                low = middle + 1
            else:
                high = middle
        self._first = low
