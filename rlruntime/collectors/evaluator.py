"""Evaluation beside training: a process of its own plays whole episodes with the newest weights."""

from __future__ import annotations

import contextlib
import math
import os
import select
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlruntime.collectors.evaluator_worker import EVALUATE, ORDER, REPORT, EvaluatorPlan
from rlruntime.collectors.worker import DONE, FAILED, QUIT, weights_of
from rlruntime.collectors.workers import Scheme, pickled
from rlruntime.envs import messages
from rlruntime.envs.process_pool import CLOSE_TIMEOUT_S
from rlruntime.envs.worker_process import Idleness, WorkerProcess, abandon_workers
from rlruntime.errors import EnvironmentFault
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.env import EnvConfig
from rlruntime.weights.protocol import WeightSyncError
from rlruntime.weights.schemes.pipe import PipePublisher
from rlruntime.weights.schemes.remote import RemotePublisher
from rlruntime.weights.schemes.shared_memory import SharedMemoryPublisher


@dataclass(frozen=True)
class VersionEvaluated:
    """Outcome of one evaluation.

    Attributes:
        version: that was evaluated, as it was submitted.
        returns: ``[E]`` float64, undiscounted rewards of the episodes, in the order of the seeds.
        lengths: ``[E]`` int64, decisions.
    """

    version: int
    returns: np.ndarray
    lengths: np.ndarray

    @property
    def mean(self) -> float:
        """Mean episode reward."""
        return float(self.returns.mean())


class ProcessEvaluator:
    """Evaluates a policy in a process of its own while training goes on.

    `submit` copies the weights as they are and returns at once; the process evaluates the newest that was submitted
    when it gets to it, and skips those before. For use by one thread.

    Args:
        env: the environment; its ``num_envs`` copies are stepped together, on seeds of their own.
        policy: whose weights are submitted.
        seeds: of the episodes of every evaluation.
        noise_seed: of the actions; None takes the most probable ones.
        weights: how weights reach the process.
        start_timeout_s: seconds it may take to start, and to take over weights.
        timeout_s: seconds an evaluation may take.
        silence_s: seconds for which the process may use no processor time in an evaluation: then it hangs.
        num_envs, backend: of the copies; by default those of ``env``.

    Raises:
        ConfigError: environment or policy can't be had in another process.
        EnvironmentFault: the process died or hung at start.
    """

    def __init__(
        self,
        env: EnvConfig,
        policy: Policy,
        *,
        seeds: Sequence[int],
        noise_seed: int | None = None,
        weights: Scheme = "SharedMemory",
        start_timeout_s: float = 120.0,
        timeout_s: float = 600.0,
        silence_s: float = math.inf,
        num_envs: int | None = None,
        backend: str | None = None,
    ) -> None:
        self.policy, self._timeout_s, self._silence_s = policy, timeout_s, silence_s
        make = SharedMemoryPublisher if weights == "SharedMemory" else PipePublisher
        self._weights = weights_of(policy)
        self._publisher: RemotePublisher = make({"policy": self._weights}, timeout_s=start_timeout_s)
        self._labels: dict[int, int] = {}  # what each version was submitted as
        self._expires = 0.0
        self._failure: EnvironmentFault | None = None
        self._is_closed = False
        self._workers: list[WorkerProcess] = []
        self._finalizer = weakref.finalize(self, abandon_workers, self._workers, os.getpid())
        try:
            with self._publisher.invite("evaluator") as sock:
                worker = WorkerProcess(
                    0,
                    0,
                    num_envs or env.num_envs,
                    -1,
                    module="rlruntime.collectors.evaluator_worker",
                    title="evaluation worker",
                    descriptors=(sock.fileno(),),
                )
            self._workers.append(worker)
            self._worker, self._idleness = worker, Idleness(worker.process.pid)
            plan = EvaluatorPlan(
                env=env,
                num_envs=num_envs,
                backend=backend,
                policy=pickled(policy),
                seeds=tuple(int(seed) for seed in seeds),
                noise_seed=noise_seed,
                timeout_s=start_timeout_s,
            )
            worker.send(messages.VALUE, plan, timeout_s=start_timeout_s)
            worker.answer("start", time.monotonic() + start_timeout_s, start_timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id."""
        return self._worker.process.pid

    @property
    def is_busy(self) -> bool:
        """Whether something that was submitted has neither been evaluated nor overtaken."""
        return bool(self._labels)

    def submit(self, version: int) -> None:
        """Have the policy's present weights evaluated.

        Args:
            version: what the result shall be known by, greater than those before.

        Raises:
            EnvironmentFault: the process is gone.
        """
        self._require_healthy()
        if self._labels and version <= max(self._labels.values()):
            raise ValueError(f"version {version} is submitted after version {max(self._labels.values())}")
        try:
            own = self._publisher.publish({"policy": self._weights}).version
        except WeightSyncError:
            if self._worker.process.poll() is None:
                raise
            raise self._failed(self._worker.died("evaluate")) from None
        if not self._labels:
            self._expires = time.monotonic() + self._timeout_s
            self._idleness.begin()
        self._labels[own] = version
        with contextlib.suppress(OSError):  # it is gone, as reading will find
            self._worker.sock.send(ORDER.pack(EVALUATE, own))

    def poll(self) -> list[VersionEvaluated]:
        """Return what has been evaluated since the last call, without waiting.

        Raises:
            EnvironmentFault: the process raised, died, hung or took too long; it has its traceback.
        """
        self._require_healthy()
        came = []
        while self._wait(0.0):
            came.append(self._read())
        self._require_in_time()
        return came

    def wait(self, version: int, timeout_s: float) -> VersionEvaluated:
        """Return the next result of this version or a later one; earlier ones are left out.

        Raises:
            TimeoutError: it isn't there after ``timeout_s``.
            EnvironmentFault: as `poll`.
        """
        self._require_healthy()
        deadline = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            if self._wait(max(min(deadline, self._expires) - now, 0.0)):
                result = self._read()
                if result.version >= version:
                    return result
                continue
            self._require_in_time()
            if time.monotonic() >= deadline:
                raise TimeoutError(f"version {version} was not evaluated within {timeout_s:g} s")

    def close(self) -> None:
        """End the process, within seconds. May be called twice; never raises."""
        self._is_closed = True
        workers = list(self._workers)
        self._workers.clear()
        for worker in workers:
            with contextlib.suppress(OSError):
                worker.sock.send(QUIT)
            if not self._labels and worker.has_ended(time.monotonic() + CLOSE_TIMEOUT_S):
                worker.reap()
            else:  # it is in the midst of an evaluation, which nobody waits for
                worker.kill()
        self._publisher.close()
        self._finalizer.detach()

    def _wait(self, timeout_s: float) -> bool:
        poller = select.poll()
        poller.register(self._worker.sock, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def _read(self) -> VersionEvaluated:
        worker, deadline = self._worker, time.monotonic() + self._timeout_s
        try:
            kind = messages.read(worker.sock, 1, deadline)
            if kind == FAILED:
                worker.answer("evaluate", deadline, self._timeout_s)
            _, own, count = REPORT.unpack(DONE + messages.read(worker.sock, REPORT.size - 1, deadline))
            returns = np.frombuffer(messages.read(worker.sock, 8 * count, deadline), np.float64)
            lengths = np.frombuffer(messages.read(worker.sock, 8 * count, deadline), np.int64)
        except EOFError:
            raise self._failed(worker.died("evaluate")) from None
        except EnvironmentFault as fault:
            raise self._failed(fault) from None
        label = self._labels[own]
        self._labels = {later: name for later, name in self._labels.items() if later > own}
        self._expires = time.monotonic() + self._timeout_s
        self._idleness.begin()
        return VersionEvaluated(label, returns, lengths)

    def _require_in_time(self) -> None:
        """Fail where what is evaluated takes too long, or nothing moves."""
        if not self._labels:
            return
        if time.monotonic() >= self._expires:
            raise self._failed(self._worker.hung("evaluate", self._timeout_s))
        if self._idleness.seconds() > self._silence_s:
            raise self._failed(self._worker.hung("a step of evaluate", self._silence_s))

    def _failed(self, fault: EnvironmentFault) -> EnvironmentFault:
        self._failure = fault
        return fault

    def _require_healthy(self) -> None:
        if self._is_closed:
            raise EnvironmentFault("the evaluator is closed")
        if self._failure is not None:
            raise EnvironmentFault("the evaluator has failed before; make a new one") from self._failure
