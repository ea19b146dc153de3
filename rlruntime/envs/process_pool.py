"""`ProcessPool`: copies of one environment in worker processes, several per worker, over shared memory.

Each worker steps its copies with the in-process loop, so the numbers are those of `Loop` for the same seeds. A worker
that is killed, raises or hangs ends the step with an `EnvironmentFault` that carries the worker's own traceback, or,
with ``restartWorkers``, is replaced: its copies begin new episodes (rows with ``valid`` False), seeded by their first
seed and the number of restarts. A worker is not replaced for NaN, which would come again, nor when it fails before its
first finished step, which a broken environment does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlruntime.envs import messages
from rlruntime.envs.faults import UnlearnableFault
from rlruntime.envs.protocol import StepSlot
from rlruntime.envs.shared_slot import copy_slot, map_arrays, open_shared_memory, plan_shared_layout, slot_of
from rlruntime.envs.spaces import EnvLayout
from rlruntime.envs.worker import Build, Prepare
from rlruntime.envs.worker_process import WorkerProcess, abandon_workers
from rlruntime.errors import CheckpointError, ConfigError, EnvironmentFault
from rlruntime.spec.training.env import EnvConfig

START_TIMEOUT_S = 120.0
CLOSE_TIMEOUT_S = 3.0


class ProcessPool:
    """Copies of one environment in worker processes; see `VectorEnv`.

    Args:
        config: the environment; ``num_workers`` defaults to the cores this process may use, at most ``num_envs``.
        start_timeout_s: seconds a worker may take to import and build its copies, and for snapshots; at least
            ``step_timeout_seconds``.

    Attributes:
        restarts: workers replaced so far.

    Raises:
        ConfigError: the environment can't be built or can't be learned from.
        EnvironmentFault: a worker died or hung at start.
    """

    backend = "ProcessPool"

    def __init__(self, config: EnvConfig, *, start_timeout_s: float = START_TIMEOUT_S) -> None:
        self.num_envs, self.restarts = config.num_envs, 0
        self._config = config
        self._step_timeout_s = config.step_timeout_seconds
        self._start_timeout_s = max(start_timeout_s, config.step_timeout_seconds)
        self._failed = False
        self._seeds = list(range(self.num_envs))
        self._memory_fd = open_shared_memory("rljob-envs")
        self._shared_step: tuple[np.ndarray, StepSlot] | None = None
        self._workers: list[WorkerProcess] = []
        self._finalizer = weakref.finalize(self, abandon_workers, self._workers, os.getpid())
        try:
            bounds = split_copies(self.num_envs, config.num_workers or usable_cores())
            for index, (first, last) in enumerate(bounds):
                self._workers.append(WorkerProcess(index, first, last, self._memory_fd))
            self._layout = self._start_workers()
        except BaseException:
            self.close()
            raise
        self.spaces = self._layout.spaces

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers, in the order of their copies."""
        return [worker.process.pid for worker in self._workers]

    def reset(self, seeds: Sequence[int], out: StepSlot) -> None:
        """Reset copy `i` with ``seeds[i]``; see `VectorEnv.reset`."""
        if len(seeds) != self.num_envs:
            raise ValueError(f"{self.num_envs} copies need as many seeds, got {len(seeds)}")
        _, shared_slot = self._healthy()
        self._seeds = [int(seed) for seed in seeds]
        self._ask_all(messages.RESET, "reset", lambda worker: self._seeds[worker.first : worker.last])
        copy_slot(shared_slot, out)

    def step(self, actions: np.ndarray, out: StepSlot) -> None:
        """Step every copy with ``actions [B, ...]`` and write the outcome; see `VectorEnv.step`."""
        if len(actions) != self.num_envs:
            raise ValueError(f"{self.num_envs} copies need as many actions, got shape {actions.shape}")
        shared_actions, shared_slot = self._healthy()
        np.copyto(shared_actions, actions, casting="unsafe")
        self._ask_all(messages.STEP, "step")
        copy_slot(shared_slot, out)

    def snapshot(self) -> list[bytes] | None:
        """Return each copy's state, or None where a worker could not prove it to be restorable."""
        self._healthy()
        parts = self._ask_all(messages.SNAPSHOT, "snapshot", timeout_s=self._start_timeout_s)
        if any(part is None for part in parts):
            return None
        return [blob for part in parts for blob in part]

    def restore(self, snapshots: Sequence[bytes]) -> None:
        """Continue from what ``snapshot`` returned, of this or the in-process loop.

        Raises:
            CheckpointError: the snapshots are of another number of copies or of another environment.
        """
        if len(snapshots) != self.num_envs:
            held = len(snapshots)
            raise CheckpointError(f"the snapshot holds {held} environment copies, the job has {self.num_envs}")
        self._healthy()
        blobs = list(snapshots)
        try:
            self._ask_all(
                messages.RESTORE,
                "restore",
                lambda worker: blobs[worker.first : worker.last],
                timeout_s=self._start_timeout_s,
            )
        except ConfigError as error:
            raise CheckpointError(error.problem, remedy=error.remedy) from error

    def close(self) -> None:
        """End the workers, within seconds even where one hangs. May be called twice; never raises."""
        workers = list(self._workers)
        self._workers.clear()
        for worker in workers:
            with contextlib.suppress(Exception):
                messages.send(worker.sock, messages.QUIT, deadline=time.monotonic())
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for worker in workers:
            if worker.has_ended(deadline):
                worker.reap()
            else:
                worker.kill()
        self._finalizer.detach()
        self._shared_step = None  # unmaps
        memory_fd, self._memory_fd = self._memory_fd, -1
        if memory_fd >= 0:
            os.close(memory_fd)

    def _start_workers(self) -> EnvLayout:
        timeout_s = self._start_timeout_s
        deadline = time.monotonic() + timeout_s
        for worker in self._workers:
            worker.send(messages.PREPARE, Prepare(self._config.model_dump(), worker.index == 0), timeout_s=timeout_s)
        answers = [worker.answer("start", deadline, timeout_s) for worker in self._workers]
        layout: EnvLayout = answers[0]
        self._shared = plan_shared_layout(layout.spaces, self.num_envs)
        os.ftruncate(self._memory_fd, self._shared.size)
        arrays = map_arrays(self._memory_fd, self._shared)
        self._shared_step = arrays["action"], slot_of(arrays, slice(None))
        for worker in self._workers:
            order = Build(layout, self._shared, worker.first, worker.last)
            worker.send(messages.BUILD, order, timeout_s=timeout_s)
        for worker in self._workers:
            worker.answer("start", deadline, timeout_s)
        return layout

    def _ask_all(
        self,
        kind: bytes,
        doing: str,
        value: Callable[[WorkerProcess], Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[Any]:
        """Send to all workers, then take all answers; with ``restartWorkers``, replace those that failed."""
        timeout_s = self._step_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        failures: list[tuple[WorkerProcess, EnvironmentFault]] = []
        answers: list[Any] = []
        self._failed = True  # until all answers are in: an exception in between leaves workers out of step
        for worker in self._workers:
            worker.send(kind, None if value is None else value(worker), timeout_s=timeout_s)
        for worker in self._workers:
            try:
                answers.append(worker.answer(doing, deadline, timeout_s))
                worker.proven = worker.proven or kind == messages.STEP
            except EnvironmentFault as error:
                replaceable = worker.proven and not isinstance(error, UnlearnableFault)
                if not (self._config.restart_workers and kind in (messages.STEP, messages.RESET) and replaceable):
                    raise
                failures.append((worker, error))
        for worker, fault in failures:
            self._replace(worker, fault)
        self._failed = False
        return answers

    def _replace(self, worker: WorkerProcess, fault: EnvironmentFault) -> None:
        """Start a new process for the copies of a failed one, and reset them into the shared slot."""
        worker.kill()
        self.restarts += 1
        timeout_s = self._start_timeout_s
        deadline = time.monotonic() + timeout_s
        fresh = WorkerProcess(worker.index, worker.first, worker.last, self._memory_fd)
        self._workers[worker.index] = fresh
        seeds = [_restart_seed(seed, self.restarts) for seed in self._seeds[worker.first : worker.last]]
        orders = (
            (messages.PREPARE, Prepare(self._config.model_dump(), False)),
            (messages.BUILD, Build(self._layout, self._shared, worker.first, worker.last)),
            (messages.RESET, seeds),
        )
        try:
            for kind, order in orders:
                fresh.send(kind, order, timeout_s=timeout_s)
                fresh.answer("restart", deadline, timeout_s)
        except (EnvironmentFault, ConfigError) as error:
            trace = getattr(error, "worker_traceback", "") or fault.worker_traceback
            raise EnvironmentFault(f"{fault}; its replacement failed: {error}", worker_traceback=trace) from error

    def _healthy(self) -> tuple[np.ndarray, StepSlot]:
        """Return actions and slot in shared memory, or raise where no step can be taken any more."""
        if self._shared_step is None:
            raise EnvironmentFault("the environment pool is closed")
        if self._failed:
            raise EnvironmentFault("the environment pool has failed before; make a new one")
        return self._shared_step


def split_copies(num_envs: int, num_workers: int) -> list[tuple[int, int]]:
    """Return first and one past last copy of each worker, as even as can be."""
    num_workers = min(num_workers, num_envs)
    edges = [num_envs * i // num_workers for i in range(num_workers + 1)]
    return list(itertools.pairwise(edges))


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _restart_seed(seed: int, restarts: int) -> int:
    return int(np.random.SeedSequence([seed, restarts]).generate_state(1)[0])
