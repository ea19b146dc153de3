"""Groups of rows that are learned from together, such as all answers to one prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlruntime.registry import register
from rlruntime.spec.training.storages import PromptGroupSamplerConfig
from rlruntime.storages.batch import Batch
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.layout import RowLayout
from rlruntime.storages.samplers import Draw, Sampler
from rlruntime.storages.storage import ArrayStorage


@register("sampler", "PromptGroup")
class PromptGroupSampler(Sampler):
    """Whole groups of ``groupSize`` rows that bear one number, whichever process wrote which of them, in any order.

    A group can be drawn once all of its rows are there: once, in the order in which groups became complete, or with
    ``reuse`` any number of times at random. One of which a row was written over is dropped whole. A batch has the
    leading dimensions ``(groups, groupSize)``.

    Attributes:
        num_dropped: groups that were dropped before they were given, complete or not.
    """

    Config = PromptGroupSamplerConfig
    needs_order = True

    def __init__(self, config: PromptGroupSamplerConfig, seed: int) -> None:
        super().__init__(seed)
        self.config = config
        self.rows_together = config.group_size
        self.num_dropped = 0
        self._complete = np.zeros((0, config.group_size), np.int64)
        self._waiting = self._numbers = np.zeros(0, np.int64)  # rows of groups that lack some, and their numbers
        self._seen = 0

    def draw(self, storage: ArrayStorage, batch_size: int) -> Draw:
        """Return rows, group after group; see `Sampler.draw`."""
        num_groups, size = self._items(batch_size), self.config.group_size
        self._follow(storage)
        held = len(self._complete)
        if held < (1 if self.config.reuse else num_groups):
            raise TooFewRowsError(f"{held} groups of {size} rows are complete, a batch needs {num_groups}")
        if self.config.reuse:
            drawn = self._complete[self.rng.integers(0, held, num_groups)]
        else:
            drawn, self._complete = self._complete[:num_groups], self._complete[num_groups:]
        return Draw(drawn.reshape(-1), leading=(num_groups, size))

    def may_give(self, draw: Draw, batch: Batch | None) -> bool:
        """Count groups that were lost after they were drawn; see `Sampler.may_give`."""
        if batch is None and not self.config.reuse:
            self.num_dropped += len(draw.positions) // self.rows_together
        return batch is not None

    def check_columns(self, layout: RowLayout) -> None:
        """Refuse rows without a group; see `Sampler.check_columns`."""
        layout.number(self.config.group_key, field="groupKey", integers=True)

    def state_dict(self, storage: ArrayStorage) -> dict[str, Any]:
        """Return which groups are complete and which rows wait for others, and the randomness."""
        return {
            **super().state_dict(storage),
            "complete": self._complete.copy(),
            "waiting": self._waiting.copy(),
            "numbers": self._numbers.copy(),
            "seen": self._seen,
            "numDropped": self.num_dropped,
        }

    def load_state_dict(self, state: Mapping[str, Any], storage: ArrayStorage) -> None:
        """Take what ``state_dict`` returned."""
        super().load_state_dict(state, storage)
        self._complete = np.array(state["complete"]).reshape(-1, self.config.group_size)
        self._waiting, self._numbers = np.array(state["waiting"]), np.array(state["numbers"])
        self._seen, self.num_dropped = int(state["seen"]), int(state["numDropped"])

    def _follow(self, storage: ArrayStorage) -> None:
        """Put new rows to those that wait, and take out the groups that are complete with them."""
        start, end = storage.window
        first, self._seen = max(self._seen, start), end
        if first < end:
            column = storage.numbers(self.config.group_key, field="groupKey", integers=True)
            positions = np.concatenate([self._waiting, np.arange(first, end)])
            numbers = np.concatenate([self._numbers, column[np.arange(first, end) % storage.capacity]])
            self._take_out_complete(positions, numbers.astype(np.int64, copy=False))
        self._drop_broken(start)

    def _take_out_complete(self, positions: np.ndarray, numbers: np.ndarray) -> None:
        size = self.config.group_size
        order = np.argsort(numbers, kind="stable")  # rows of one number stay in the order of writing
        _, firsts, counts = np.unique(numbers[order], return_index=True, return_counts=True)
        rank = np.arange(len(order)) - np.repeat(firsts, counts)
        in_group = rank < np.repeat(counts // size * size, counts)
        groups = positions[order[in_group]].reshape(-1, size)
        self._complete = np.concatenate([self._complete, groups[np.argsort(groups[:, -1])]])
        waiting = np.sort(order[~in_group])
        self._waiting, self._numbers = positions[waiting], numbers[waiting]

    def _drop_broken(self, start: int) -> None:
        """Drop complete groups that lost a row, and groups that wait once all of their rows are gone.

        Until then a group that lost some waits on: its other rows must not count as the first of another group.
        """
        whole = self._complete[:, 0] >= start
        if not whole.all():
            self.num_dropped += len(whole) - int(whole.sum())
            self._complete = self._complete[whole]
        if len(self._waiting) and self._waiting[0] < start:
            gone = np.setdiff1d(self._numbers, self._numbers[self._waiting >= start])
            self.num_dropped += len(gone)
            stays = ~np.isin(self._numbers, gone)
            self._waiting, self._numbers = self._waiting[stays], self._numbers[stays]
