"""`AsyncEnvPool`: copies of one environment that don't wait for each other.

Actions are sent and outcomes received by the number of the copy. Each copy keeps the NEXT_STEP autoreset of
`rlruntime.envs.protocol` by itself: the step after its episode ended resets it, and its row isn't ``valid``. Waiting is
left to the kernel: a worker wakes for its order, the owner for the first answer.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import select
import sys
import threading
import time
import traceback
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import numpy as np

from rlruntime.envs import messages
from rlruntime.envs.async_worker import FAILED, ORDER, QUIT, Copies, PlainCopies, reset_order, step_order
from rlruntime.envs.build import import_modules
from rlruntime.envs.process_pool import CLOSE_TIMEOUT_S, START_TIMEOUT_S, split_copies
from rlruntime.envs.protocol import EnvSpaces, StepSlot, VectorEnv
from rlruntime.envs.shared_slot import (
    SharedField,
    SharedLayout,
    map_arrays,
    open_shared_memory,
    plan_shared_layout,
    slot_of,
)
from rlruntime.envs.spaces import EnvLayout
from rlruntime.envs.worker import Build, Prepare
from rlruntime.envs.worker_process import WorkerProcess, abandon_workers
from rlruntime.errors import ConfigError, EnvironmentFault
from rlruntime.spec.training.env import EnvConfig

Workers = Literal["Processes", "Threads"]


class Ready(NamedTuple):
    """Copies whose step or reset is done.

    Attributes:
        ids: ``[n]`` int64, their numbers, in the order in which they got done.
        slot: of all copies, ``[B, ...]``; the rows ``ids`` are whole, and stay so until those copies are sent to again.
    """

    ids: np.ndarray
    slot: StepSlot


class AsyncEnvPool:
    """Copies of one environment in worker processes or threads, each stepped as soon as it has an action.

    Threads suit environments that wait or compute outside of Python's lock; one that hangs there can't be ended, and
    is left to the end of this process.

    Args:
        config: the environment; ``num_workers`` defaults to one worker a copy. Copies of one worker do wait for each
            other. ``step_timeout_seconds`` is what a step or a reset may take, from when it was sent.
        workers: processes, or threads of this process.
        start_timeout_s: seconds a worker may take to import and build its copies; at least ``step_timeout_seconds``.
        copies: how copies are made, such as `rlruntime.transforms.async_copies.TransformedCopies`; as they are by
            default.

    Attributes:
        num_envs: `B`.
        spaces: what the policy sees.

    Raises:
        ConfigError: the environment can't be built or can't be learned from, or workers are to be restarted, which
            this pool doesn't do.
        EnvironmentFault: a worker died or hung at start.
    """

    def __init__(
        self,
        config: EnvConfig,
        *,
        workers: Workers = "Processes",
        start_timeout_s: float = START_TIMEOUT_S,
        copies: Copies | None = None,
    ) -> None:
        if config.restart_workers:
            raise ConfigError(
                "an asynchronous pool does not replace workers",
                field="spec.training.env.restartWorkers",
                value=True,
                remedy="set it to false, or use the ProcessPool",
            )
        if workers not in get_args(Workers):
            raise ValueError(f"workers must be one of {', '.join(get_args(Workers))}, got {workers!r}")
        self.num_envs = config.num_envs
        self.timeout_s = config.step_timeout_seconds
        timeout_s = max(start_timeout_s, config.step_timeout_seconds)
        copies = PlainCopies() if copies is None else copies
        self._engine: _Engine
        if workers == "Processes":
            self._engine = _Processes(config, copies, timeout_s)
        else:
            self._engine = _Threads(config, copies)
        self.spaces: EnvSpaces = self._engine.layout.spaces
        arrays = self._engine.arrays
        self._actions, self._seeds, self._slot = arrays["action"], arrays["seed"], slot_of(arrays, slice(None))
        self._deadlines: dict[int, float] = {}  # by copy under way, the first to be sent first
        self._steps = [0] * self.num_envs
        self._failure: EnvironmentFault | None = None
        self._is_closed = False

    @property
    def num_pending(self) -> int:
        """Copies that are under way: sent to, and not received since."""
        return len(self._deadlines)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers, in the order of their copies; that of this process for threads."""
        return self._engine.pids

    def reset(self, seeds: Sequence[int]) -> None:
        """Begin to reset every copy, copy `i` with ``seeds[i]``; `recv` gives each when its first observation is there.

        Such a row has reward 0 and isn't ``valid``. Copies that are under way are waited for first.

        Raises:
            EnvironmentFault: one of those failed.
        """
        if len(seeds) != self.num_envs:
            raise ValueError(f"{self.num_envs} copies need as many seeds, got {len(seeds)}")
        while self._deadlines:
            self.recv(self.num_envs)
        self._require_healthy()
        self._seeds[:] = seeds
        self._steps = [0] * self.num_envs
        self._post([reset_order(copy) for copy in range(self.num_envs)])

    def send(self, env_ids: np.ndarray | Sequence[int], actions: np.ndarray) -> None:
        """Begin a step of some copies.

        Args:
            env_ids: ``[n]``, numbers of copies that are not under way.
            actions: ``[n, ...]``, theirs.

        Raises:
            ValueError: a copy is under way, or there is no such copy.
            EnvironmentFault: the pool has failed, or a worker takes no orders.
        """
        self._require_healthy()
        ids = env_ids.tolist() if isinstance(env_ids, np.ndarray) else list(env_ids)
        for copy in ids:
            if copy in self._deadlines or not 0 <= copy < self.num_envs:
                raise ValueError(f"copy {copy} is under way" if copy in self._deadlines else f"there is no copy {copy}")
        if len(set(ids)) != len(ids) or len(actions) != len(ids):
            raise ValueError(f"copies {ids} need one action each, got {len(actions)}")
        self._actions[ids] = actions
        for copy in ids:
            self._steps[copy] += 1
        self._post([step_order(copy) for copy in ids])

    def recv(self, min_n: int = 1, timeout_s: float | None = None) -> Ready:
        """Wait until as many copies are done, and return all that are.

        Args:
            min_n: at least so many, or all that are under way where those are fewer.
            timeout_s: the longest wait; what is done by then is returned, be it nothing. None waits for as long as
                the copies' own deadlines allow.

        Raises:
            EnvironmentFault: a copy raised or returned what can't be learned from, or its worker died or did not finish
                in time; it names copy and step and has the worker's traceback. The pool can't be used any more.
        """
        self._require_healthy()
        needed = min(min_n, len(self._deadlines))
        until = None if timeout_s is None else time.monotonic() + timeout_s
        ids: list[int] = []
        try:
            while True:
                now, first, deadline = time.monotonic(), -1, math.inf
                if len(ids) < needed:
                    first, deadline = next(iter(self._deadlines.items()))
                # What is there counts, however late it is taken: it comes before any deadline.
                wait_s = min(deadline, math.inf if until is None else until) - now if first >= 0 else 0.0
                done = self._engine.take(wait_s)
                for copy in done:
                    del self._deadlines[copy]
                ids += done
                if len(ids) >= needed:
                    break
                if not done and now >= deadline:
                    raise self._engine.hung(first, self._words(first), self.timeout_s)
                if not done and until is not None and now >= until:
                    break
        except _WorkerGone as gone:
            copy = next((copy for copy in self._deadlines if copy in gone.copies), gone.copies[0])
            self._failure = gone.worker.died(self._words(copy))
            raise self._failure from None
        except EnvironmentFault as fault:
            self._failure = fault
            raise
        return Ready(np.array(ids, np.int64), self._slot)

    def close(self) -> None:
        """End the workers, within seconds even where one hangs. May be called twice; never raises."""
        if not self._is_closed:
            self._is_closed = True
            self._deadlines.clear()
            self._engine.close()
            del self._actions, self._seeds, self._slot  # unmaps

    def _post(self, orders: list[int]) -> None:
        deadline = time.monotonic() + self.timeout_s
        for order in orders:
            self._deadlines[abs(order) - 1] = deadline
        self._engine.post(orders)

    def _words(self, copy: int) -> str:
        """Return what a copy is doing, for messages."""
        steps = self._steps[copy]
        return f"step {steps} of copy {copy}" if steps else f"reset of copy {copy}"

    def _require_healthy(self) -> None:
        if self._is_closed:
            raise EnvironmentFault("the environment pool is closed")
        if self._failure is not None:
            raise EnvironmentFault("the environment pool has failed before; make a new one") from self._failure


class _WorkerGone(Exception):
    def __init__(self, worker: WorkerProcess) -> None:
        super().__init__()
        self.worker, self.copies = worker, range(worker.first, worker.last)


class _Engine(ABC):
    """What carries out orders.

    Attributes:
        layout: of the environment.
        arrays: actions, seeds and outcomes of all copies by name.
        pids: of the workers.
    """

    layout: EnvLayout
    arrays: dict[str, np.ndarray]
    pids: list[int]

    @abstractmethod
    def post(self, orders: list[int]) -> None:
        """Hand out orders; see `rlruntime.envs.async_worker`."""

    @abstractmethod
    def take(self, timeout_s: float) -> list[int]:
        """Wait that long at most for an answer, and return the copies of all that are there."""

    @abstractmethod
    def hung(self, copy: int, doing: str, timeout_s: float) -> EnvironmentFault:
        """Return the fault for a copy that took too long."""

    @abstractmethod
    def close(self) -> None:
        """End the workers. May be called twice; never raises."""


class _Processes(_Engine):
    def __init__(self, config: EnvConfig, copies: Copies, timeout_s: float) -> None:
        self._workers: list[WorkerProcess] = []
        self._memory_fd = open_shared_memory("rljob-async-envs")
        self._finalizer = weakref.finalize(self, abandon_workers, self._workers, os.getpid())
        self._poller = select.poll()
        self._timeout_s = config.step_timeout_seconds
        try:
            for index, (first, last) in enumerate(split_copies(config.num_envs, config.num_workers or config.num_envs)):
                worker = WorkerProcess(index, first, last, self._memory_fd, module=copies.module)
                self._workers.append(worker)
            self.layout = self._start(config, timeout_s)
        except BaseException:
            self.close()
            raise
        self._by_copy = [worker for worker in self._workers for _ in range(worker.first, worker.last)]
        self._by_descriptor = {worker.sock.fileno(): worker for worker in self._workers}
        for descriptor in self._by_descriptor:
            self._poller.register(descriptor, select.POLLIN)
        self.pids = [worker.process.pid for worker in self._workers]

    def _start(self, config: EnvConfig, timeout_s: float) -> EnvLayout:
        deadline = time.monotonic() + timeout_s
        for worker in self._workers:
            worker.send(messages.PREPARE, Prepare(config.model_dump(), worker.index == 0), timeout_s=timeout_s)
        layout, *_ = [worker.answer("start", deadline, timeout_s) for worker in self._workers]
        shared = _with_seeds(plan_shared_layout(layout.spaces, config.num_envs), config.num_envs)
        os.ftruncate(self._memory_fd, shared.size)
        self.arrays = map_arrays(self._memory_fd, shared)
        for worker in self._workers:
            worker.send(messages.BUILD, Build(layout, shared, worker.first, worker.last), timeout_s=timeout_s)
        for worker in self._workers:
            worker.answer("start", deadline, timeout_s)
        found: EnvLayout = layout
        return found

    def post(self, orders: list[int]) -> None:
        for order in orders:
            worker = self._by_copy[abs(order) - 1]
            try:
                worker.sock.send(ORDER.pack(order))  # a worker is sent no more than its copies have room for
            except BlockingIOError:
                raise worker.hung("take an order", self._timeout_s) from None
            except OSError:
                continue  # it is gone, as `take` will find

    def take(self, timeout_s: float) -> list[int]:
        done: list[int] = []
        for descriptor, _ in self._poller.poll(max(timeout_s, 0.0) * 1000):
            worker = self._by_descriptor[descriptor]
            for _ in range(worker.last - worker.first):
                try:
                    data = worker.sock.recv(ORDER.size)
                except BlockingIOError:
                    break
                except ConnectionError:
                    data = b""
                if not data:
                    raise _WorkerGone(worker)
                (copy,) = ORDER.unpack(data)
                if copy == FAILED:
                    worker.answer("step", time.monotonic() + self._timeout_s, self._timeout_s)  # raises what it says
                done.append(copy)
        return done

    def hung(self, copy: int, doing: str, timeout_s: float) -> EnvironmentFault:
        return self._by_copy[copy].hung(doing, timeout_s)

    def close(self) -> None:
        workers = list(self._workers)
        self._workers.clear()
        for worker in workers:
            with contextlib.suppress(OSError):
                worker.sock.send(ORDER.pack(QUIT))
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for worker in workers:
            if worker.has_ended(deadline):
                worker.reap()
            else:
                worker.kill()
        self._finalizer.detach()
        self.arrays = {}
        memory_fd, self._memory_fd = self._memory_fd, -1
        if memory_fd >= 0:
            os.close(memory_fd)


class _Threads(_Engine):
    def __init__(self, config: EnvConfig, copies: Copies) -> None:
        import_modules(config)
        self.layout = copies.describe(config)
        self.pids = [os.getpid()]
        shared = _with_seeds(plan_shared_layout(self.layout.spaces, config.num_envs), config.num_envs)
        self.arrays = {field.name: np.zeros(field.shape, field.dtype) for field in shared.fields}
        self._envs: list[VectorEnv] = []
        try:
            for copy in range(config.num_envs):
                self._envs.append(copies.make(config, self.layout, copy))
        except BaseException:
            for env in self._envs:
                env.close()
            raise
        self._done: queue.SimpleQueue[int | EnvironmentFault] = queue.SimpleQueue()
        self._orders: list[queue.SimpleQueue[int]] = []  # by copy
        self._threads: list[threading.Thread] = []
        for index, (first, last) in enumerate(split_copies(config.num_envs, config.num_workers or config.num_envs)):
            orders: queue.SimpleQueue[int] = queue.SimpleQueue()
            self._orders += [orders] * (last - first)
            thread = threading.Thread(target=self._serve, args=(orders,), name=f"environment-{index}", daemon=True)
            self._threads += [thread] * (last - first)
            thread.start()

    def post(self, orders: list[int]) -> None:
        for order in orders:
            self._orders[abs(order) - 1].put(order)

    def take(self, timeout_s: float) -> list[int]:
        done: list[int] = []
        with contextlib.suppress(queue.Empty):
            answer = self._done.get(timeout=max(timeout_s, 0.0)) if timeout_s > 0 else self._done.get_nowait()
            while True:
                if isinstance(answer, EnvironmentFault):
                    raise answer
                done.append(answer)
                answer = self._done.get_nowait()
        return done

    def hung(self, copy: int, doing: str, timeout_s: float) -> EnvironmentFault:
        thread = self._threads[copy]
        frame = sys._current_frames().get(thread.ident or 0)
        trace = "" if frame is None else "".join(traceback.format_stack(frame))
        return EnvironmentFault(
            f"the thread {thread.name} did not finish {doing} within {timeout_s:g} s", worker_traceback=trace
        )

    def close(self) -> None:
        for orders in dict.fromkeys(self._orders):
            orders.put(QUIT)
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in dict.fromkeys(self._threads):
            thread.join(max(deadline - time.monotonic(), 0.0))
        for env, thread in zip(self._envs, self._threads, strict=True):
            if not thread.is_alive():
                env.close()
        self._orders, self._threads, self._envs = [], [], []

    def _serve(self, orders: queue.SimpleQueue[int]) -> None:
        envs, actions, seeds = self._envs, self.arrays["action"], self.arrays["seed"]
        slots = [slot_of(self.arrays, slice(copy, copy + 1)) for copy in range(len(envs))]
        while (order := orders.get()) != QUIT:
            copy = abs(order) - 1
            try:
                if order > 0:
                    envs[copy].step(actions[copy : copy + 1], slots[copy])
                else:
                    envs[copy].reset([int(seeds[copy])], slots[copy])
            except EnvironmentFault as fault:
                self._done.put(fault)
            except Exception as error:
                trace = "".join(traceback.format_exception(error))
                self._done.put(
                    EnvironmentFault(f"copy {copy}: {type(error).__name__}: {error}", worker_traceback=trace)
                )
            else:
                self._done.put(copy)


def _with_seeds(shared: SharedLayout, num_envs: int) -> SharedLayout:
    field = SharedField("seed", (num_envs,), "<i8", shared.size)
    return replace(shared, fields=(*shared.fields, field), size=shared.size + 8 * num_envs)
