"""What Prometheus sees of a run, filled once per iteration from the record that the loggers get."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

import rlruntime
from rlruntime.metrics import names

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_MAX_PHASES = 32
_MAX_LEARNER_VALUES = 64

Record = Mapping[str, float | int | str]


class MetricsExporter:
    """The metrics of one run on one registry. Called by the thread that trains; scraped by any other.

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
        self._wall_clock = wall_clock
        self._seen = {
            names.FRAMES: start_frames,
            names.ITERATION: start_iterations,
            names.EPISODES: start_episodes,
        }
        self._counters = {
            names.FRAMES: _counter(registry, names.FRAMES_TOTAL, "Valid decisions of environments."),
            names.ITERATION: _counter(registry, names.ITERATIONS_TOTAL, "Iterations of collecting and learning."),
            names.EPISODES: _counter(registry, names.EPISODES_TOTAL, "Training episodes that ended."),
        }
        self._evaluations = _counter(registry, names.EVALUATIONS_TOTAL, "Evaluations that ended.")
        self._checkpoints = _counter(registry, names.CHECKPOINTS_TOTAL, "Checkpoints that were written.")
        self._gauges = {
            names.FRAMES: _gauge(registry, names.PROGRESS_FRAMES, "Frames of the job, resumed ones included."),
            names.TIME_FRAMES_PER_SECOND: _gauge(
                registry, names.FRAMES_PER_SECOND, "Frames per second, last iteration."
            ),
            names.EPISODE_REWARD_MEAN: _gauge(
                registry, names.EPISODE_REWARD, "Mean reward of recent training episodes."
            ),
            names.EPISODE_LENGTH_MEAN: _gauge(
                registry, names.EPISODE_LENGTH_STEPS, "Mean length in steps of recent training episodes."
            ),
            names.EVALUATION_REWARD_MEAN: _gauge(
                registry, names.EVALUATION_REWARD, "Mean reward of the last evaluation."
            ),
        }
        self._gauges[names.FRAMES].set(start_frames)
        _gauge(registry, names.TARGET_FRAMES, "Frames after which training ends.").set(target_frames)
        self._last_iteration = _gauge(
            registry, names.LAST_ITERATION_TIMESTAMP_SECONDS, "Time at which the last iteration ended, since the epoch."
        )
        self._phase_seconds = Histogram(
            names.PHASE_SECONDS,
            "Seconds of a phase in one iteration.",
            ["phase"],
            registry=registry,
            buckets=_BUCKETS_S,
        )
        self._phases: dict[str, Histogram | None] = {}
        self._learner_value = Gauge(
            names.LEARNER_VALUE, "What the learner says of its last update.", ["name"], registry=registry
        )
        self._learner: dict[str, Gauge] = {}
        info = Gauge(names.INFO, "1, with the version as a label.", ["version"], registry=registry)
        info.labels(rlruntime.__version__).set(1)

    def observe_iteration(self, record: Record) -> None:
        """Take in one record. Unknown fields are left alone; strings are never exported."""
        for key, value in record.items():
            if isinstance(value, str):
                continue
            if key in self._counters:
                self._count(key, value)
            gauge = self._gauges.get(key)
            if gauge is not None:
                gauge.set(value)
            elif key.startswith(names.TIME_PREFIX):
                self._observe_phase(key, value)
            elif key.startswith(names.LEARNER_PREFIXES):
                self._set_learner_value(key, value)
        if names.EVALUATION_REWARD_MEAN in record:
            self._evaluations.inc()
        self._last_iteration.set(self._wall_clock())

    def checkpoint_written(self) -> None:
        """Count a checkpoint; its seconds come as the phase ``checkpoint``."""
        self._checkpoints.inc()

    def _count(self, key: str, value: float) -> None:
        done = value - self._seen[key]
        if done > 0:
            self._counters[key].inc(done)
            self._seen[key] = int(value)

    def _observe_phase(self, key: str, seconds: float) -> None:
        if key not in self._phases:
            phase = names.phase_of(key)
            known = phase is not None and len(self._phases) < _MAX_PHASES
            self._phases[key] = self._phase_seconds.labels(phase) if known else None
        histogram = self._phases[key]
        if histogram is not None and seconds > 0:  # a phase that didn't happen in this record took no time
            histogram.observe(seconds)

    def _set_learner_value(self, key: str, value: float) -> None:
        gauge = self._learner.get(key)
        if gauge is None:
            if len(self._learner) >= _MAX_LEARNER_VALUES:
                return
            gauge = self._learner[key] = self._learner_value.labels(key)
        gauge.set(value)


def _counter(registry: CollectorRegistry, name: str, text: str) -> Counter:
    return Counter(name, text, registry=registry)


def _gauge(registry: CollectorRegistry, name: str, text: str) -> Gauge:
    return Gauge(name, text, registry=registry)
