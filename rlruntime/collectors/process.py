"""What collectors with worker processes have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TypedDict

from rlruntime.collectors.base import BaseCollector
from rlruntime.collectors.protocol import CollectorStats
from rlruntime.collectors.rollout import Rollout
from rlruntime.collectors.workers import CollectionWorkers, Report, Scheme
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.collectors import ProcessCollectorConfig
from rlruntime.spec.training.env import EnvConfig
from rlruntime.storages.buffer import ReplayBuffer


class WorkerSettings(TypedDict, total=False):
    """Settings that they share, with the defaults of `ProcessCollector`."""

    num_workers: int | None
    seed: int
    random_frames: int
    weights: Scheme
    buffer: ReplayBuffer | None
    start_timeout_s: float
    worker_device: str


class ProcessCollector(BaseCollector[Rollout | None]):
    """Base of collectors whose worker processes step some of the environments each, with a copy of the policy, and
    write into rollouts in shared memory.

    Args:
        env: of all copies.
        policy: the learner's, whose weights the workers follow; or what returns the policy of a worker by its number,
            where they differ. Rewards and statistics go through the transforms of the first.
        num_steps: `T`.
        num_rollouts: rollouts that there is room for.
        num_workers: processes; by default the usable cores, at most ``env.num_envs``.
        seed: of the job; the streams ``environment`` and ``policy`` are drawn from it.
        random_frames: frames at the beginning whose actions are drawn uniformly, counted in whole rollouts.
        weights: how weights reach the workers.
        buffer: replay buffer with a shared storage that the workers write their valid rows into; `collect` then returns
            None.
        start_timeout_s: seconds a worker may take to start, and to take over weights. What a step may take is the
            environment's ``step_timeout_seconds``.
        worker_device: where the workers' policies act.

    Raises:
        ConfigError: environment, policy or buffer can't be had in another process.
        EnvironmentFault: a worker died or hung at start.
    """

    def __init__(
        self,
        env: EnvConfig,
        policy: Policy | Callable[[int], Policy],
        *,
        num_steps: int,
        num_rollouts: int,
        num_workers: int | None = None,
        seed: int = 0,
        random_frames: int = 0,
        weights: Scheme = "SharedMemory",
        buffer: ReplayBuffer | None = None,
        start_timeout_s: float = 120.0,
        worker_device: str = "cpu",
    ) -> None:
        self._workers = CollectionWorkers(
            env,
            policy,
            num_workers=num_workers,
            num_steps=num_steps,
            num_rollouts=num_rollouts,
            seed=seed,
            weights=weights,
            start_timeout_s=start_timeout_s,
            worker_device=worker_device,
            buffer=buffer,
        )
        super().__init__(self._workers.policy, num_envs=env.num_envs, num_steps=num_steps, random_frames=random_frames)
        self.buffer = buffer
        self._seconds = dict.fromkeys(("env", "policy", "write", "sync", "wait"), 0.0)
        self._is_started = False

    @property
    def num_workers(self) -> int:
        """Worker processes."""
        return len(self._workers.workers)

    @property
    def worker_pids(self) -> list[int]:
        """Their process ids."""
        return [worker.process.pid for worker in self._workers.workers]

    def publish(self, workers: Sequence[int] | None = None) -> int:
        """See `Collector.publish`; a worker takes the weights over before its next rollout.

        Args:
            workers: numbers of those that shall have them, the others keep what they have; by default all.
        """
        started = perf_counter()
        version = self._workers.publish(workers)
        self._seconds["sync"] += perf_counter() - started
        return version

    def close(self) -> None:
        """See `Collector.close`."""
        self.rollout = None
        self._workers.close()

    def stats(self) -> CollectorStats:
        """See `Collector.stats`."""
        return CollectorStats(
            frames=self.num_frames,
            steps=self._workers.steps,
            policy_version=self._workers.newest_version,
            seconds=dict(self._seconds),
        )

    @staticmethod
    def _settings(config: ProcessCollectorConfig, seed: int, random_frames: int) -> WorkerSettings:
        """Return what a manifest says of the workers."""
        return {
            "num_workers": config.num_workers,
            "seed": seed,
            "random_frames": random_frames,
            "weights": config.weights,
            "start_timeout_s": config.start_timeout_seconds,
        }

    def _add_seconds(self, report: Report) -> None:
        for phase, seconds in zip(("env", "policy", "sync", "write"), report[-4:], strict=True):
            self._seconds[phase] += seconds

    def _by_worker(self, values: list[Any]) -> list[list[Any]]:
        """Return those of each worker's copies, of values by copy."""
        return [values[worker.first : worker.last] for worker in self._workers.workers]
