"""Writers: which slot a new row takes."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlruntime.errors import ConfigError
from rlruntime.registry import register
from rlruntime.spec.training.storages import ImmutableWriterConfig, MaxValueWriterConfig, RoundRobinWriterConfig
from rlruntime.storages.layout import RowLayout
from rlruntime.storages.storage import ArrayStorage


class Writer:
    """Places rows.

    Attributes:
        keeps_order: whether positions are in the order of writing, and a position is never written twice: what
            samplers that keep something for each row need.
    """

    keeps_order = True

    def check(self, storage: ArrayStorage) -> None:
        """Refuse a storage that this writer can't place rows in.

        Raises:
            ConfigError: it is one.
        """

    def check_columns(self, layout: RowLayout) -> None:
        """Refuse rows that lack a column that a setting names.

        Raises:
            ConfigError: they do.
        """

    def write(self, storage: ArrayStorage, columns: list[np.ndarray], num_rows: int) -> np.ndarray:
        """Write rows within ``storage.writing()``; return the positions ``[n]``, with -1 for a row left out."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return what isn't in the storage."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], storage: ArrayStorage) -> None:
        """Take what ``state_dict`` returned; the storage is loaded already."""


@register("writer", "RoundRobin")
class RoundRobinWriter(Writer):
    """New rows take the place of the oldest. Of a batch larger than the storage, the last rows stay."""

    Config = RoundRobinWriterConfig

    def __init__(self, config: RoundRobinWriterConfig | None = None) -> None:
        self.config = config or RoundRobinWriterConfig()

    def write(self, storage: ArrayStorage, columns: list[np.ndarray], num_rows: int) -> np.ndarray:
        """Write rows; see `Writer.write`.

        First the window lets go of the rows that are written over, last it takes the new ones in. Whenever the process
        ends in between, the window holds whole rows alone.
        """
        start, end = storage.window
        new_end, capacity = end + num_rows, storage.capacity
        new_start = new_end - capacity
        if new_start > start:
            storage.move_window(new_start if new_start < end else end, end)
        else:
            new_start = start
        if num_rows <= capacity:
            storage.put(end, columns)
        else:
            left_out = num_rows - capacity
            storage.put(end + left_out, [column[left_out:] for column in columns])
        storage.move_window(new_start, new_end)
        return np.arange(end, new_end)


@register("writer", "MaxValue")
class MaxValueWriter(Writer):
    """The rows with the largest values stay; a row that is smaller than all of a full storage is left out."""

    Config = MaxValueWriterConfig
    keeps_order = False

    def __init__(self, config: MaxValueWriterConfig | None = None) -> None:
        self.config = config or MaxValueWriterConfig()
        self._held: list[tuple[float, int]] = []  # a heap of value and slot

    def check(self, storage: ArrayStorage) -> None:
        """Refuse a storage of several processes: each would know its own rows alone."""
        if storage.is_shared:
            raise ConfigError(
                "a MaxValue writer can't share its storage", field="writer", remedy="use a storage that isn't shared"
            )

    def check_columns(self, layout: RowLayout) -> None:
        """Refuse rows without a value; see `Writer.check_columns`."""
        layout.number(self.config.value_key, field="valueKey")

    def write(self, storage: ArrayStorage, columns: list[np.ndarray], num_rows: int) -> np.ndarray:
        """Write rows; see `Writer.write`. Here a position is a slot, and comes again when its row is replaced."""
        values = self._values(storage, columns, num_rows)
        slots = np.full(num_rows, -1)
        row_in_slot: dict[int, int] = {}
        # The largest first, so that none is written that a later one of the same batch replaces.
        for row in np.argsort(-values, kind="stable").tolist():
            value = float(values[row])
            if len(self._held) < storage.capacity:
                slot = len(self._held)
                heapq.heappush(self._held, (value, slot))
            elif value > self._held[0][0]:
                slot = self._held[0][1]
                heapq.heapreplace(self._held, (value, slot))
            else:
                break
            row_in_slot[slot] = row
            slots[row] = slot
        rows = list(row_in_slot.values())
        storage.put_at(np.array(list(row_in_slot), np.int64), [column[rows] for column in columns])
        storage.move_window(0, len(self._held))
        return slots

    def _values(self, storage: ArrayStorage, columns: list[np.ndarray], num_rows: int) -> np.ndarray:
        key = self.config.value_key
        if storage.layout is None:
            raise ConfigError(
                "a List storage has no columns", field="valueKey", value=key, remedy="use a Tensor storage"
            )
        column = columns[storage.layout.fields.index(storage.layout.number(key, field="valueKey"))]
        values = column.reshape(num_rows).astype(np.float64)
        if np.isnan(values).any():
            raise ConfigError("a value that isn't a number has no rank", field="valueKey", value=key)
        return values

    def load_state_dict(self, state: Mapping[str, Any], storage: ArrayStorage) -> None:
        """Find the values again in the rows."""
        size = storage.window.size
        self._held = []
        if size:
            values = storage.column(self.config.value_key).reshape(storage.capacity)[:size]
            self._held = [(float(value), slot) for slot, value in enumerate(values)]
            heapq.heapify(self._held)


@register("writer", "Immutable")
class ImmutableWriter(Writer):
    """Refuses every row."""

    Config = ImmutableWriterConfig

    def __init__(self, config: ImmutableWriterConfig | None = None) -> None:
        self.config = config or ImmutableWriterConfig()

    def write(self, storage: ArrayStorage, columns: list[np.ndarray], num_rows: int) -> np.ndarray:
        """Refuse.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("this buffer takes no new rows", remedy="use a RoundRobin writer")
