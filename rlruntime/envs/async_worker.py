"""The process of an asynchronous pool: it owns some copies, and steps each as soon as that is asked for. Never imports
torch.

It is prepared and built as a worker of the process pool is. From then on orders and answers are numbers of four bytes,
and actions, seeds and outcomes lie in shared memory.
"""

from __future__ import annotations

import socket
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlruntime.envs import messages
from rlruntime.envs.build import make_single_env
from rlruntime.envs.loop import LoopVectorEnv
from rlruntime.envs.make import describe
from rlruntime.envs.protocol import StepSlot, VectorEnv
from rlruntime.envs.shared_slot import map_arrays, slot_of
from rlruntime.envs.spaces import EnvLayout
from rlruntime.envs.worker import Build, Server, serve, to_worker_error

if TYPE_CHECKING:
    from rlruntime.spec.training.env import EnvConfig

ORDER = struct.Struct("=i")
QUIT = 0
FAILED = -1
_CHUNK = 4096


def step_order(copy: int) -> int:
    """Return the order to step this copy with its action in shared memory."""
    return copy + 1


def reset_order(copy: int) -> int:
    """Return the order to reset this copy with its seed in shared memory."""
    return -(copy + 1)


class Copies(Protocol):
    """How single copies of an environment are made, in a thread of the pool's process or in a worker process.

    Attributes:
        module: that runs in a worker process.
    """

    module: str

    def describe(self, config: EnvConfig) -> EnvLayout:
        """Return what the policy sees of a copy."""

    def make(self, config: EnvConfig, layout: EnvLayout, copy: int) -> VectorEnv:
        """Return a vector environment of one copy."""


class PlainCopies:
    """Copies as they are."""

    module = __name__

    def describe(self, config: EnvConfig) -> EnvLayout:
        """See `Copies`."""
        return describe(config)

    def make(self, config: EnvConfig, layout: EnvLayout, copy: int) -> VectorEnv:
        """See `Copies`."""
        return LoopVectorEnv(partial(make_single_env, config), layout, 1, first_copy=copy)


class AsyncServer(Server):
    """Steps copies one by one, in the order in which that was asked for."""

    copies: Copies = PlainCopies()

    def __init__(self, sock: socket.socket, memory_fd: int) -> None:
        super().__init__(sock, memory_fd)
        self._envs: list[VectorEnv] = []
        self._slots: list[StepSlot] = []
        self._first = 0
        self._actions = self._seeds = np.zeros(0)

    def run(self) -> None:
        try:
            if self.answer_until(messages.BUILD):
                self._follow_orders()
        finally:
            for env in self._envs:
                env.close()

    def build(self, order: Build) -> tuple[bytes, Any]:
        arrays = map_arrays(self.memory_fd, order.shared)
        self._actions, self._seeds, self._first = arrays["action"], arrays["seed"], order.first
        for copy in range(order.first, order.last):
            self._slots.append(slot_of(arrays, slice(copy, copy + 1)))
            self._envs.append(self.copies.make(self.config, order.layout, copy))
        return messages.DONE, None

    def describe(self) -> EnvLayout:
        return self.copies.describe(self.config)

    def _follow_orders(self) -> None:
        sock, rest = self.sock, b""
        while True:
            data = sock.recv(_CHUNK)
            if not data:
                raise EOFError("the parent is gone")
            data = rest + data
            whole = len(data) - len(data) % ORDER.size
            for (order,) in ORDER.iter_unpack(data[:whole]):
                if order == QUIT:
                    return
                copy = abs(order) - 1
                try:
                    self._carry_out(order, copy)
                except Exception as error:
                    sock.sendall(ORDER.pack(FAILED))
                    messages.send(sock, messages.ERROR, to_worker_error(error))
                    return
                sock.sendall(ORDER.pack(copy))
            rest = data[whole:]

    def _carry_out(self, order: int, copy: int) -> None:
        env, slot = self._envs[copy - self._first], self._slots[copy - self._first]
        if order > 0:
            env.step(self._actions[copy : copy + 1], slot)
        else:
            env.reset([int(self._seeds[copy])], slot)


def main(socket_fd: int, memory_fd: int, trace_fd: int, lifeline_fd: int, parent_pid: int) -> None:
    """Serve until told to quit; see `rlruntime.envs.worker.main`."""
    serve(AsyncServer, socket_fd, memory_fd, trace_fd, lifeline_fd, parent_pid)
