"""The asynchronous multi-process collector: workers collect while the learner learns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Unpack

import numpy as np

from rlruntime.collectors.accounting import apply_reward_transforms
from rlruntime.collectors.base import WithoutSnapshots
from rlruntime.collectors.episodes import FinishedEpisodes
from rlruntime.collectors.process import ProcessCollector, WorkerSettings
from rlruntime.collectors.protocol import CollectorStats
from rlruntime.collectors.rollout import Rollout
from rlruntime.collectors.workers import Report
from rlruntime.policies.policy import Policy
from rlruntime.registry import register
from rlruntime.spec.training.collectors import AsyncProcessCollectorConfig
from rlruntime.spec.training.env import EnvConfig

_SEGMENTS = 2
STALE = "stale"


@register("collector", "AsyncProcess")
class AsyncProcessCollector(WithoutSnapshots, ProcessCollector):
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
        env, policy, num_steps: see `ProcessCollector`.
        max_staleness: bound of the staleness, in publications; by default the number of workers.
        settings: ``num_workers``, ``seed``, ``random_frames``, ``weights``, ``buffer``, ``start_timeout_s`` and
            ``worker_device``, as there.

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
        max_staleness: int | None = None,
        **settings: Unpack[WorkerSettings],
    ) -> None:
        super().__init__(env, policy, num_steps=num_steps, num_rollouts=_SEGMENTS, **settings)
        count = self.num_workers
        self.max_staleness = count if max_staleness is None else max_staleness
        self._copies = [np.arange(worker.first, worker.last) for worker in self._workers.workers]
        self._columns = [
            [rollout.columns(worker.first, worker.last) for rollout in self._workers.rollouts]
            for worker in self._workers.workers
        ]
        self._dropped = {STALE: 0}
        self._held_back = 0
        self._free = [deque(range(_SEGMENTS)) for _ in range(count)]
        self._ready: deque[Report] = deque()
        self._held: Report | None = None  # whose rollout the learner has
        self._num_orders = [0] * count
        self.rollout_worker, self.staleness = 0, 0

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
        settings = cls._settings(config, seed, random_frames)
        return cls(env, policy, num_steps=num_steps, max_staleness=config.max_staleness, **settings)

    def start(self) -> None:
        """Let the workers begin. `collect` does it by itself."""
        self._workers.require_healthy()
        if not self._is_started and not self._is_paused:
            self._is_started = True
            self._give_orders()

    def collect(self) -> Rollout | None:
        """Return the next rollout that isn't too stale; see `Collector.collect`. The one before may be filled anew."""
        self._require_running()
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
        self._columns = []
        super().close()

    def stats(self) -> CollectorStats:
        """See `Collector.stats`."""
        return replace(
            super().stats(), staleness=self.staleness, dropped=dict(self._dropped), held_back=self._held_back
        )

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
        workers.ask_all("reset", self._by_worker([int(seed) for seed in seeds]))
        self.load_state_dict(state)
        self._restart_transforms()

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
        ahead = len(self._ready) + (self._held is not None)  # publications before a new rollout's turn, and more:
        ahead += sum(workers.num_orders(worker) for worker in range(self.num_workers))
        while any(free):
            if ahead > self.max_staleness and self.buffer is None:
                self._held_back += 1
                return
            able = [worker for worker in range(self.num_workers) if free[worker]]
            chosen = min(able, key=lambda worker: (workers.num_orders(worker), self._num_orders[worker]))
            workers.order(chosen, free[chosen].popleft(), at_random=self._acts_at_random)
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
            self._add_seconds(report)

    def _account(self, rollout: Rollout, report: Report) -> None:
        """Count a rollout, also one that will be dropped: its episodes go on in the worker's next one."""
        copies = self._copies[report.worker]
        self._accounts.add(rollout, copies)
        apply_reward_transforms(self.policy, rollout, copies, self.num_envs)
        self.staleness = self._workers.version(report.worker) - report.version
