"""The synchronous multi-process collector: workers fill one rollout together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

from rlruntime.collectors.accounting import Accounts, apply_reward_transforms, update_statistics
from rlruntime.collectors.episodes import FinishedEpisodes
from rlruntime.collectors.protocol import CollectorStats
from rlruntime.collectors.rollout import Rollout
from rlruntime.collectors.workers import CollectionWorkers, Report, Scheme
from rlruntime.policies.policy import Policy
from rlruntime.registry import register
from rlruntime.spec.training.collectors import SyncProcessCollectorConfig
from rlruntime.spec.training.env import EnvConfig
from rlruntime.storages.buffer import ReplayBuffer


@register("collector", "SyncProcess")
class SyncProcessCollector:
    """Fills rollouts ``[T, B]`` with worker processes, each with some of the environments and a copy of the policy.

    Each worker writes straight into its columns of a rollout in shared memory, which `collect` returns without a copy
    as soon as the last one is done. With one worker its numbers are those of the inline collector. Weights change when
    `publish` says so, and before the next rollout.

    Args:
        env: of all copies.
        policy: the learner's, whose weights the workers follow; or what returns the policy of a worker by its number,
            where they differ. Rewards and statistics go through the transforms of the first.
        num_steps: `T`.
        num_workers: processes; by default the usable cores, at most ``env.num_envs``.
        seed: of the job; the streams ``environment`` and ``policy`` are drawn from it.
        random_frames: frames at the beginning whose actions are drawn uniformly, counted in whole rollouts.
        preemption_share: share of the workers that must be done before the others are cut short.
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

    Config = SyncProcessCollectorConfig

    def __init__(
        self,
        env: EnvConfig,
        policy: Policy | Callable[[int], Policy],
        *,
        num_steps: int,
        num_workers: int | None = None,
        seed: int = 0,
        random_frames: int = 0,
        preemption_share: float = 1.0,
        weights: Scheme = "SharedMemory",
        buffer: ReplayBuffer | None = None,
        start_timeout_s: float = 120.0,
        worker_device: str = "cpu",
    ) -> None:
        self.num_envs, self.num_steps, self.random_frames = env.num_envs, num_steps, random_frames
        self._workers = CollectionWorkers(
            env,
            policy,
            num_workers=num_workers,
            num_steps=num_steps,
            num_rollouts=1,
            seed=seed,
            weights=weights,
            start_timeout_s=start_timeout_s,
            worker_device=worker_device,
            buffer=buffer,
        )
        self.policy, self.buffer = self._workers.policy, buffer
        self._rollout: Rollout | None = self._workers.rollouts[0]
        self._needed = max(1, math.ceil(preemption_share * self.num_workers))
        self._accounts = Accounts(self.num_envs)
        self._seconds = dict.fromkeys(("env", "policy", "write", "sync", "wait"), 0.0)
        self.num_cut_short = 0
        self._is_started = self._is_paused = False
        self._learned_from = True

    @classmethod
    def from_config(
        cls,
        config: SyncProcessCollectorConfig,
        env: EnvConfig,
        policy: Policy,
        *,
        num_steps: int,
        seed: int,
        random_frames: int = 0,
    ) -> SyncProcessCollector:
        """Return the collector that a manifest describes; see `rlruntime.collectors.make.make_collector`."""
        return cls(
            env,
            policy,
            num_steps=num_steps,
            num_workers=config.num_workers,
            seed=seed,
            random_frames=random_frames,
            preemption_share=config.preemption_share,
            weights=config.weights,
            start_timeout_s=config.start_timeout_seconds,
        )

    @property
    def num_workers(self) -> int:
        """Worker processes."""
        return len(self._workers.workers)

    @property
    def worker_pids(self) -> list[int]:
        """Their process ids."""
        return [worker.process.pid for worker in self._workers.workers]

    @property
    def num_frames(self) -> int:
        """Valid rows that were handed out."""
        return self._accounts.num_frames

    @property
    def episodes(self) -> FinishedEpisodes:
        """Those that ended in the last rollout."""
        return self._accounts.episodes

    def start(self) -> None:
        """See `Collector.start`; `collect` does it by itself."""
        self._workers.require_healthy()
        if not self._is_started:
            self._workers.ask_all("start")
            self._is_started = True

    def collect(self) -> Rollout | None:
        """See `Collector.collect`."""
        if self._is_paused:
            raise RuntimeError("the collector is paused")
        self.start()
        self.update_transforms()
        workers, waiting = self._workers, set(range(self.num_workers))
        at_random = self.num_frames < self.random_frames
        for worker in waiting:
            workers.order(worker, 0, at_random=at_random)
        started = perf_counter()
        is_cutting = False
        while waiting:
            for report in workers.reports():
                waiting.discard(report.worker)
                self._add(report)
            if waiting and not is_cutting and self.num_workers - len(waiting) >= self._needed:
                workers.cut_short(list(waiting))
                is_cutting = True
        if is_cutting:
            workers.go_on()
        self._seconds["wait"] += perf_counter() - started
        rollout = self._rollout
        assert rollout is not None
        self.num_cut_short += int((rollout.num_filled < self.num_steps).sum()) if is_cutting else 0
        self._accounts.add(rollout)
        apply_reward_transforms(self.policy, rollout)
        self._learned_from = False
        return rollout if self.buffer is None else None

    def rollouts(self, total_frames: int) -> Iterator[Rollout | None]:
        """See `Collector.rollouts`."""
        while self.num_frames < total_frames:
            yield self.collect()
            self.update_transforms()

    def update_transforms(self) -> None:
        """See `Collector.update_transforms`; workers have the statistics with the next publication."""
        if not self._learned_from and self._rollout is not None:
            update_statistics(self.policy, self._rollout)
        self._learned_from = True

    def publish(self, workers: Sequence[int] | None = None) -> int:
        """See `Collector.publish`.

        Args:
            workers: numbers of those that shall have them, the others keep what they have; by default all.
        """
        started = perf_counter()
        version = self._workers.publish(workers)
        self._seconds["sync"] += perf_counter() - started
        return version

    def pause(self) -> None:
        """See `Collector.pause`: nothing steps between two rollouts."""
        self._is_paused = True

    def resume(self) -> None:
        """See `Collector.resume`."""
        self._is_paused = False

    def close(self) -> None:
        """See `Collector.close`."""
        self._rollout = None
        self._workers.close()

    def stats(self) -> CollectorStats:
        """See `Collector.stats`."""
        return CollectorStats(
            frames=self.num_frames,
            steps=self._workers.steps,
            policy_version=self._workers.newest_version,
            seconds=dict(self._seconds),
        )

    def snapshot(self) -> list[bytes] | None:
        """See `Collector.snapshot`."""
        parts = self._workers.ask_all("snapshot")
        return None if any(part is None for part in parts) else [blob for part in parts for blob in part]

    def restore(self, snapshots: Sequence[bytes]) -> None:
        """See `Collector.restore`."""
        self._workers.ask_all("restore", self._by_worker(list(snapshots)))

    def state_dict(self) -> dict[str, Any]:
        """See `Collector.state_dict`; with `snapshot`, a collector of as many workers goes on bit for bit."""
        self.update_transforms()
        return {"workers": self._workers.ask_all("state"), **self._accounts.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Collector.load_state_dict`.

        Raises:
            ValueError: the state is of another number of workers.
        """
        self._require_as_many(state)
        self._workers.ask_all("load_state", list(state["workers"]))
        self._accounts.load_state_dict(state)
        self._is_started = self._learned_from = True
        self.publish()

    def restart_episodes(self, seeds: Sequence[int], state: dict[str, Any]) -> None:
        """See `Collector.restart_episodes`."""
        self._require_as_many(state)
        arguments = list(zip(self._by_worker([int(seed) for seed in seeds]), state["workers"], strict=True))
        self._workers.ask_all("restart", arguments)
        self._accounts.load_counters(state)
        for transform in self.policy.transforms:
            transform.restart_episodes()  # type: ignore[operator]
        self._is_started = self._learned_from = True
        self.publish()

    def _add(self, report: Report) -> None:
        for phase, seconds in zip(("env", "policy", "sync", "write"), report[-4:], strict=True):
            self._seconds[phase] += seconds

    def _by_worker(self, values: list[Any]) -> list[list[Any]]:
        return [values[worker.first : worker.last] for worker in self._workers.workers]

    def _require_as_many(self, state: dict[str, Any]) -> None:
        held = len(state.get("workers", ()))
        if held != self.num_workers:
            raise ValueError(f"the state is of {held} workers, and there are {self.num_workers}")
