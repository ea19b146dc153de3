"""Who may read and write when: many readers, or one writer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from rlruntime.errors import EXIT_TRY_AGAIN, RLJobError

LOCK_TIMEOUT_S = 120.0


class LockTimeoutError(RLJobError):
    """Another thread or process held the rows for longer than the deadline."""

    exit_code = EXIT_TRY_AGAIN


class ThreadLock:
    """Lets many threads read, or one write. A thread may enter again what it is in, and may read where it writes."""

    def __init__(self, timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._changed = threading.Condition(threading.Lock())
        self._num_readers = 0
        self._writer = 0
        self._depth = 0
        self.reading = _Side(self.enter_reading, self.leave_reading)
        self.writing = _Side(self.enter_writing, self.leave_writing)

    def enter_reading(self) -> None:
        """Wait until nobody else writes.

        Raises:
            LockTimeoutError: somebody writes for longer than the deadline.
        """
        with self._changed:
            if self._writer == threading.get_ident():
                self._depth += 1
                return
            if self._writer:
                self._wait(writers_only=True)
            self._num_readers += 1

    def leave_reading(self) -> None:
        """End what `enter_reading` began."""
        with self._changed:
            if self._writer == threading.get_ident():
                self._depth -= 1
                return
            self._num_readers -= 1
            if not self._num_readers:
                self._changed.notify_all()

    def enter_writing(self) -> None:
        """Wait until nobody else reads or writes.

        Raises:
            LockTimeoutError: somebody does for longer than the deadline.
        """
        with self._changed:
            if self._writer != threading.get_ident():
                if self._writer or self._num_readers:
                    self._wait(writers_only=False)
                self._writer = threading.get_ident()
            self._depth += 1

    def leave_writing(self) -> None:
        """End what `enter_writing` began."""
        with self._changed:
            self._depth -= 1
            if not self._depth:
                self._writer = 0
                self._changed.notify_all()

    def _wait(self, *, writers_only: bool) -> None:
        deadline = time.monotonic() + self.timeout_s
        while self._writer or (self._num_readers and not writers_only):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise LockTimeoutError(f"another thread held the rows for {self.timeout_s:g} s")
            self._changed.wait(left_s)


class _Side:
    """One of the two ways to enter, as a context; made once, since it is entered for every batch."""

    __slots__ = ("_enter", "_leave")

    def __init__(self, enter: Callable[[], None], leave: Callable[[], None]) -> None:
        self._enter, self._leave = enter, leave

    def __enter__(self) -> None:
        self._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()
