"""Writers: which slot a new row takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlruntime.registry import register
from rlruntime.spec.training.storages import RoundRobinWriterConfig
from rlruntime.storages.storage import ArrayStorage


class Writer:
    """Places rows.

    Attributes:
        keeps_order: whether positions are in the order of writing, and a position is never written twice: what
            samplers that keep something for each row need.
    """

    keeps_order = True

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
        capacity = storage.capacity
        new_end = end + num_rows
        storage.move_window(max(start, min(new_end - capacity, end)), end)
        left_out = max(num_rows - capacity, 0)
        if left_out:
            columns = [column[left_out:] for column in columns]
        storage.put(end + left_out, columns)
        storage.move_window(max(start, new_end - capacity), new_end)
        return np.arange(end, new_end)
