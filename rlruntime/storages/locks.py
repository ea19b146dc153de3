"""Who may read and write when: many readers, or one writer; among threads, or among processes.

Among processes the lock is the kernel's: it ends with the process that holds it, whatever ends that, and passing it
on makes what its holder wrote visible. It belongs to an open file, not to a process, so that each process opens the
file anew; a descriptor that was handed down by a fork would share its parent's lock.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from threading import get_ident
from types import TracebackType

from rlruntime import kernel_locks
from rlruntime.errors import EXIT_TRY_AGAIN, ConfigError, RLJobError

LOCK_TIMEOUT_S = 120.0
_locks: weakref.WeakSet[KernelLock] = weakref.WeakSet()


class LockTimeoutError(RLJobError):
    """Another thread or process held the rows for longer than the deadline."""

    exit_code = EXIT_TRY_AGAIN


class ThreadLock:
    """Lets many threads read, or one write. A thread may enter again what it is in, and may read where it writes.

    Nobody is kept out for ever: readers that come while a writer waits are let in after it, and of several writers that
    wait the next one comes after the readers that wait by then.
    """

    def __init__(self, timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._forget_threads()

    def reading(self) -> Entered:
        """Return a context for reading."""
        return Entered(self.enter_reading, self.leave_reading)

    def writing(self) -> Entered:
        """Return a context for writing."""
        return Entered(self.enter_writing, self.leave_writing)

    def _forget_threads(self) -> None:
        self._mutex = threading.Lock()  # entered by itself: a condition's own methods cost as much as what they guard
        self._changed = threading.Condition(self._mutex)
        self._mine = threading.local()  # how deep this thread reads
        self._mine.depth = 0
        self._num_readers = self._waiting_readers = self._readers_first = 0
        self._writer = self._depth = self._waiting_writers = 0

    def enter_reading(self) -> None:
        """Wait until nobody else writes.

        Raises:
            LockTimeoutError: somebody writes for longer than the deadline.
        """
        mine = self._mine
        with self._mutex:
            if self._writer and self._writer == get_ident():
                self._depth += 1
                return
            depth = getattr(mine, "depth", 0)
            if not depth:
                if self._keeps_readers_out():
                    self._wait_to_read()
                if not self._num_readers:
                    self._first_in(exclusive=False)
                self._num_readers += 1
            mine.depth = depth + 1

    def leave_reading(self) -> None:
        """End what `enter_reading` began."""
        mine = self._mine
        with self._mutex:
            if self._writer:  # only this thread can have entered
                self._depth -= 1
                return
            mine.depth -= 1
            if not mine.depth:
                self._num_readers -= 1
                if not self._num_readers:
                    self._last_out()
                    if self._waiting_writers or self._waiting_readers:
                        self._changed.notify_all()

    def enter_writing(self) -> None:
        """Wait until nobody else reads or writes.

        Raises:
            LockTimeoutError: somebody does for longer than the deadline.
        """
        with self._mutex:
            me = get_ident()
            if self._writer != me:
                if self._writer or self._num_readers or self._readers_first:
                    self._wait_to_write()
                self._first_in(exclusive=True)
                self._writer = me
            self._depth += 1

    def leave_writing(self) -> None:
        """End what `enter_writing` began."""
        with self._mutex:
            self._depth -= 1
            if not self._depth:
                self._writer = 0
                self._last_out()
                self._readers_first = self._waiting_readers
                if self._waiting_writers or self._waiting_readers:
                    self._changed.notify_all()

    def _first_in(self, *, exclusive: bool) -> None:
        """Keep out other processes, where there are any."""

    def _last_out(self) -> None:
        """Let other processes in."""

    def _keeps_readers_out(self) -> bool:
        return bool(self._writer or (self._waiting_writers and not self._readers_first))

    def _keeps_writers_out(self) -> bool:
        return bool(self._writer or self._num_readers or self._readers_first)

    def _wait_to_read(self) -> None:
        self._waiting_readers += 1
        try:
            self._wait(self._keeps_readers_out)
        finally:
            self._waiting_readers -= 1
            self._readers_first = min(self._readers_first, self._waiting_readers)

    def _wait_to_write(self) -> None:
        self._waiting_writers += 1
        try:
            self._wait(self._keeps_writers_out)
        finally:
            self._waiting_writers -= 1

    def _wait(self, kept_out: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.timeout_s
        while kept_out():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self._changed.notify_all()  # those who waited for this thread needn't any more
                raise LockTimeoutError(f"another thread held the rows for {self.timeout_s:g} s")
            self._changed.wait(left_s)


class KernelLock(ThreadLock):
    """Lets many processes, and threads of them, read, or one thread of one process write.

    Two bytes of a file are locked. Whoever enters passes through the gate; a writer holds it while it waits for the
    rows, so that readers that come and go can't keep it waiting. Nor can threads of one process that hold the rows by
    turns: after a while none is let in until the last of them is out.

    Args:
        descriptor: of the file, which stays the caller's; its contents don't matter.
        timeout_s: seconds to wait at most.

    Raises:
        ConfigError: the system has no such locks.
    """

    _GATE, _ROWS = 0, 1
    _FIRST_SLEEP_S, _LONGEST_SLEEP_S = 2e-5, 1e-3
    _LONGEST_TURN_S = 5e-3

    def __init__(self, descriptor: int, timeout_s: float = LOCK_TIMEOUT_S) -> None:
        if not sys.platform.startswith("linux"):
            raise ConfigError(
                "rows are shared between processes on Linux only", remedy="use a storage that isn't shared"
            )
        super().__init__(timeout_s)
        self._descriptor = descriptor
        self._own = -1
        self._turn_ends_at = 0.0
        _locks.add(self)

    def start_anew(self) -> None:
        """Hold nothing, in a process that was forked: not its parent's open file, with which the parent's lock would
        outlive the parent, and not what the parent's threads were in.
        """
        self.close()
        self._forget_threads()

    def close(self) -> None:
        """Give up the lock and its file; another use opens it anew."""
        own, self._own = self._own, -1
        if own >= 0:
            os.close(own)

    def _first_in(self, *, exclusive: bool) -> None:
        if self._own < 0:
            self._own = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC)
        kind = kernel_locks.ALONE if exclusive else kernel_locks.SHARED
        deadline = time.monotonic() + self.timeout_s
        try:
            self._take(kind, self._GATE, deadline)
            self._take(kind, self._ROWS, deadline)
        except BaseException:
            self._last_out()
            self._changed.notify_all()  # threads may have waited for this one
            raise
        if not exclusive:
            self._ask(kernel_locks.NONE, self._GATE, 1)
            self._turn_ends_at = time.monotonic() + self._LONGEST_TURN_S

    def _keeps_readers_out(self) -> bool:
        if self._num_readers and time.monotonic() > self._turn_ends_at:
            return True
        return super()._keeps_readers_out()

    def _last_out(self) -> None:
        self._ask(kernel_locks.NONE, self._GATE, 2)

    def _take(self, kind: int, byte: int, deadline: float) -> None:
        sleep_s = self._FIRST_SLEEP_S
        while not self._ask(kind, byte, 1):
            if time.monotonic() > deadline:
                raise LockTimeoutError(f"another process held the rows for {self.timeout_s:g} s")
            time.sleep(sleep_s)
            sleep_s = min(2 * sleep_s, self._LONGEST_SLEEP_S)

    def _ask(self, kind: int, first: int, count: int) -> bool:
        """Ask the kernel once; return whether it agreed."""
        return kernel_locks.try_lock(self._own, kind, first, count)


def _start_locks_anew() -> None:
    for lock in list(_locks):
        lock.start_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_locks_anew)


class Entered:
    """A context of two calls. Made anew for each use: one that were kept would hold its owner in a circle, and what the
    owner has open until the next collection of garbage.
    """

    __slots__ = ("enter", "leave")

    def __init__(self, enter: Callable[[], None], leave: Callable[[], None]) -> None:
        self.enter, self.leave = enter, leave

    def __enter__(self) -> None:
        self.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()
