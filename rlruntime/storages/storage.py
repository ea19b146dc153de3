"""Storages: memory for rows, and the window of positions that it holds.

A storage knows nothing of order or chance. Whoever writes or reads does so within ``writing()`` or ``reading()``, so
that nobody sees half a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from rlruntime.errors import CheckpointError, ConfigError
from rlruntime.registry import register
from rlruntime.spec.training.storages import TensorStorageConfig
from rlruntime.storages.batch import Batch
from rlruntime.storages.layout import RowLayout, plan_layout
from rlruntime.storages.locks import Entered, ThreadLock
from rlruntime.storages.ring import ring_slices


class Window(NamedTuple):
    """The positions at hand: ``start`` up to but without ``end``. Both only grow."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """Rows at hand."""
        return self.end - self.start


class ArrayStorage:
    """Rows in one packed matrix ``[capacity, row_bytes]``, allocated at the first batch, whose layout it takes.

    Attributes:
        capacity: most rows that are held.
        layout: of a row; None before the first batch.
        is_shared: whether other processes may write and read the same rows.
    """

    is_shared = False

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.layout: RowLayout | None = None
        self._lock = ThreadLock()
        self._start = self._end = self._num_upheavals = 0
        self._columns: list[np.ndarray] = []
        self._words = np.zeros((0, 0), np.int64)

    def close(self) -> None:
        """Let go of the memory. The rows can't be used any more; may be called twice."""
        self._columns = []
        self._words = np.zeros((0, 0), np.int64)

    @property
    def window(self) -> Window:
        """The positions at hand."""
        return Window(self._start, self._end)

    @property
    def num_upheavals(self) -> int:
        """How often rows have changed in another way than that new ones came after all others."""
        return self._num_upheavals

    def note_upheaval(self) -> None:
        """Count one more; see `num_upheavals`."""
        self._num_upheavals += 1

    def move_window(self, start: int, end: int) -> None:
        """Let go of rows before ``start``, and offer those written before ``end``."""
        self._start, self._end = start, end

    def jump_window(self, start: int, end: int) -> None:
        """Offer these positions, which need not be later ones."""
        self.note_upheaval()
        self.move_window(start, end)

    def reading(self) -> AbstractContextManager[Any]:
        """Return a context in which nobody else writes."""
        return self._lock.reading()

    def writing(self) -> AbstractContextManager[Any]:
        """Return a context in which nobody else reads or writes."""
        return Entered(self.enter_writing, self.leave_writing)

    def enter_writing(self) -> None:
        """Begin what `writing` does, for who writes often; `leave_writing` must follow."""
        self._lock.enter_writing()

    def leave_writing(self) -> None:
        """End it."""
        self._lock.leave_writing()

    def matched(self, rows: Mapping[str, Any]) -> tuple[list[np.ndarray], int]:
        """Return the columns of ``rows`` as `put` takes them, and their number; the first rows set the layout.

        Rows of length 0 set nothing.

        Raises:
            ConfigError: the rows are none, or don't fit the layout.
            StorageError: there is no room for ``capacity`` such rows.
        """
        if self.layout is None:
            layout, num_rows = plan_layout(rows)
            if num_rows == 0:
                return [], 0
            with self.writing():
                self._initialise(layout)
        assert self.layout is not None
        return self.layout.matched(rows)

    def put(self, position: int, columns: list[np.ndarray]) -> None:
        """Write consecutive rows, at most ``capacity``, from ``position`` on; the window stays as it is."""
        first, count = position % self.capacity, len(columns[0])
        until_end = self.capacity - first
        if count <= until_end:
            slots = slice(first, first + count)
            for target, column in zip(self._columns, columns):  # noqa: B905  (matched; it counts for short batches)
                target[slots] = column
            return
        for target, column in zip(self._columns, columns, strict=True):
            target[first:] = column[:until_end]
            target[: count - until_end] = column[until_end:]

    def put_at(self, slots: np.ndarray, columns: list[np.ndarray]) -> None:
        """Write rows into slots ``[n]``, each a different one; the window stays as it is."""
        self.note_upheaval()
        for target, column in zip(self._columns, columns, strict=True):
            target[slots] = column

    def gather(self, positions: np.ndarray) -> np.ndarray:
        """Return the rows at ``positions [n]`` as ``[n]`` of `RowLayout.struct`, in memory of their own."""
        assert self.layout is not None
        rows = np.empty(len(positions), self.layout.struct)
        words = rows.view(np.int64).reshape(len(positions), self.layout.words)
        # Clipping leaves out a second pass over the positions; they lie within the capacity already.
        self._words.take(self.slots(positions), axis=0, out=words, mode="clip")
        return rows

    def slots(self, positions: np.ndarray) -> np.ndarray:
        """Return where rows at hand lie, of the same shape as their ``positions``."""
        return positions if self.window.end <= self.capacity else positions % self.capacity

    def column(self, name: str) -> np.ndarray:
        """Return the memory of one column, ``[capacity, ...]``, by slot."""
        assert self.layout is not None
        return self._columns[list(self.layout.by_name).index(name)]

    def named_column(self, name: str, *, field: str) -> np.ndarray:
        """Return `column` for a setting that names it.

        Raises:
            ConfigError: see `RowLayout.named`.
        """
        assert self.layout is not None
        self.layout.named(name, field=field)
        return self.column(name)

    def numbers(self, name: str, *, field: str, integers: bool = False) -> np.ndarray:
        """Return a column of one number a row, ``[capacity]``, for a setting that names it.

        Raises:
            ConfigError: see `RowLayout.number`.
        """
        column = self.named_column(name, field=field)
        assert self.layout is not None
        self.layout.number(name, field=field, integers=integers)
        return column.reshape(self.capacity)

    def batch(self, rows: np.ndarray, positions: np.ndarray, **seen_as: Any) -> Batch:
        """Return what `gather` did as a batch; ``seen_as`` are the other arguments of `Batch`."""
        assert self.layout is not None
        return Batch(self.layout, rows, positions, **seen_as)

    def packed(self, rows: np.ndarray) -> Any:
        """Return a copy of gathered rows for a checkpoint, ``[n, row_bytes]`` uint8."""
        assert self.layout is not None
        return np.ascontiguousarray(rows).reshape(-1).view(np.uint8).reshape(rows.size, self.layout.row_bytes).copy()

    def unpacked(self, packed: Any) -> np.ndarray:
        """Return the rows that `packed` was given, in memory of their own."""
        assert self.layout is not None
        return np.array(packed).view(self.layout.struct).reshape(-1)

    def state_dict(self, kept: KeptRows | None = None, *, copy: bool = True) -> dict[str, Any]:
        """Return the rows at hand, oldest first, with their layout and window.

        The rows are a list of one or two arrays ``[n, row_bytes]`` uint8, or of none.

        Args:
            kept: memory of earlier copies: only what has changed since is copied, and the arrays are views of it.
            copy: False for views of the rows themselves, good until the next row is written.
        """
        with self.reading():
            start, end = self.window
            words = self._words
            if kept is not None:
                words = kept.follow(self, words)
            pieces = [words[slots].view(np.uint8) for slots in ring_slices(start, end, self.capacity)]
            if copy and kept is None:
                pieces = [piece.copy() for piece in pieces]
            layout = None if self.layout is None else self.layout.to_json()
            return {"layout": layout, "start": start, "end": end, "rows": pieces}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a state that `load_state_dict` can't take.

        Raises:
            CheckpointError: it holds more rows than fit, or rows of another layout.
        """
        held = state["end"] - state["start"]
        if held > self.capacity:
            raise CheckpointError(f"the checkpoint holds {held} rows, the buffer takes {self.capacity}")
        if state["layout"] is not None:
            layout = RowLayout.from_json(state["layout"])
            if self.layout is not None and self.layout != layout:
                raise CheckpointError("the rows of the checkpoint have other columns than those of the buffer")
            shapes = [piece.shape for piece in state["rows"]]
            if sum(shape[0] for shape in shapes) != held or any(shape[1:] != (layout.row_bytes,) for shape in shapes):
                raise CheckpointError("the checkpoint lacks some of its rows")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what ``state_dict`` returned, and nothing else; the state is copied.

        Raises:
            CheckpointError: see `check_state`.
        """
        self.check_state(state)
        with self.writing():
            start, end = state["start"], state["end"]
            self.jump_window(end, end)  # nothing is at hand until all is
            if state["layout"] is not None:
                if self.layout is None:
                    self._initialise(RowLayout.from_json(state["layout"]))
                at = start
                for piece in state["rows"]:
                    words, done = np.ascontiguousarray(piece).view(np.int64), 0
                    for slots in ring_slices(at, at + len(words), self.capacity):
                        count = slots.stop - slots.start
                        self._words[slots] = words[done : done + count]
                        done += count
                    at += len(words)
            self.jump_window(start, end)

    def _initialise(self, layout: RowLayout) -> None:
        """Allocate for ``layout``, unless another thread did; within ``writing()``."""
        if self.layout is None:
            self._map(self._allocate(layout), layout)

    def _allocate(self, layout: RowLayout) -> np.ndarray:
        """Return zeros ``[capacity, words]`` int64; pages are taken as rows are written."""
        return np.zeros((self.capacity, layout.words), np.int64)

    def _map(self, words: np.ndarray, layout: RowLayout) -> None:
        self._words = words
        rows = words.view(layout.struct).reshape(-1)
        self._columns = [rows[field.name] for field in layout.fields]
        self.layout = layout


class KeptRows:
    """Memory for a copy of a storage's rows, which follows them at the cost of what has changed."""

    def __init__(self) -> None:
        self._words = np.zeros((0, 0), np.int64)
        self._end = 0
        self._num_upheavals = -1

    def follow(self, storage: ArrayStorage, words: np.ndarray) -> np.ndarray:
        """Copy what has changed of ``words [capacity, words]``, those of a storage, within ``reading()``; return the
        copy, of which the slots of rows at hand are filled.
        """
        if self._words.shape != words.shape:
            self._words, self._num_upheavals = np.empty_like(words), -1  # pages are taken as rows are copied
        start, end = storage.window
        first = max(start, self._end) if storage.num_upheavals == self._num_upheavals else start
        for slots in ring_slices(first, end, storage.capacity):
            self._words[slots] = words[slots]
        self._end, self._num_upheavals = end, storage.num_upheavals
        return self._words


@register("storage", "Tensor")
class TensorStorage(ArrayStorage):
    """Rows in the memory of this process."""

    Config = TensorStorageConfig

    def __init__(self, config: TensorStorageConfig) -> None:
        super().__init__(config.capacity)
        self.config = config

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process empty; rows stay where they are."""
        if self.layout is not None:
            raise ConfigError(
                "a Tensor storage that holds rows can't travel to another process",
                remedy="use SharedTensor, or send it before its first rows",
            )
        return type(self), (self.config,)
