"""The pool's end of one worker: starting it, talking to it within deadlines, and saying how it died."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rlruntime.envs import messages
from rlruntime.envs.faults import UnlearnableFault
from rlruntime.envs.shared_slot import open_shared_memory
from rlruntime.envs.worker import TRACE_SIGNAL, WorkerError
from rlruntime.errors import ConfigError, EnvironmentFault

_TRACE_WAIT_S = 2.0
_REAP_WAIT_S = 2.0
_BARE_STACK = "(most recent call first):"
_LONGEST_GAP_S = 60.0
_CODE = (
    "import importlib, json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "importlib.import_module(sys.argv[2]).main(*map(int, sys.argv[3:]))"
)
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerProcess:
    """One worker process that owns copies ``first .. last - 1``.

    Args:
        index: number of the worker.
        first: index of its first copy.
        last: one more than the index of its last copy.
        memory_fd: descriptor of the shared memory.
        module: whose ``main`` runs in the process; see `rlruntime.envs.worker.main` for its first arguments.
        title: how messages call it.
        descriptors: more that it inherits; their numbers are the further arguments of ``main``. They stay the caller's.

    Attributes:
        proven: whether it has finished a step since it started.
    """

    def __init__(
        self,
        index: int,
        first: int,
        last: int,
        memory_fd: int,
        *,
        module: str = "rlruntime.envs.worker",
        title: str = "environment worker",
        descriptors: Sequence[int] = (),
    ) -> None:
        self.index, self.first, self.last = index, first, last
        self.proven = False
        self._module, self._title = module, title
        self._trace_fd = open_shared_memory(f"rljob-worker-{index}")
        self._lifeline = -1
        ours, theirs = socket.socketpair()
        self.sock = ours
        self.sock.setblocking(False)
        try:
            with theirs:
                self.process = self._start(theirs.fileno(), memory_fd, descriptors)
        except BaseException:
            self._close_descriptors()
            raise

    @property
    def words(self) -> str:
        """Return how messages name this worker."""
        copies = f"copies {self.first}-{self.last - 1}" if self.last - self.first > 1 else f"copy {self.first}"
        return f"{self._title} {self.index} (pid {self.process.pid}, {copies})"

    def send(self, kind: bytes, value: Any = None, *, timeout_s: float) -> None:
        """Send a message; a worker that is gone is noticed by `answer`.

        Raises:
            EnvironmentFault: it takes nothing for ``timeout_s``.
        """
        try:
            messages.send(self.sock, kind, value, deadline=time.monotonic() + timeout_s)
        except messages.DeadlineExceededError:
            raise self.hung("take a message", timeout_s) from None
        except OSError:
            return

    def answer(self, doing: str, deadline: float, timeout_s: float) -> Any:
        """Return the value of the answer, None for most.

        Args:
            doing: what it was asked for, in a word.
            deadline: time of `time.monotonic` in seconds.
            timeout_s: what the deadline was made from, for the message.

        Raises:
            EnvironmentFault: it died, hung (and was killed), or its environment failed.
            ConfigError: its environment can't be built.
        """
        try:
            kind, value = messages.receive(self.sock, deadline=deadline)
        except EOFError:
            raise self.died(doing) from None
        except messages.DeadlineExceededError:
            raise self.hung(doing, timeout_s) from None
        if kind == messages.ERROR:
            raise to_exception(value)
        return value

    def has_ended(self, deadline: float) -> bool:
        """Wait until the worker's end of the socket closes, which it does when the process ends."""
        try:
            messages.skip_to_end(self.sock, deadline)  # answers that nobody waits for any more
        except messages.DeadlineExceededError:
            return False
        except OSError:
            return True
        return True

    def kill(self) -> None:
        """End the process at once and free what belongs to it. May be called twice; never raises."""
        with contextlib.suppress(OSError):
            self.process.kill()
        self.reap()

    def reap(self) -> None:
        """Take the exit status of a process that was killed or told to quit, and free what belongs to it."""
        try:
            self.process.wait(timeout=_REAP_WAIT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=_REAP_WAIT_S)
        self._close_descriptors()

    def _start(self, socket_fd: int, memory_fd: int, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
        # The kernel ends a child when the *thread* that started it ends, so only the main thread may rely on that.
        by_kernel = sys.platform == "linux" and threading.current_thread() is threading.main_thread()
        lifeline_theirs = -1
        if not by_kernel:
            lifeline_theirs, self._lifeline = os.pipe()
        numbers = (socket_fd, memory_fd, self._trace_fd, lifeline_theirs, os.getpid(), *descriptors)
        path = [os.path.abspath(entry) if entry == "" else entry for entry in sys.path]
        command = [sys.executable, "-c", _CODE, json.dumps(path), self._module, *map(str, numbers)]
        environment = {**dict.fromkeys(_ONE_THREAD, "1"), **os.environ}
        # Blocked until the worker has its handlers, so that Ctrl-C in between doesn't kill it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[fd for fd in (*numbers[:4], *descriptors) if fd >= 0],
                env=environment,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if lifeline_theirs >= 0:
                os.close(lifeline_theirs)

    def died(self, doing: str) -> EnvironmentFault:
        """Return the fault for a worker whose connection ended, with how its process did."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=_REAP_WAIT_S)
        code = self.process.returncode
        trace = self._trace()
        if code is None:
            how = "closed its connection"
        elif code < 0:
            how = f"was killed by {_signal_name(-code)}"
            how += " (out of memory?)" if -code == signal.SIGKILL else ""
        else:
            how = f"exited with code {code}"
        first = trace.partition("\n")[0]
        says_why = first and not first.endswith(_BARE_STACK)  # such as "Fatal Python error: Segmentation fault"
        return EnvironmentFault(
            f"{self.words} {how} during {doing}{f': {first}' if says_why else ''}", worker_traceback=trace
        )

    def hung(self, doing: str, timeout_s: float) -> EnvironmentFault:
        """Return the fault for a worker that took too long, with its stack, and kill it."""
        with contextlib.suppress(OSError):
            self.process.send_signal(TRACE_SIGNAL)  # its stack is written even from within C code, then it ends
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=_TRACE_WAIT_S)
        trace, words = self._trace(), self.words
        self.kill()
        return EnvironmentFault(
            f"{words} did not finish {doing} within {timeout_s:g} s and was killed", worker_traceback=trace
        )

    def _trace(self) -> str:
        if self._trace_fd < 0:
            return ""
        size = os.fstat(self._trace_fd).st_size
        return os.pread(self._trace_fd, size, 0).decode(errors="replace")

    def _close_descriptors(self) -> None:
        self.sock.close()
        for name in ("_trace_fd", "_lifeline"):
            descriptor = getattr(self, name)
            setattr(self, name, -1)
            if descriptor >= 0:
                os.close(descriptor)


class Idleness:
    """For how long a process has used no processor time, as one that hangs.

    What passes between two questions counts as a minute at most: all processes may have been stopped meanwhile.

    Args:
        pid: of the process.
        clock: seconds, monotonic.
        processor: returns the seconds of processor time that it has used, or None where nobody says.
    """

    def __init__(
        self,
        pid: int,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[int], float | None] | None = None,
    ) -> None:
        self._pid, self._clock, self._processor = pid, clock, processor or processor_s
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._used_s, self._asked_s, self._idle_s = self._processor(self._pid), self._clock(), 0.0

    def seconds(self) -> float:
        """Return for how long; 0 where nobody says."""
        used_s, now_s = self._processor(self._pid), self._clock()
        passed_s = min(_LONGEST_GAP_S, now_s - self._asked_s)
        self._idle_s = 0.0 if used_s is None or used_s != self._used_s else self._idle_s + passed_s
        self._used_s, self._asked_s = used_s, now_s
        return self._idle_s


def processor_s(pid: int) -> float | None:
    """Return the seconds of processor time that a process has used; None where nobody says, as Linux does."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # its name may hold anything
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def to_exception(error: WorkerError) -> Exception:
    """Return the exception that a worker spoke of."""
    if error.kind == "config":
        problem, field, remedy = error.config_parts
        return ConfigError(problem, field=field, remedy=remedy)
    cls = UnlearnableFault if error.kind == "unlearnable" else EnvironmentFault
    return cls(error.message, worker_traceback=error.traceback)


def abandon_workers(workers: list[WorkerProcess], owner_pid: int) -> None:
    """Kill workers whose owner was dropped without ``close``, or whose interpreter ends; for `weakref.finalize`."""
    if os.getpid() == owner_pid:
        for worker in workers:
            worker.kill()
