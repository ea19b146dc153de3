"""The owner's end of a collector's worker processes: starting them, giving orders, and seeing to it that none hangs."""

from __future__ import annotations

import contextlib
import copy
import mmap
import os
import pickle
import select
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch

from rlruntime.collectors.rollout import Rollout
from rlruntime.collectors.shared import CUT_SHORT, PAUSE, PAUSED, RUN, Control, SharedRollouts
from rlruntime.collectors.worker import ANSWER, ASK, COLLECT, DONE, FAILED, ORDER, QUIT, REPORT, WorkerPlan, weights_of
from rlruntime.envs import messages
from rlruntime.envs.process_pool import CLOSE_TIMEOUT_S, split_copies, usable_cores
from rlruntime.envs.shared_slot import open_shared_memory
from rlruntime.envs.worker_process import WorkerProcess, abandon_workers
from rlruntime.errors import ConfigError, EnvironmentFault
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.env import EnvConfig
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.mapped import MappedStorage, MemoryMappedStorage, SharedTensorStorage
from rlruntime.weights.manifest import ModuleState
from rlruntime.weights.protocol import WeightSyncError
from rlruntime.weights.schemes.pipe import PipePublisher
from rlruntime.weights.schemes.remote import RemotePublisher
from rlruntime.weights.schemes.shared_memory import SharedMemoryPublisher

Scheme = Literal["SharedMemory", "Pipe"]
_LOOKS_PER_TIMEOUT = 8


class Report(NamedTuple):
    """What a worker says of a rollout that it filled.

    Attributes:
        worker: its number.
        rollout: number of the rollout.
        version: of the weights that acted.
        num_valid: valid rows.
        num_written: rows that went into the replay buffer.
        env_s, policy_s, sync_s, write_s: seconds.
    """

    worker: int
    rollout: int
    version: int
    num_valid: int
    num_written: int
    env_s: float
    policy_s: float
    sync_s: float
    write_s: float


@dataclass
class _Followed:
    """A policy whose weights some workers follow."""

    policy: Policy
    weights: ModuleState
    publisher: RemotePublisher


class CollectionWorkers:
    """Worker processes, their shared rollouts and their weights.

    Args:
        env: of all copies; each worker has an even part of them.
        policy: that workers act with, each with a copy of its own; or what returns that of a worker by its number.
        num_workers: processes; by default the usable cores, at most ``env.num_envs``.
        num_steps: `T`.
        num_rollouts: shared rollouts.
        seed: of the job.
        weights: the scheme.
        start_timeout_s: seconds a worker may take to start and to take over weights.
        worker_device: where copies of the policy act.
        buffer: that workers write into; its storage is shared.

    Raises:
        ConfigError: environment, policy or buffer can't be had in another process.
        EnvironmentFault: a worker died or hung at start.
    """

    def __init__(
        self,
        env: EnvConfig,
        policy: Policy | Callable[[int], Policy],
        *,
        num_workers: int | None,
        num_steps: int,
        num_rollouts: int,
        seed: int,
        weights: Scheme,
        start_timeout_s: float,
        worker_device: str = "cpu",
        buffer: ReplayBuffer | None = None,
    ) -> None:
        bounds = split_copies(env.num_envs, num_workers or usable_cores())
        self.timeout_s, self._start_timeout_s = env.step_timeout_seconds, start_timeout_s
        self._failure: EnvironmentFault | None = None
        self._is_closed = False
        self._shared: SharedRollouts | None = None
        self._steps = 0
        self.workers: list[WorkerProcess] = []
        self._followed: list[_Followed] = []
        self._memory_fd = open_shared_memory("rljob-rollouts")
        self._finalizer = weakref.finalize(self, abandon_workers, self.workers, os.getpid())
        policies = [policy(index) if not isinstance(policy, Policy) else policy for index in range(len(bounds))]
        self.policy = policies[0]
        map_rollouts = partial(
            SharedRollouts,
            self.policy.spaces,
            self.policy.distribution,
            self.policy.state_shapes,
            num_steps=num_steps,
            num_envs=env.num_envs,
            num_rollouts=num_rollouts,
            num_workers=len(bounds),
        )
        try:
            kept = _sharing(buffer)
            size = map_rollouts().size
            os.ftruncate(self._memory_fd, size)
            self._shared = map_rollouts(memory=mmap.mmap(self._memory_fd, size))
            self._follows = [self._follow(one, weights, start_timeout_s) for one in policies]
            for index, (first, last) in enumerate(bounds):
                self._start_worker(index, first, last, weights, kept)
            for index, (worker, one) in enumerate(zip(self.workers, policies, strict=True)):
                plan = WorkerPlan(
                    env=env,
                    policy=pickled(one),
                    device=worker_device,
                    index=index,
                    first=worker.first,
                    last=worker.last,
                    num_steps=num_steps,
                    num_rollouts=num_rollouts,
                    num_workers=len(bounds),
                    seed=seed,
                    timeout_s=start_timeout_s,
                    buffer=None if kept is None else kept.attach,
                )
                worker.send(messages.VALUE, plan, timeout_s=start_timeout_s)
            deadline = time.monotonic() + start_timeout_s
            for worker in self.workers:
                worker.answer("start", deadline, start_timeout_s)
        except BaseException:
            self.close()
            raise
        count = len(self.workers)
        self._orders: list[deque[int]] = [deque() for _ in range(count)]  # rollouts that each worker is to fill
        self._targets = [0] * count  # version that each worker's weights must have
        self._seen = [(0, 0.0)] * count  # progress of each worker, and when it was new
        self._poller = select.poll()
        self._by_descriptor = {worker.sock.fileno(): worker.index for worker in self.workers}
        for descriptor in self._by_descriptor:
            self._poller.register(descriptor, select.POLLIN)
        self.publish()

    @property
    def rollouts(self) -> list[Rollout]:
        """The shared rollouts; none once closed."""
        return [] if self._shared is None else self._shared.rollouts

    @property
    def steps(self) -> int:
        """Steps of single copies that were taken."""
        return self._steps + sum(control.steps for control in self._control)

    @property
    def newest_version(self) -> int:
        """The last version that was published, the greatest where workers follow several policies."""
        return max(followed.publisher.version for followed in self._followed)

    def version(self, worker: int) -> int:
        """Return the last version that was published for this worker."""
        return self._follows[worker].publisher.version

    def num_orders(self, worker: int) -> int:
        """Return how many orders of this worker are not yet reported."""
        return len(self._orders[worker])

    def publish(self, workers: Sequence[int] | None = None) -> int:
        """Make the policies' present weights those of some workers' next orders, of all by default.

        Returns:
            the version, the greatest where workers follow several policies.

        Raises:
            WeightSyncError: a worker could not be reached, or took over no weights before.
            EnvironmentFault: a worker is gone.
        """
        self.require_healthy()
        addressed = range(len(self.workers)) if workers is None else workers
        for followed in self._followed:
            members = [index for index in addressed if self._follows[index] is followed]
            if members:
                try:
                    version = followed.publisher.publish({"policy": followed.weights}).version
                except WeightSyncError:
                    self._raise_if_dead()
                    raise
                for index in members:
                    self._targets[index] = version
        return self.newest_version

    def order(self, worker: int, rollout: int, *, at_random: bool) -> None:
        """Let a worker fill its columns of a rollout, after what it was told before."""
        self.require_healthy()
        if not self._orders[worker]:
            self._seen[worker] = (-1, time.monotonic())
        self._orders[worker].append(rollout)
        target = self._targets[worker]
        takes_newest = target == self._follows[worker].publisher.version
        self._send(worker, ORDER.pack(COLLECT, rollout, target, takes_newest, at_random))

    def reports(self, timeout_s: float | None = None) -> list[Report]:
        """Wait for the first report, and return all that are there.

        Args:
            timeout_s: the longest wait; None waits as long as workers make progress.

        Raises:
            EnvironmentFault: a worker raised, died, or made no progress for the environment's ``step_timeout_seconds``;
                it names the worker and its copies, and has its traceback.
        """
        self.require_healthy()
        until = None if timeout_s is None else time.monotonic() + timeout_s
        wait_s = 0.0  # what is there already counts, however late it is read
        try:
            while True:
                events = self._poller.poll(wait_s * 1000)
                if events:
                    return [self._read(self._by_descriptor[descriptor]) for descriptor, _ in events]
                now = time.monotonic()
                if until is not None and now >= until:
                    return []
                self._require_progress(now)
                wait_s = self.timeout_s / _LOOKS_PER_TIMEOUT
                if until is not None:
                    wait_s = min(wait_s, until - now)
        except EnvironmentFault as fault:
            self._failure = fault
            raise

    def cut_short(self, workers: Sequence[int]) -> None:
        """Let workers end their rollout before the next step."""
        for worker in workers:
            self._control[worker].told = CUT_SHORT

    def go_on(self) -> None:
        """Take back `cut_short` and `pause`."""
        for control in self._control:
            control.told = RUN

    def pause(self) -> list[Report]:
        """Return once no worker steps, with the reports that came meanwhile.

        Raises:
            EnvironmentFault: as `reports` does.
        """
        for control in self._control:
            control.told = PAUSE
        came: list[Report] = []
        while any(
            orders and control.state != PAUSED for orders, control in zip(self._orders, self._control, strict=True)
        ):
            came += self.reports(0.005)
        return came

    def ask_all(self, name: str, arguments: Sequence[Any] | None = None) -> list[Any]:
        """Ask every worker, none of which has orders, for something else than rollouts, and return the answers.

        Raises:
            EnvironmentFault: a worker raised, died or took longer than ``start_timeout_s``.
        """
        self.require_healthy()
        if any(self._orders):
            raise RuntimeError("workers are collecting")
        timeout_s = self._start_timeout_s
        deadline = time.monotonic() + timeout_s
        try:
            for index, worker in enumerate(self.workers):
                self._send(index, ASK)
                worker.send(
                    messages.VALUE, (name, None if arguments is None else arguments[index]), timeout_s=timeout_s
                )
            answers = []
            for worker in self.workers:
                self._read_kind(worker, name, deadline)
                answers.append(worker.answer(name, deadline, timeout_s))
        except EnvironmentFault as fault:
            self._failure = fault
            raise
        return answers

    def close(self) -> None:
        """End the workers, within seconds even where one hangs. May be called twice; never raises."""
        self._is_closed = True
        workers = list(self.workers)
        self.workers.clear()
        self.cut_short(range(len(self._control)))
        for worker in workers:
            with contextlib.suppress(OSError):
                worker.sock.send(QUIT)
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for worker in workers:
            if worker.has_ended(deadline):
                worker.reap()
            else:
                worker.kill()
        for followed in self._followed:
            followed.publisher.close()
        self._steps, self._shared = self.steps, None  # unmaps, once nobody has a rollout any more
        self._finalizer.detach()
        memory_fd, self._memory_fd = self._memory_fd, -1
        if memory_fd >= 0:
            os.close(memory_fd)

    @property
    def _control(self) -> list[Control]:
        return [] if self._shared is None else self._shared.control

    def require_healthy(self) -> None:
        """Raise an `EnvironmentFault` where the workers are closed or one has failed."""
        if self._is_closed:
            raise EnvironmentFault("the collector is closed")
        if self._failure is not None:
            raise EnvironmentFault("the collector has failed before; make a new one") from self._failure

    def _follow(self, policy: Policy, weights: Scheme, timeout_s: float) -> _Followed:
        for followed in self._followed:
            if followed.policy is policy:
                return followed
        make = SharedMemoryPublisher if weights == "SharedMemory" else PipePublisher
        state = weights_of(policy)
        self._followed.append(_Followed(policy, state, make({"policy": state}, timeout_s=timeout_s)))
        return self._followed[-1]

    def _start_worker(self, index: int, first: int, last: int, weights: Scheme, kept: _Sharing | None) -> None:
        with self._follows[index].publisher.invite(f"worker {index}") as sock:
            self.workers.append(
                WorkerProcess(
                    index,
                    first,
                    last,
                    self._memory_fd,
                    module="rlruntime.collectors.worker",
                    title="collection worker",
                    descriptors=(sock.fileno(), -1 if kept is None else kept.descriptor),
                )
            )

    def _send(self, worker: int, data: bytes) -> None:
        try:
            self.workers[worker].sock.send(data)
        except BlockingIOError:
            raise self.workers[worker].hung("take an order", self.timeout_s) from None
        except OSError:
            return  # it is gone, as reading will find

    def _read(self, index: int) -> Report:
        worker = self.workers[index]
        deadline = time.monotonic() + self.timeout_s
        self._read_kind(worker, "collect", deadline)
        _, rollout, version, num_valid, num_written, *seconds = REPORT.unpack(
            DONE + messages.read(worker.sock, REPORT.size - 1, deadline)
        )
        self._orders[index].popleft()
        self._seen[index] = (-1, time.monotonic())
        return Report(index, rollout, version, num_valid, num_written, *seconds)

    def _read_kind(self, worker: WorkerProcess, doing: str, deadline: float) -> None:
        """Read the first byte of a report or an answer; raise what it says instead."""
        try:
            kind = messages.read(worker.sock, 1, deadline)
        except EOFError:
            raise worker.died(doing) from None
        except messages.DeadlineExceededError:
            raise worker.hung(doing, self.timeout_s) from None
        if kind == FAILED:
            worker.answer(doing, deadline, self.timeout_s)
        assert kind in (DONE, ANSWER)

    def _require_progress(self, now: float) -> None:
        for index, orders in enumerate(self._orders):
            if not orders:
                continue
            progress = self._control[index].progress
            last, since = self._seen[index]
            if progress != last:
                self._seen[index] = (progress, now)
            elif now - since >= self.timeout_s:
                raise self.workers[index].hung(f"a step of its environments (after {progress})", self.timeout_s)

    def _raise_if_dead(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is not None:
                self._failure = worker.died("publish")
                raise self._failure


class _Sharing(NamedTuple):
    """How a replay buffer gets into another process."""

    descriptor: int
    attach: Callable[[int], ReplayBuffer]


@dataclass(frozen=True)
class _Attach:
    """Makes a buffer over the storage whose file has a descriptor; only its writer is used."""

    storage: type[SharedTensorStorage] | type[MemoryMappedStorage]
    config: Any
    writer: Any

    def __call__(self, descriptor: int) -> ReplayBuffer:
        return ReplayBuffer(self.storage.attach(self.config, descriptor), writer=self.writer)


def _sharing(buffer: ReplayBuffer | None) -> _Sharing | None:
    if buffer is None:
        return None
    storage = buffer.storage
    if not (isinstance(storage, MappedStorage) and storage.is_shared):
        raise ConfigError(
            "worker processes can't write into this replay buffer",
            value=type(storage).__name__,
            remedy="use a SharedTensor storage, or a MemoryMapped one with shared: true",
        )
    assert isinstance(storage, SharedTensorStorage | MemoryMappedStorage)
    return _Sharing(storage.descriptor, _Attach(type(storage), storage.config, buffer.writer))


def pickled(policy: Policy) -> bytes:
    """Return a policy as it travels: a copy on the CPU, without gradients; the policy itself stays as it is."""
    with torch.no_grad():
        travels = copy.deepcopy(policy).to("cpu")
    try:
        return pickle.dumps(travels, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the policy can't travel to a worker process: {error}",
            remedy="define its classes and functions at the top level of a module",
        ) from None
