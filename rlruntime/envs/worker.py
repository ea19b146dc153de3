"""The process of a pool that owns some copies of the environment. Never imports torch.

It answers one message at a time, and steps its copies with the in-process loop straight into shared memory. It ends
when told to, when the socket closes, and when its parent dies. SIGINT and SIGTERM, which a terminal or a supervisor
sends to the whole process group, are left to the parent, which still needs the copies for a last checkpoint.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import traceback
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from rlruntime.envs import messages
from rlruntime.envs.build import import_modules, make_single_env
from rlruntime.envs.faults import UnlearnableFault
from rlruntime.envs.loop import LoopVectorEnv
from rlruntime.envs.make import describe
from rlruntime.envs.protocol import StepSlot
from rlruntime.envs.shared_slot import SharedLayout, map_arrays, slot_of
from rlruntime.envs.spaces import EnvLayout
from rlruntime.errors import ConfigError, EnvironmentFault, one_line

if TYPE_CHECKING:
    from rlruntime.spec.training.env import EnvConfig

TRACE_SIGNAL = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Prepare:
    """First message: the environment, and whether to describe it.

    Attributes:
        config: fields of the `EnvConfig` by their Python names. It travels without its class, since importing pydantic
            would double the time that a worker takes to start.
        describe: whether to answer with its `EnvLayout`, instead of only importing what it needs.
    """

    config: dict[str, Any]
    describe: bool


@dataclass(frozen=True)
class Build:
    """Second message: build copies ``first .. last - 1`` on shared memory."""

    layout: EnvLayout
    shared: SharedLayout
    first: int
    last: int


@dataclass(frozen=True)
class WorkerError:
    """What went wrong in a worker, for its parent.

    Attributes:
        message: one line.
        traceback: the worker's own.
        kind: ``config`` for a `ConfigError`, ``unlearnable`` for an `UnlearnableFault`, else ``fault``.
        config_parts: problem with its value, field and remedy of a `ConfigError`.
    """

    message: str
    traceback: str
    kind: Literal["config", "unlearnable", "fault"] = "fault"
    config_parts: tuple[str, str, str] = ("", "", "")


def main(socket_fd: int, memory_fd: int, trace_fd: int, lifeline_fd: int, parent_pid: int) -> None:
    """Serve until told to quit.

    Args:
        socket_fd: one end of the socket pair.
        memory_fd: shared memory, sized before the second message.
        trace_fd: where the stack goes when the process crashes or is asked for it by SIGUSR1.
        lifeline_fd: a pipe that closes when the parent dies, or -1 where the system ends this process then.
        parent_pid: process id of the parent.
    """
    serve(PoolServer, socket_fd, memory_fd, trace_fd, lifeline_fd, parent_pid)


def serve(
    server: type[Server], socket_fd: int, memory_fd: int, trace_fd: int, lifeline_fd: int, parent_pid: int
) -> None:
    """Run a server in this process until it returns or the parent is gone; see `main` for the arguments."""
    prepare_process(trace_fd, lifeline_fd, parent_pid)
    with socket.socket(fileno=socket_fd) as sock:
        try:
            server(sock, memory_fd).run()
        except (EOFError, OSError):  # the parent is gone or has given up on this worker
            return


class Server:
    """What all workers that own copies do first: prepare and build, as messages say.

    Args:
        sock: to the parent.
        memory_fd: shared memory, sized before the second message.
    """

    def __init__(self, sock: socket.socket, memory_fd: int) -> None:
        self.sock, self.memory_fd = sock, memory_fd
        self._config: EnvConfig | None = None

    @property
    def config(self) -> EnvConfig:
        """The environment, once prepared."""
        assert self._config is not None
        return self._config

    def run(self) -> None:
        """Serve until told to quit."""
        raise NotImplementedError

    def build(self, order: Build) -> tuple[bytes, Any]:
        """Make the copies and return the answer."""
        raise NotImplementedError

    def handle(self, kind: bytes, value: Any) -> tuple[bytes, Any]:
        """Return the answer to a message."""
        if kind == messages.PREPARE:
            return self._prepare(value)
        assert kind == messages.BUILD
        return self.build(value)

    def answer_until(self, last: bytes) -> bool:
        """Answer messages up to one of the kind ``last``; return False where told to quit before."""
        while True:
            kind, value = messages.receive(self.sock)
            if kind == messages.QUIT:
                return False
            try:
                answer = self.handle(kind, value)
            except Exception as error:
                messages.send(self.sock, messages.ERROR, to_worker_error(error))
            else:
                messages.send(self.sock, *answer)
                if kind == last:
                    return True

    def read_config(self, fields: dict[str, Any]) -> EnvConfig:
        """Return what serves as the config here: the same attributes, without the class."""
        wrappers = tuple(SimpleNamespace(**wrapper) for wrapper in fields["wrappers"])
        return cast("EnvConfig", SimpleNamespace(**{**fields, "wrappers": wrappers}))

    def describe(self) -> EnvLayout:
        """Return what the policy sees of the environment."""
        return describe(self.config)

    def _prepare(self, order: Prepare) -> tuple[bytes, Any]:
        self._config = self.read_config(order.config)
        import_modules(self._config)
        return messages.VALUE, self.describe() if order.describe else None


class PoolServer(Server):
    """Steps its copies together."""

    def __init__(self, sock: socket.socket, memory_fd: int) -> None:
        super().__init__(sock, memory_fd)
        self._env: LoopVectorEnv | None = None
        self._actions = np.zeros(0)
        self._slot: StepSlot | None = None

    def run(self) -> None:
        try:
            self.answer_until(messages.QUIT)
        finally:
            if self._env is not None:
                self._env.close()

    def handle(self, kind: bytes, value: Any) -> tuple[bytes, Any]:
        if kind == messages.STEP:
            assert self._env is not None
            assert self._slot is not None
            self._env.step(self._actions, self._slot)
            return messages.DONE, None
        if kind == messages.RESET:
            assert self._env is not None
            assert self._slot is not None
            self._env.reset(value, self._slot)
            return messages.DONE, None
        if kind in (messages.PREPARE, messages.BUILD):
            return super().handle(kind, value)
        assert self._env is not None
        if kind == messages.SNAPSHOT:
            return messages.VALUE, self._env.snapshot()
        assert kind == messages.RESTORE
        self._env.restore(value)
        return messages.DONE, None

    def build(self, order: Build) -> tuple[bytes, Any]:
        arrays = map_arrays(self.memory_fd, order.shared)
        rows = slice(order.first, order.last)
        self._actions, self._slot = arrays["action"][rows], slot_of(arrays, rows)
        make = partial(make_single_env, self.config)
        self._env = LoopVectorEnv(make, order.layout, order.last - order.first, first_copy=order.first)
        return messages.DONE, None


def to_worker_error(error: Exception) -> WorkerError:
    """Return what a worker tells its parent of an exception."""
    if isinstance(error, ConfigError):
        return WorkerError(str(error), "", "config", (_problem(error), error.field, error.remedy))
    if isinstance(error, UnlearnableFault):
        return WorkerError(str(error), error.worker_traceback, "unlearnable")
    if isinstance(error, EnvironmentFault):
        return WorkerError(str(error), error.worker_traceback)
    return WorkerError(f"{type(error).__name__}: {error}", traceback.format_exc())


def _problem(error: ConfigError) -> str:
    """Return the error's line without its field and remedy: the problem and the value."""
    hint = f"; {error.remedy}" if error.remedy else ""
    return str(error).removeprefix(f"{error.field}: ").removesuffix(one_line(hint))


def prepare_process(trace_fd: int, lifeline_fd: int, parent_pid: int) -> None:
    """Leave the terminal's signals to the parent, tell of crashes, and end when the parent does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave_to_parent)  # a handler, for ignored signals would be inherited by child processes
    faulthandler.enable(file=trace_fd, all_threads=False)
    # Its parent asks for the stack of a worker that hangs: written, whatever it is in, and then the signal ends it.
    faulthandler.register(TRACE_SIGNAL, file=trace_fd, all_threads=False, chain=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))  # the parent blocked them for the start
    if lifeline_fd >= 0:
        threading.Thread(target=_die_with, args=(lifeline_fd,), name="lifeline", daemon=True).start()
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent_pid:  # it died before the line above
        os._exit(1)


def _leave_to_parent(_number: int, _frame: Any) -> None:
    """Do nothing."""


def _die_with(lifeline_fd: int) -> None:
    os.read(lifeline_fd, 1)
    os._exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:6]))
