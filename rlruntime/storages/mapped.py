"""Storages over a file that is mapped: one in memory that processes share, and one on a disk.

The file has no name: it is a memory file, or was unlinked as soon as it was open. It is gone when the last process that
has it ends, in whatever way, and nothing needs to be cleaned up. A process gets it by its descriptor: inherited, or
sent along when the storage is pickled for another process.

The file begins with a page for control: whether rows can be written, the window, the layout. The first process with
rows sizes the file and writes the layout, and says last that it is ready. Should it end before, the lock is free again,
and the next process with rows does it all anew.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing import reduction
from typing import Any, Self

import numpy as np

from rlruntime.errors import ConfigError, StorageError
from rlruntime.registry import register
from rlruntime.spec.training.storages import MemoryMappedStorageConfig, SharedTensorStorageConfig
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.layout import RowLayout
from rlruntime.storages.locks import Entered, KernelLock, ThreadLock
from rlruntime.storages.storage import ArrayStorage, Window

CONTROL_BYTES = 1 << 16
_LAYOUT_AT = 64
_READY, _START, _END, _LAYOUT_BYTES, _CAPACITY, _UPHEAVALS = range(6)
_FORMAT = 1
_NOWHERE = 1 << 62  # a start beyond any end: nothing is at hand
_LONGEST_SLEEP_S = 0.01


class MappedStorage(ArrayStorage):
    """Rows in a file without a name.

    Args:
        capacity: most rows that are held.
        descriptor: of the file, which becomes this object's to close.
        is_shared: whether other processes use the file too.

    Raises:
        ConfigError: the file holds rows of another storage, or the system can't share.
    """

    def __init__(self, capacity: int, descriptor: int, *, is_shared: bool) -> None:
        super().__init__(capacity)
        self.descriptor, self.is_shared = descriptor, is_shared
        self._lock = KernelLock(descriptor) if is_shared else ThreadLock()
        if os.fstat(descriptor).st_size < CONTROL_BYTES:
            os.ftruncate(descriptor, CONTROL_BYTES)
        self._page = mmap.mmap(descriptor, CONTROL_BYTES)
        self._control = np.frombuffer(self._page, np.int64, _LAYOUT_AT // 8)

    @property
    def window(self) -> Window:
        """The positions at hand; within ``reading()`` they stay."""
        end = int(self._control[_END])
        return Window(min(int(self._control[_START]), end), end)

    @property
    def num_upheavals(self) -> int:
        """How often rows have changed in another way than that new ones came last, in whatever process."""
        return int(self._control[_UPHEAVALS])

    def note_upheaval(self) -> None:
        """Count one more, within ``writing()``; see `num_upheavals`."""
        self._control[_UPHEAVALS] += 1

    def move_window(self, start: int, end: int) -> None:
        """Let go of rows before ``start``, and offer those written before ``end``; within ``writing()``.

        Should the process end between the two, the window is smaller than it could be, and holds whole rows alone.
        """
        self._control[_START] = start
        self._control[_END] = end

    def jump_window(self, start: int, end: int) -> None:
        """Offer these positions, which need not be later ones; nothing is at hand should the process end in between."""
        self.note_upheaval()
        self._control[_START] = _NOWHERE
        self._control[_END] = end
        self._control[_START] = start

    def reading(self) -> AbstractContextManager[Any]:
        """Return a context in which nobody writes, in any process."""
        return Entered(self._enter_reading, self._lock.leave_reading)

    def wait_for_rows(self, num_rows: int, timeout_s: float) -> None:
        """Wait until as many rows are at hand, whoever writes them.

        Raises:
            TooFewRowsError: there are fewer after ``timeout_s``.
        """
        deadline, sleep_s = time.monotonic() + timeout_s, 1e-4
        while True:
            with self.reading():
                held = self.window.size
            if held >= num_rows:
                return
            if time.monotonic() > deadline:
                raise TooFewRowsError(f"the buffer holds {held} rows after {timeout_s:g} s, not {num_rows}")
            time.sleep(sleep_s)
            sleep_s = min(2 * sleep_s, _LONGEST_SLEEP_S)

    def close(self) -> None:
        """Let go of the file; its memory is free once no view and no other process has it. May be called twice."""
        super().close()
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            if isinstance(self._lock, KernelLock):
                self._lock.close()
            os.close(descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _enter_reading(self) -> None:
        self._lock.enter_reading()
        if self.layout is None:
            self._catch_up(self._lock.leave_reading)

    def enter_writing(self) -> None:
        """See `ArrayStorage.enter_writing`: nobody else reads or writes then, in any process."""
        self._lock.enter_writing()
        if self.layout is None:
            self._catch_up(self._lock.leave_writing)

    def _catch_up(self, leave: Callable[[], None]) -> None:
        """Map the rows that another process has allocated, or leave the lock where they can't be."""
        try:
            self._map_allocated()
        except BaseException:
            leave()
            raise

    def _map_allocated(self) -> None:
        if self._control[_READY] == _FORMAT:
            size = int(self._control[_LAYOUT_BYTES])
            layout = RowLayout.from_json(json.loads(self._page[_LAYOUT_AT : _LAYOUT_AT + size]))
            if self._control[_CAPACITY] != self.capacity:
                raise ConfigError(
                    "the storage has another capacity where it was made",
                    field="capacity",
                    value=self.capacity,
                    remedy=f"use {int(self._control[_CAPACITY])}",
                )
            self._map(self._map_words(layout), layout)

    def _initialise(self, layout: RowLayout) -> None:
        """Size the file and write the layout, unless that is done; within ``writing()``."""
        if self.layout is not None:
            return
        text = json.dumps(layout.to_json(), separators=(",", ":")).encode()
        if len(text) > CONTROL_BYTES - _LAYOUT_AT:
            raise ConfigError(f"a row of {len(layout.fields)} columns is too wide to be mapped", remedy="use Tensor")
        self._reserve(CONTROL_BYTES + self.capacity * layout.row_bytes)
        words = self._map_words(layout)
        self._page[_LAYOUT_AT : _LAYOUT_AT + len(text)] = text
        self._control[_LAYOUT_BYTES], self._control[_CAPACITY] = len(text), self.capacity
        self.move_window(0, 0)
        self._control[_READY] = _FORMAT
        self._map(words, layout)

    def _reserve(self, size: int) -> None:
        """Make the file ``size`` bytes long; in memory, pages are taken as rows are written."""
        os.ftruncate(self.descriptor, size)

    def _map_words(self, layout: RowLayout) -> np.ndarray:
        size = CONTROL_BYTES + self.capacity * layout.row_bytes
        memory = mmap.mmap(self.descriptor, size)
        words = np.frombuffer(memory, np.int64, self.capacity * layout.words, CONTROL_BYTES)
        return words.reshape(self.capacity, layout.words)


@register("storage", "SharedTensor")
class SharedTensorStorage(MappedStorage):
    """Rows in memory that several processes write and read."""

    Config = SharedTensorStorageConfig

    def __init__(self, config: SharedTensorStorageConfig, *, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = _memory_file()
        super().__init__(config.capacity, descriptor, is_shared=True)
        self.config = config

    @classmethod
    def attach(cls, config: SharedTensorStorageConfig, descriptor: int) -> Self:
        """Return the storage whose file has this descriptor, which stays the caller's."""
        return cls(config, descriptor=os.dup(descriptor))

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (type(self), self.config, reduction.DupFd(self.descriptor))


@register("storage", "MemoryMapped")
class MemoryMappedStorage(MappedStorage):
    """Rows in a file on a disk, as fast as memory for what fits there.

    Raises:
        StorageError: the folder can't be written.
    """

    Config = MemoryMappedStorageConfig

    def __init__(self, config: MemoryMappedStorageConfig, *, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = _unnamed_file(config.folder)
        super().__init__(config.capacity, descriptor, is_shared=config.shared)
        self.config = config

    @classmethod
    def attach(cls, config: MemoryMappedStorageConfig, descriptor: int) -> Self:
        """Return the storage whose file has this descriptor, which stays the caller's."""
        return cls(config, descriptor=os.dup(descriptor))

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_shared:
            return _arrive, (type(self), self.config, reduction.DupFd(self.descriptor))
        if self.layout is not None:
            raise ConfigError(
                "a storage that isn't shared can't travel to another process with its rows",
                field="shared",
                remedy="set shared: true, or send it before its first rows",
            )
        return type(self), (self.config,)

    def _reserve(self, size: int) -> None:
        """Take the room on the disk: a full one is an error here, and would be the end of the process later."""
        try:
            os.ftruncate(self.descriptor, size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.descriptor, 0, size)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, CONTROL_BYTES)  # gives back what there was
            raise StorageError(f"there is no room for {size} bytes of replay rows: {error.strerror}") from error


def _arrive(kind: Any, config: Any, descriptor: Any) -> Any:
    """Unpickle a storage that was sent to this process."""
    return kind(config, descriptor=descriptor.detach())


def _memory_file() -> int:
    if not hasattr(os, "memfd_create"):
        raise ConfigError("rows are shared between processes on Linux only", remedy="use a storage that isn't shared")
    return os.memfd_create("rljob-replay", os.MFD_CLOEXEC)


def _unnamed_file(folder: str | None) -> int:
    try:
        with tempfile.TemporaryFile(prefix="rljob-replay-", dir=folder) as file:
            return os.dup(file.fileno())
    except OSError as error:
        where = folder or tempfile.gettempdir()
        raise StorageError(f"a file for replay rows can't be made in {where}: {error.strerror}") from error
