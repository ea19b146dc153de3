"""The asynchronous multi-process collector: workers collect while the learner learns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from rlruntime.collectors.accounting import Accounts, apply_reward_transforms, update_statistics
from rlruntime.collectors.episodes import FinishedEpisodes
from rlruntime.collectors.protocol import CollectorStats
from rlruntime.collectors.rollout import Rollout
from rlruntime.collectors.workers import CollectionWorkers, Report, Scheme
from rlruntime.policies.policy import Policy
from rlruntime.registry import register
from rlruntime.spec.training.collectors import AsyncProcessCollectorConfig
from rlruntime.spec.training.env import EnvConfig
from rlruntime.storages.buffer import ReplayBuffer

_SEGMENTS = 2
STALE = "stale"


@register("collector", "AsyncProcess")
class AsyncProcessCollector:
    """Yields the rollouts ``[T, b]`` of single workers, the first to be done first, while workers go on collecting.

    Each worker has two segments in shared memory: one that is being learned from, without a copy, and one that it
    fills. It takes over the newest weights before each.

    The staleness of a rollout is the version published last minus the oldest that acted in it: the publications that
    its data lie behind. It is bounded twice by ``max_staleness``. A worker is given no order while more rollouts than
    that are under way, waiting, or being learned from, for its own would be behind by as many publications when its
    turn came; and what is too old nevertheless when its turn comes is dropped and counted: the rollout of a worker that
    others overtook, or more where the learner publishes more often than once for each rollout. Rows that workers write
    into a replay buffer are not bounded here.

    Args:
        env, policy, num_steps, num_workers, seed, weights, buffer, start_timeout_s, worker_device: see
            `rlruntime.collectors.sync_process.SyncProcessCollector`.
        random_frames: frames at the beginning whose actions are drawn uniformly, counted in whole rollouts of a worker.
        max_staleness: bound of the staleness, in publications; by default the number of workers.

    Attributes:
        rollout_worker: number of the worker that filled the last rollout.
        staleness: of the last rollout.
    """

    Config = AsyncProcessCollectorConfig

    def __init__(
        self,
        env: EnvConfig,
        policy: Policy | Callable[[int], Policy],
        *,
        num_steps: int,
        num_workers: int | None = None,
        seed: int = 0,
        random_frames: int = 0,
        max_staleness: int | None = None,
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
            num_rollouts=_SEGMENTS,
            seed=seed,
            weights=weights,
            start_timeout_s=start_timeout_s,
            worker_device=worker_device,
            buffer=buffer,
        )
        self.policy, self.buffer = self._workers.policy, buffer
        count = self.num_workers
        self.max_staleness = count if max_staleness is None else max_staleness
        self._copies = [np.arange(worker.first, worker.last) for worker in self._workers.workers]
        self._columns = [
            [rollout.columns(worker.first, worker.last) for rollout in self._workers.rollouts]
            for worker in self._workers.workers
        ]
        self._accounts = Accounts(self.num_envs)
        self._seconds = dict.fromkeys(("env", "policy", "write", "sync", "wait"), 0.0)
        self._dropped = {STALE: 0}
        self._held_back = 0
        self._free = [deque(range(_SEGMENTS)) for _ in range(count)]
        self._ready: deque[Report] = deque()
        self._held: Report | None = None  # whose rollout the learner has
        self._num_orders = [0] * count
        self.rollout: Rollout | None = None
        self.rollout_worker, self.staleness = 0, 0
        self._is_started = self._is_paused = False
        self._learned_from = True

    @classmethod
    def from_config(
        cls,
        config: AsyncProcessCollectorConfig,
        env: EnvConfig,
        policy: Policy,
        *,
        num_steps: int,
        seed: int,
        random_frames: int = 0,
    ) -> AsyncProcessCollector:
        """Return the collector that a manifest describes; see `rlruntime.collectors.make.make_collector`."""
        return cls(
            env,
            policy,
            num_steps=num_steps,
            num_workers=config.num_workers,
            seed=seed,
            random_frames=random_frames,
            max_staleness=config.max_staleness,
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
        """Let the workers begin. `collect` does it by itself."""
        self._workers.require_healthy()
        if not self._is_started and not self._is_paused:
            self._is_started = True
            self._give_orders()

    def collect(self) -> Rollout | None:
        """Return the next rollout that isn't too stale; see `Collector.collect`. The one before may be filled anew."""
        if self._is_paused:
            raise RuntimeError("the collector is paused")
        self.update_transforms()
        self.start()
        self._let_go()
        episodes: list[FinishedEpisodes] = []
        while True:
            self._give_orders()
            self._take(self._workers.reports(0.0) if self._ready else self._wait())
            report = self._ready.popleft()
            rollout = self._columns[report.worker][report.rollout]
            self._account(rollout, report)
            episodes.append(self._accounts.episodes)
            # A replay buffer holds the rows already; how stale they may be is its sampler's to say.
            if self.staleness <= self.max_staleness or self.buffer is not None:
                break
            self._dropped[STALE] += rollout.num_valid
            self._accounts.num_frames -= rollout.num_valid
            self._free[report.worker].append(report.rollout)
        self._accounts.episodes = FinishedEpisodes.joined(episodes)
        self._held, self.rollout, self.rollout_worker = report, rollout, report.worker
        self._give_orders()  # they collect while it is learned from
        self._learned_from = False
        return rollout if self.buffer is None else None

    def rollouts(self, total_frames: int) -> Iterator[Rollout | None]:
        """See `Collector.rollouts`."""
        while self.num_frames < total_frames:
            yield self.collect()
            self.update_transforms()

    def update_transforms(self) -> None:
        """See `Collector.update_transforms`; workers have the statistics with the next publication."""
        if not self._learned_from and self.rollout is not None:
            update_statistics(self.policy, self.rollout)
        self._learned_from = True

    def publish(self, workers: Sequence[int] | None = None) -> int:
        """See `Collector.publish`; a worker takes the weights over before its next rollout.

        Args:
            workers: numbers of those that shall have them; by default all.
        """
        started = perf_counter()
        version = self._workers.publish(workers)
        self._seconds["sync"] += perf_counter() - started
        return version

    def pause(self) -> None:
        """See `Collector.pause`: workers stop between two steps of a rollout, and go on from there."""
        self._is_paused = True
        self._take(self._workers.pause())

    def resume(self) -> None:
        """See `Collector.resume`."""
        if self._is_paused:
            self._is_paused = False
            self._workers.go_on()

    def close(self) -> None:
        """See `Collector.close`."""
        self.rollout, self._columns = None, []
        self._workers.close()

    def stats(self) -> CollectorStats:
        """See `Collector.stats`."""
        return CollectorStats(
            frames=self.num_frames,
            steps=self._workers.steps,
            policy_version=self._workers.newest_version,
            seconds=dict(self._seconds),
            staleness=self.staleness,
            dropped=dict(self._dropped),
            held_back=self._held_back,
        )

    def snapshot(self) -> list[bytes] | None:
        """Return None: workers that don't wait for the learner are at no common point."""
        return None

    def restore(self, snapshots: Sequence[bytes]) -> None:
        """Refuse; see `snapshot`."""
        raise RuntimeError("an asynchronous collector starts its episodes anew; call restart_episodes")

    def state_dict(self) -> dict[str, Any]:
        """Return the counters; rollouts that were not handed out are left to new episodes."""
        self.update_transforms()
        return self._accounts.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the counters, before the first rollout."""
        self._accounts.load_counters(state)
        self._learned_from = True
        self.publish()

    def restart_episodes(self, seeds: Sequence[int], state: dict[str, Any]) -> None:
        """See `Collector.restart_episodes`; what was collected and not handed out is gone."""
        workers = self._workers
        workers.cut_short(range(self.num_workers))
        while any(workers.num_orders(worker) for worker in range(self.num_workers)):
            self._take(workers.reports())
        workers.go_on()
        self._ready.clear()
        self._held, self.rollout = None, None
        self._free = [deque(range(_SEGMENTS)) for _ in range(self.num_workers)]
        values = [int(seed) for seed in seeds]
        workers.ask_all("reset", [values[worker.first : worker.last] for worker in workers.workers])
        self.load_state_dict(state)
        for transform in self.policy.transforms:
            transform.restart_episodes()  # type: ignore[operator]

    def _let_go(self) -> None:
        """The learner is done with the rollout that it had."""
        if self._held is not None:
            self._free[self._held.worker].append(self._held.rollout)
            self._held = None

    def _give_orders(self) -> None:
        """Let workers with a free segment begin, those with the fewest orders first, as far as staleness allows.

        An order may wait in a worker behind another: it takes the weights that are the newest when its turn comes.
        """
        workers, free = self._workers, self._free
        at_random = self.num_frames < self.random_frames
        ahead = len(self._ready) + (self._held is not None)  # publications before a new rollout's turn, and more:
        ahead += sum(workers.num_orders(worker) for worker in range(self.num_workers))
        while any(free):
            if ahead > self.max_staleness and self.buffer is None:
                self._held_back += 1
                return
            able = [worker for worker in range(self.num_workers) if free[worker]]
            chosen = min(able, key=lambda worker: (workers.num_orders(worker), self._num_orders[worker]))
            workers.order(chosen, free[chosen].popleft(), at_random=at_random)
            self._num_orders[chosen] += 1
            ahead += 1

    def _wait(self) -> list[Report]:
        started = perf_counter()
        reports = self._workers.reports()
        self._seconds["wait"] += perf_counter() - started
        return reports

    def _take(self, reports: list[Report]) -> None:
        for report in reports:
            self._ready.append(report)
            for phase, seconds in zip(("env", "policy", "sync", "write"), report[-4:], strict=True):
                self._seconds[phase] += seconds

    def _account(self, rollout: Rollout, report: Report) -> None:
        """Count a rollout, also one that will be dropped: its episodes go on in the worker's next one."""
        copies = self._copies[report.worker]
        self._accounts.add(rollout, copies)
        apply_reward_transforms(self.policy, rollout, copies, self.num_envs)
        self.staleness = self._workers.version(report.worker) - report.version
