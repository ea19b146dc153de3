"""Slices in proportion to their priority (Kapturowski et al. 2019, "Recurrent experience replay in distributed
reinforcement learning").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlruntime.registry import register
from rlruntime.spec.training.storages import PrioritizedSliceSamplerConfig
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.layout import RowLayout
from rlruntime.storages.prioritized import PrioritizedSampler, checked_priorities
from rlruntime.storages.samplers import Draw
from rlruntime.storages.slices import no_slice, slices_from
from rlruntime.storages.storage import ArrayStorage
from rlruntime.storages.sum_tree import SumTree
from rlruntime.storages.trajectories import TrajectoryIndex, check_trajectories


@register("sampler", "PrioritizedSlice")
class PrioritizedSliceSampler(PrioritizedSampler):
    """``batch_size / sliceLength`` slices of one trajectory each, in proportion to a power of their priority.

    A slice has a priority of its own, whatever others hold the same rows. `update_priorities` takes one for each slice
    of the batch, or one for each row; then the slice's is ``maxShare`` of the largest and the rest of the mean. A batch
    has the leading dimensions ``(slices, sliceLength)``; the weight of a row is that of its slice.
    """

    Config: Any = PrioritizedSliceSamplerConfig

    def __init__(self, config: PrioritizedSliceSamplerConfig, seed: int) -> None:
        super().__init__(config, seed)
        self.slices = config
        self.rows_together = config.slice_length
        self._reach = (config.slice_length - 1) * config.num_envs
        self._index = TrajectoryIndex(config)

    def check_columns(self, layout: RowLayout) -> None:
        """Refuse rows whose trajectories can't be told apart; see `Sampler.check_columns`."""
        check_trajectories(self.slices, layout.number)

    def draw(self, storage: ArrayStorage, batch_size: int) -> Draw:
        """Return rows, slice after slice; see `Sampler.draw`."""
        ends, weight = self._pick(storage, self._items(batch_size))
        return slices_from(ends - self._reach, self.slices, weight)

    def update_priorities(self, storage: ArrayStorage, positions: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of slices.

        Args:
            storage: whose rows they are.
            positions: ``[slices * sliceLength]``, those of a batch.
            priorities: ``[slices]``, or ``[slices * sliceLength]`` in any shape of so many.
        """
        ends = np.asarray(positions).reshape(-1, self.rows_together)[:, -1]
        priorities = checked_priorities(priorities)
        if len(priorities) == len(ends) * self.rows_together:
            of_rows = priorities.reshape(len(ends), self.rows_together)
            share = self.slices.max_share
            priorities = share * of_rows.max(1, initial=0.0) + (1 - share) * of_rows.mean(1)
        self._follow(storage)
        are_ends = self._index.run(ends) >= self.rows_together
        super().update_priorities(storage, ends[are_ends], priorities[are_ends])

    def load_state_dict(self, state: Mapping[str, Any], storage: ArrayStorage) -> None:
        """Take what ``state_dict`` returned; what is known of trajectories is found again in the rows."""
        super().load_state_dict(state, storage)
        self._index.restart()

    def _follow(self, storage: ArrayStorage) -> SumTree:
        """Bring the trajectories up to the storage's window, then the tree, which asks where slices end."""
        self._index.follow(storage)
        return super()._follow(storage)

    def _first_drawable(self, storage: ArrayStorage) -> int:
        return min(storage.window.start + self._reach, storage.window.end)

    def _mass_of_new(self, storage: ArrayStorage, first: int, last: int, largest: float) -> np.ndarray | float:
        """Return the mass of rows that a slice can end with, and 0 for the others."""
        positions = np.arange(first, last)
        is_end = (self._index.run(positions) >= self.rows_together) & (positions >= self._first_drawable(storage))
        mass: np.ndarray = np.where(is_end, largest, 0.0)
        return mass

    def _none_to_draw(self, storage: ArrayStorage) -> TooFewRowsError:
        return no_slice(storage, self.slices)
