"""Every metric of the operator: names, and the objects on an injected registry. No label holds a job's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rlruntime import __version__

RECONCILE_DURATION_SECONDS = "rljob_operator_reconcile_duration_seconds"
RECONCILE_ERRORS_TOTAL = "rljob_operator_reconcile_errors_total"
API_REQUESTS_TOTAL = "rljob_operator_api_requests_total"
QUEUE_DEPTH = "rljob_operator_queue_depth"
QUEUE_LATENCY_SECONDS = "rljob_operator_queue_latency_seconds"
WATCH_LAST_ACTIVITY_TIMESTAMP_SECONDS = "rljob_operator_watch_last_activity_timestamp_seconds"
JOBS = "rljob_operator_jobs"
JOB_TIME_TO_RUNNING_SECONDS = "rljob_operator_job_time_to_running_seconds"
RESTARTS_TOTAL = "rljob_operator_restarts_total"
EVENTS_DROPPED_TOTAL = "rljob_operator_events_dropped_total"
RESYNC_CORRECTIONS_TOTAL = "rljob_operator_resync_corrections_total"
INFO = "rljob_operator_build_info"

# fmt: off
_REASONS = frozenset({
    "Completed", "ContainerCannotRun", "ContainerStatusUnknown", "Deleted", "DeletionByPodGC", "DeletionByTaintManager",
    "EnvironmentFault", "Error", "Evicted", "EvictionByEvictionAPI", "Failed", "Fenced", "NodeLost",
    "NodeShutdown", "OOMKilled", "OutOfcpu", "OutOfmemory", "OutOfpods", "PodLost", "PreemptionByScheduler",
    "Preempting", "RLJobError", "StartError", "Stopped", "StorageError", "Terminated", "TerminationByKubelet",
    "UnexpectedAdmissionError",
})
# fmt: on
"""Reasons of restarts that are a label's value. A container may give any word of its own; that is `Other`."""

_PASS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_START_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


class OperatorMetrics:
    """The operator's metrics on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.reconcile_duration = Histogram(
            RECONCILE_DURATION_SECONDS, "Duration of one pass over a job", registry=registry, buckets=_PASS_BUCKETS
        )
        self.reconcile_errors = Counter(
            RECONCILE_ERRORS_TOTAL, "Passes that failed, by type of error", ["error"], registry=registry
        )
        self.api_requests = Counter(
            API_REQUESTS_TOTAL, "Requests to the API server", ["verb", "resource", "code"], registry=registry
        )
        self.queue_depth = Gauge(QUEUE_DEPTH, "Jobs that wait for a worker", registry=registry)
        self.queue_latency = Histogram(
            QUEUE_LATENCY_SECONDS, "How long a job waited for a worker", registry=registry, buckets=_PASS_BUCKETS
        )
        self.time_to_running = Histogram(
            JOB_TIME_TO_RUNNING_SECONDS,
            "From first sight of a job until all its pods were ready for the first time",
            registry=registry,
            buckets=_START_BUCKETS,
        )
        self.restarts = Counter(
            RESTARTS_TOTAL, "Restarts that were charged", ["scope", "budget", "reason"], registry=registry
        )
        self.events_dropped = Counter(
            EVENTS_DROPPED_TOTAL, "Events about jobs that could not be written", registry=registry
        )
        self.resync_corrections = Counter(
            RESYNC_CORRECTIONS_TOTAL, "Objects that watches had missed", ["resource"], registry=registry
        )
        Gauge(INFO, "Version of the operator", ["version"], registry=registry).labels(__version__).set(1)

    def count_request(self, verb: str, resource: str, code: int | str) -> None:
        """Count one request; ``code`` is ``error`` where no answer came."""
        self.api_requests.labels(verb, resource or "discovery", str(code)).inc()

    def count_restarts(self, scope: str, budget: str, reason: str, count: int) -> None:
        """Count restarts that were charged.

        Args:
            scope: ``Gang`` for all trainers, ``Pod`` for one pod of another role.
            budget: ``Faults`` or ``Disruptions``.
        """
        self.restarts.labels(scope, budget, reason if reason in _REASONS else "Other").inc(count)

    def gauges_of(self, jobs: Callable[[], Mapping[str, int]], watches: Callable[[], Mapping[str, float]]) -> None:
        """Register what is read only when someone asks: jobs by phase, and each watch's last activity in Unix time."""
        self.registry.register(_Read(jobs, watches))


class _Read(Collector):
    def __init__(self, jobs: Callable[[], Mapping[str, int]], watches: Callable[[], Mapping[str, float]]) -> None:
        self._jobs, self._watches = jobs, watches

    def collect(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily(JOBS, "Jobs, by phase", labels=["phase"])
        for phase, count in self._jobs().items():
            jobs.add_metric([phase], count)
        yield jobs
        watches = GaugeMetricFamily(
            WATCH_LAST_ACTIVITY_TIMESTAMP_SECONDS,
            "When a watch last said anything, bookmarks included; the oldest of a resource's watches",
            labels=["resource"],
        )
        for resource, time_s in self._watches().items():
            watches.add_metric([resource], time_s)
        yield watches
