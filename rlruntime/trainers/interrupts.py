"""SIGINT and SIGTERM: stop at the next phase boundary, or within the grace period whatever the main thread does.

Python runs a signal's handler between two bytecodes of the main thread, so one that is blocked inside a C call would
never notice. The C-level handler writes the signal's number into a pipe at once; a watcher thread reads it there and
keeps the deadline. (A C call that holds the interpreter's lock blocks the watcher too.)
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any, Self

from rlruntime.trainers.fork import in_forked_children

_CLOSE = 0  # no signal has this number
_REPEAT_AFTER_S = 0.2  # a launcher may forward the terminal's SIGINT a second time; a person takes longer
_JOIN_S = 2.0

_active: weakref.WeakSet[InterruptGuard] = weakref.WeakSet()


class InterruptGuard:
    """Context manager around a training loop.

    The loop looks at ``requested`` at its phase boundaries. When it is a signal number, the loop calls
    ``acknowledge()``, writes its state and leaves. If it has done neither ``grace_s`` after the signal,
    ``on_deadline(signum)`` runs in a thread of its own (it should write the snapshot of the last boundary), and the
    process ends with ``exit_code`` once that returns, raises, or has taken ``write_s``. A second SIGINT moves the
    deadline to now; a further one, or one after ``acknowledge``, ends the process at once.

    Outside the main thread nothing is installed, and ``requested`` stays None.

    Args:
        on_deadline: called at most once, never in the main thread.
        grace_s: seconds between a signal and ``on_deadline``.
        write_s: most seconds that ``on_deadline`` may take.
        signals: which signals ask to stop.
    """

    def __init__(
        self,
        on_deadline: Callable[[int], None],
        *,
        grace_s: float = 3.0,
        write_s: float = 1.5,
        signals: Iterable[int] = (signal.SIGINT, signal.SIGTERM),
    ) -> None:
        self.requested: int | None = None
        self._on_deadline = on_deadline
        self._grace_s = grace_s
        self._write_s = write_s
        self._signals = tuple(signals)
        self._lock = threading.Lock()
        self._acknowledged = False
        self._left = False
        self._fired = False
        self._old_handlers: dict[int, Any] = {}
        self._old_wakeup = -1
        self._read_end = self._write_end = -1
        self._watcher: threading.Thread | None = None

    @property
    def exit_code(self) -> int:
        """What the process should exit with: 130 after SIGINT, 143 after SIGTERM, 0 without a signal."""
        return 128 + self.requested if self.requested is not None else 0

    def acknowledge(self) -> None:
        """Say that a boundary was reached: the deadline no longer ends the process while the loop writes its state."""
        with self._lock:
            if not self._fired:
                self._acknowledged = True
                return
        self._wait_for_exit()

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._old_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, name="rljob-interrupts", daemon=True)
        self._watcher.start()
        for signum in self._signals:
            self._old_handlers[signum] = signal.signal(signum, self._handle)
        in_forked_children(_forget_in_child)
        _active.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._watcher is None:
            return
        with self._lock:
            self._left = True
            fired = self._fired
        if fired:
            self._wait_for_exit()
        _active.discard(self)
        self._restore_signals()
        os.write(self._write_end, bytes([_CLOSE]))
        self._watcher.join(_JOIN_S)
        self._watcher = None
        os.close(self._write_end)
        os.close(self._read_end)

    def _restore_signals(self) -> None:
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._old_wakeup)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.requested is None:
            self.requested = signum

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._read_end, select.POLLIN)
        first_s = 0.0
        deadline_s: float | None = None
        while True:
            timeout_ms = None if deadline_s is None else max(0, math.ceil((deadline_s - time.monotonic()) * 1000))
            numbers = os.read(self._read_end, 64) if poller.poll(timeout_ms) else b""
            now_s = time.monotonic()
            for number in numbers:
                if number == _CLOSE:
                    return
                if number not in self._signals:
                    continue
                if not first_s:
                    self.requested = self.requested or number
                    first_s, deadline_s = now_s, now_s + self._grace_s
                elif number == signal.SIGINT and now_s - first_s >= _REPEAT_AFTER_S:
                    deadline_s = now_s
                    if self._acknowledged:
                        os._exit(self.exit_code)
            if deadline_s is not None and now_s >= deadline_s:
                deadline_s = None
                self._fire(poller)

    def _fire(self, poller: select.poll) -> None:
        """Run ``on_deadline`` and end the process, unless the loop reached a boundary in time."""
        with self._lock:
            if self._acknowledged or self._left:
                return
            self._fired = True
        signum = self.requested or signal.SIGTERM
        writer = threading.Thread(target=self._on_deadline, args=(signum,), name="rljob-deadline", daemon=True)
        writer.start()
        until_s = time.monotonic() + self._write_s
        while writer.is_alive() and time.monotonic() < until_s:
            writer.join(0.02)
            if poller.poll(0) and signal.SIGINT in os.read(self._read_end, 64):
                break
        os._exit(128 + signum)

    def _wait_for_exit(self) -> None:
        """The watcher is ending the process; let it, and see that it does."""
        time.sleep(self._write_s + _JOIN_S)
        os._exit(self.exit_code)


def _forget_in_child() -> None:
    """A forked child must not write its signals into the parent's pipe, nor keep the parent's handlers."""
    for guard in list(_active):
        with contextlib.suppress(ValueError, OSError):
            signal.set_wakeup_fd(-1)
            guard._old_wakeup = -1
            guard._restore_signals()
    _active.clear()
