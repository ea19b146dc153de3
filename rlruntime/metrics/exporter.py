"""What Prometheus sees of a run, filled once per iteration from the record that the loggers get."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from rlruntime.metrics import names
from rlruntime.metrics.family import Family

_MAX_PHASES = 32
_MAX_PARTS = 64
_MAX_LEARNER_VALUES = 64
_MAX_CAUSES = 8
_MAX_MOMENTS = 2048

Record = Mapping[str, float | int | str]

_GAUGES = {
    names.FRAMES: names.PROGRESS_FRAMES,
    names.TIME_FRAMES_PER_SECOND: names.FRAMES_PER_SECOND,
    names.EPISODE_REWARD_MEAN: names.EPISODE_REWARD,
    names.EPISODE_LENGTH_MEAN: names.EPISODE_LENGTH_STEPS,
    names.EVALUATION_REWARD_MEAN: names.EVALUATION_REWARD,
    names.STALENESS: names.WEIGHT_STALENESS_VERSIONS,
    names.ROWS_AT_HAND: names.REPLAY_ROWS,
    names.REPLAY_FILL: names.REPLAY_FILL_RATIO,
}
"""Fields that are shown as they are."""
_TOTALS = {
    names.FRAMES: names.FRAMES_TOTAL,
    names.ITERATION: names.ITERATIONS_TOTAL,
    names.EPISODES: names.EPISODES_TOTAL,
}
"""Fields that count from the beginning of the job."""
_ADDITIONS = {
    names.OPTIMISER_STEPS: names.UPDATES_TOTAL,
    names.SYNC_PUBLICATIONS: names.WEIGHT_PUBLICATIONS_TOTAL,
    names.SYNC_BYTES: names.WEIGHT_SYNC_BYTES_TOTAL,
    names.ENV_RESTARTS: names.ENV_WORKER_RESTARTS_TOTAL,
}
"""Fields that count from the last record."""


class MetricsExporter:
    """The metrics of one run on one registry. Called by the thread that trains; scraped by any other.

    What a run never does has no series: gauges, and counters of what not every run has, begin with the first record
    that speaks of them.

    Args:
        registry: where the metrics are registered; one run each.
        target_frames: frames after which training ends.
        start_frames, start_iterations, start_episodes: what a resumed run had done before; no counter counts it.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        target_frames: int,
        start_frames: int = 0,
        start_iterations: int = 0,
        start_episodes: int = 0,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._registry, self._wall_clock = registry, wall_clock
        self._gauges: dict[Family, Gauge] = {}
        self._counters: dict[Family, Counter] = {}
        self._seen = {
            names.FRAMES: start_frames,
            names.ITERATION: start_iterations,
            names.EPISODES: start_episodes,
        }
        for family in (*_TOTALS.values(), names.EVALUATIONS_TOTAL, names.CHECKPOINTS_TOTAL):
            self._counter(family)
        self._gauge(names.PROGRESS_FRAMES).set(start_frames)
        self._gauge(names.TARGET_FRAMES).set(target_frames)
        self._phase_seconds = names.PHASE_SECONDS.histogram(registry)
        self._phases: dict[str, Histogram] = {}
        self._parts: dict[str, Counter] = {}
        self._learner: dict[str, Gauge] = {}
        self._causes: dict[str, Counter] = {}
        self._replay = _OldestRow()

    def observe_iteration(self, record: Record) -> None:
        """Take in one record. Unknown fields are left alone; strings are never exported."""
        now_s = self._wall_clock()
        for key, value in record.items():
            if not isinstance(value, str):
                self._observe(key, value)
        if names.EVALUATION_REWARD_MEAN in record:
            self._counter(names.EVALUATIONS_TOTAL).inc()
        if names.ROWS_WRITTEN in record and names.ROWS_AT_HAND in record:
            age_s = self._replay.age_s(int(record[names.ROWS_WRITTEN]), int(record[names.ROWS_AT_HAND]), now_s)
            self._gauge(names.REPLAY_OLDEST_ROW_AGE_SECONDS).set(age_s)
        self._gauge(names.LAST_ITERATION_TIMESTAMP_SECONDS).set(now_s)

    def checkpoint_written(self) -> None:
        """Count a checkpoint; its seconds come as the phase ``checkpoint``."""
        self._counter(names.CHECKPOINTS_TOTAL).inc()
        self._gauge(names.LAST_CHECKPOINT_TIMESTAMP_SECONDS).set(self._wall_clock())

    def _observe(self, key: str, value: float) -> None:
        if key in _TOTALS:
            self._count(key, value)
        if key in _GAUGES:
            self._gauge(_GAUGES[key]).set(value)
        elif key in _ADDITIONS:
            self._counter(_ADDITIONS[key]).inc(value)
        elif key.startswith(names.DROPPED_PREFIX):
            self._drop(key.removeprefix(names.DROPPED_PREFIX), value)
        elif key.startswith(names.TIME_PREFIX):
            self._observe_phase(key, value)
        elif key.startswith(names.LEARNER_PREFIXES):
            self._set_learner_value(key, value)

    def _count(self, key: str, value: float) -> None:
        done = value - self._seen[key]
        if done > 0:
            self._counter(_TOTALS[key]).inc(done)
            self._seen[key] = int(value)

    def _drop(self, cause: str, rows: float) -> None:
        if cause not in self._causes and len(self._causes) < _MAX_CAUSES:
            self._causes[cause] = self._counter(names.ROWS_DROPPED_TOTAL).labels(cause)
        if cause in self._causes:
            self._causes[cause].inc(rows)

    def _observe_phase(self, key: str, seconds: float) -> None:
        name = names.phase_of(key)
        if name is None or seconds <= 0:  # a phase that didn't happen in this record took no time
            return
        whole, _, part = name.partition("/")
        if part:
            if name not in self._parts and len(self._parts) < _MAX_PARTS:
                self._parts[name] = self._counter(names.PHASE_PART_SECONDS_TOTAL).labels(whole, part)
            if name in self._parts:
                self._parts[name].inc(seconds)
            return
        if name not in self._phases and len(self._phases) < _MAX_PHASES:
            self._phases[name] = self._phase_seconds.labels(name)
        if name in self._phases:
            self._phases[name].observe(seconds)

    def _set_learner_value(self, key: str, value: float) -> None:
        if key not in self._learner and len(self._learner) < _MAX_LEARNER_VALUES:
            self._learner[key] = self._gauge(names.LEARNER_VALUE).labels(key)
        if key in self._learner:
            self._learner[key].set(value)

    def _gauge(self, family: Family) -> Gauge:
        if family not in self._gauges:
            self._gauges[family] = family.gauge(self._registry)
        return self._gauges[family]

    def _counter(self, family: Family) -> Counter:
        if family not in self._counters:
            self._counters[family] = family.counter(self._registry)
        return self._counters[family]


class _OldestRow:
    """When the oldest row of a replay buffer was written, to the nearest record."""

    def __init__(self) -> None:
        self._moments: deque[tuple[int, float]] = deque()  # rows ever written, and when so many had been

    def age_s(self, written: int, at_hand: int, now_s: float) -> float:
        """Return how long ago the oldest row of ``at_hand`` was written, when ``written`` have ever been."""
        self._moments.append((written, now_s))
        oldest = written - at_hand
        while self._moments[0][0] <= oldest and len(self._moments) > 1:
            self._moments.popleft()
        if len(self._moments) > _MAX_MOMENTS:
            self._moments = deque([self._moments[0], *list(self._moments)[1:-1:2], self._moments[-1]])
        return now_s - self._moments[0][1]
