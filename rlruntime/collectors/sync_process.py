"""The synchronous multi-process collector: workers fill one rollout together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Unpack

from rlruntime.collectors.accounting import apply_reward_transforms
from rlruntime.collectors.process import ProcessCollector, WorkerSettings
from rlruntime.collectors.rollout import Rollout
from rlruntime.policies.policy import Policy
from rlruntime.registry import register
from rlruntime.spec.training.collectors import SyncProcessCollectorConfig
from rlruntime.spec.training.env import EnvConfig


@register("collector", "SyncProcess")
class SyncProcessCollector(ProcessCollector):
    """Fills rollouts ``[T, B]`` with worker processes, each with some of the environments and a copy of the policy.

    Each worker writes straight into its columns of a rollout in shared memory, which `collect` returns without a copy
    as soon as the last one is done. With one worker its numbers are those of the inline collector. Weights change when
    `publish` says so, and before the next rollout.

    Args:
        env, policy, num_steps: see `ProcessCollector`.
        preemption_share: share of the workers that must be done before the others are cut short.
        settings: ``num_workers``, ``seed``, ``random_frames``, ``weights``, ``buffer``, ``start_timeout_s`` and
            ``worker_device``, as there.

    Attributes:
        num_cut_short: columns that were cut short so far.

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
        preemption_share: float = 1.0,
        **settings: Unpack[WorkerSettings],
    ) -> None:
        super().__init__(env, policy, num_steps=num_steps, num_rollouts=1, **settings)
        self.rollout = self._workers.rollouts[0]
        self._needed = max(1, math.ceil(preemption_share * self.num_workers))
        self.num_cut_short = 0

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
        settings = cls._settings(config, seed, random_frames)
        return cls(env, policy, num_steps=num_steps, preemption_share=config.preemption_share, **settings)

    def start(self) -> None:
        """See `Collector.start`; `collect` does it by itself."""
        self._workers.require_healthy()
        if not self._is_started:
            self._workers.ask_all("start")
            self._is_started = True

    def collect(self) -> Rollout | None:
        """See `Collector.collect`."""
        self._require_running()
        self.start()
        self.update_transforms()
        workers, waiting = self._workers, set(range(self.num_workers))
        for worker in waiting:
            workers.order(worker, 0, at_random=self._acts_at_random)
        started = perf_counter()
        is_cutting = False
        while waiting:
            for report in workers.reports():
                waiting.discard(report.worker)
                self._add_seconds(report)
            if waiting and not is_cutting and self.num_workers - len(waiting) >= self._needed:
                workers.cut_short(list(waiting))
                is_cutting = True
        if is_cutting:
            workers.go_on()
        self._seconds["wait"] += perf_counter() - started
        rollout = self.rollout
        assert rollout is not None
        self.num_cut_short += int((rollout.num_filled < self.num_steps).sum()) if is_cutting else 0
        self._accounts.add(rollout)
        apply_reward_transforms(self.policy, rollout)
        self._learned_from = False
        return rollout if self.buffer is None else None

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
        self._restart_transforms()
        self._is_started = self._learned_from = True
        self.publish()

    def _require_as_many(self, state: dict[str, Any]) -> None:
        held = len(state.get("workers", ()))
        if held != self.num_workers:
            raise ValueError(f"the state is of {held} workers, and there are {self.num_workers}")
