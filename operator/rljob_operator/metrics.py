"""Every metric of the operator: names, and the objects on an injected registry.

Counters and histograms hold no job's name, so that their number never grows. Gauges of a job are made anew at every
scrape from what the operator knows, so that they go with the job; `rljob_operator.reconcile.job_metrics` fills them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rlruntime import __version__
from rlruntime.metrics.family import PROCESS, Family, by_name, export_process

_PASS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_START_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)

BUILD_INFO = Family(
    "rljob_operator_build_info", "gauge", "1, with the version of the operator as a label.", ("version",)
)
LEADER = Family(
    "rljob_operator_leader", "gauge", "1 while this process acts on jobs, 0 while another one holds the Lease."
)
JOBS = Family("rljob_operator_jobs", "gauge", "Jobs, by phase.", ("phase",))
JOB_TIME_TO_RUNNING_SECONDS = Family(
    "rljob_operator_job_time_to_running_seconds",
    "histogram",
    "From first sight of a job until all its pods were ready for the first time.",
    buckets=_START_BUCKETS,
)
JOBS_FINISHED_TOTAL = Family(
    "rljob_operator_jobs_finished_total",
    "counter",
    "Jobs that this process saw end.",
    ("phase", "reason"),
    when="a job has ended",
)
RESTARTS_TOTAL = Family(
    "rljob_operator_restarts_total",
    "counter",
    "Restarts that were charged.",
    ("scope", "budget", "reason"),
    when="one was charged",
)
RECONCILE_DURATION_SECONDS = Family(
    "rljob_operator_reconcile_duration_seconds",
    "histogram",
    "Duration of one pass over a job; passes that failed are counted in.",
    buckets=_PASS_BUCKETS,
)
RECONCILE_ERRORS_TOTAL = Family(
    "rljob_operator_reconcile_errors_total",
    "counter",
    "Passes that failed, by type of error.",
    ("error",),
    when="a pass has failed",
)
QUEUE_DEPTH = Family("rljob_operator_queue_depth", "gauge", "Jobs that wait for a worker.")
QUEUE_LATENCY_SECONDS = Family(
    "rljob_operator_queue_latency_seconds",
    "histogram",
    "How long a job waited for a worker.",
    buckets=_PASS_BUCKETS,
)
API_REQUESTS_TOTAL = Family(
    "rljob_operator_api_requests_total", "counter", "Requests to the API server.", ("verb", "resource", "code")
)
WATCH_LAST_ACTIVITY_TIMESTAMP_SECONDS = Family(
    "rljob_operator_watch_last_activity_timestamp_seconds",
    "gauge",
    "When a watch last said anything, bookmarks included, in Unix time; the oldest of a resource's watches.",
    ("resource",),
)
EVENTS_DROPPED_TOTAL = Family(
    "rljob_operator_events_dropped_total", "counter", "Events about jobs that could not be written."
)
RESYNC_CORRECTIONS_TOTAL = Family(
    "rljob_operator_resync_corrections_total",
    "counter",
    "Objects that watches had missed.",
    ("resource",),
)

_RUNS = "the job is in the phase `Running`"
_SAID = "its trainer has said so"
_JOB = ("namespace", "rljob_job")

JOB_INFO = Family(
    "rljob_job_info", "gauge", "1, with what doesn't change of a job as labels.", (*_JOB, "uid", "algorithm", "storage")
)
JOB_PHASE = Family("rljob_job_phase", "gauge", "1 for the phase that a job is in; none for others.", (*_JOB, "phase"))
JOB_WAITING = Family(
    "rljob_job_waiting",
    "gauge",
    "1, with what a job waits for.",
    (*_JOB, "reason"),
    when="the job is active, and not all its pods are ready",
)
JOB_PODS = Family(
    "rljob_job_pods", "gauge", "Pods that a job wants, and those of them that are ready.", (*_JOB, "state")
)
JOB_RESTARTS = Family("rljob_job_restarts", "gauge", "Restarts of a job so far, by budget.", (*_JOB, "budget"))
JOB_RUNNING_TIMESTAMP_SECONDS = Family(
    "rljob_job_running_timestamp_seconds",
    "gauge",
    "When all pods of a job were first ready since it was created or resumed, in Unix time.",
    _JOB,
    when="they were",
)
JOB_DEADLINE_TIMESTAMP_SECONDS = Family(
    "rljob_job_deadline_timestamp_seconds",
    "gauge",
    "When a job fails by its deadline, in Unix time.",
    (*_JOB, "deadline"),
    when="the job is active, and a deadline counts",
)
JOB_DEADLINE_LIMIT_SECONDS = Family(
    "rljob_job_deadline_limit_seconds",
    "gauge",
    "How long that deadline allows in all.",
    (*_JOB, "deadline"),
    when="the job is active, and a deadline counts",
)
JOB_PROGRESS_FRAMES = Family(
    "rljob_job_progress_frames", "gauge", "Frames of a job so far, as its trainer said.", _JOB, when=_SAID
)
JOB_PROGRESS_RATIO = Family(
    "rljob_job_progress_ratio", "gauge", "Frames of a job as a share of all, 0 to 1.", _JOB, when=_SAID
)
JOB_REWARD = Family("rljob_job_reward", "gauge", "Mean reward of a job's recent episodes.", _JOB, when=_SAID)
JOB_BEST_REWARD = Family("rljob_job_best_reward", "gauge", "Best mean reward of a job's evaluations.", _JOB, when=_SAID)
JOB_FRAMES_PER_SECOND = Family(
    "rljob_job_frames_per_second", "gauge", "Rate of a job over half a minute.", _JOB, when=f"{_RUNS}, and {_SAID}"
)
JOB_REMAINING_SECONDS = Family(
    "rljob_job_remaining_seconds",
    "gauge",
    "Time that a job still needs at that rate.",
    _JOB,
    when=f"{_RUNS}, and {_SAID}",
)
JOB_CHECKPOINT_TIMESTAMP_SECONDS = Family(
    "rljob_job_checkpoint_timestamp_seconds",
    "gauge",
    "When the newest checkpoint of a job was written, in Unix time.",
    _JOB,
    when="there is one",
)

_FAMILIES = tuple(value for value in list(globals().values()) if isinstance(value, Family))
JOB_FAMILIES = tuple(family for family in _FAMILIES if family.labels[:2] == _JOB)
"""Those of single jobs: 17 series of each, and never more than 20."""
FAMILIES = by_name(*_FAMILIES, *PROCESS)
"""All that the operator exports."""

LABELS = {
    "version": "of the package",
    "namespace": "of the job",
    "rljob_job": "name of the job; pods get the same label as they are scraped",
    "uid": "of the job",
    "algorithm": "as in the manifest",
    "storage": "`true` where checkpoints outlive their pod",
    "phase": "`Pending`, `Running`, `Restarting`, `Suspended`, `Succeeded`, `Failed`; `Unknown` before the first pass",
    "reason": "of a restart, of an end, or of `PodsReady: False`: one that the operator knows, or `Other`",
    "state": "`desired` or `ready`",
    "budget": "`Faults` or `Disruptions`",
    "scope": "`Gang` for all trainers, `Pod` for one pod of another role",
    "deadline": "`Active` or `PreRunning`",
    "error": "name of the exception",
    "verb": "as in rights",
    "resource": "plural, or `discovery`",
    "code": "of HTTP, or `error` where no answer came",
}
"""What the labels mean. But for a job's own, their values are bounded."""

PHASES = ("Pending", "Running", "Restarting", "Suspended", "Succeeded", "Failed")
UNKNOWN, OTHER = "Unknown", "Other"

# fmt: off
_REASONS = frozenset({
    "Completed", "ContainerCannotRun", "ContainerStatusUnknown", "Deleted", "DeletionByPodGC", "DeletionByTaintManager",
    "EnvironmentFault", "Error", "Evicted", "EvictionByEvictionAPI", "Failed", "Fenced", "NodeLost",
    "NodeShutdown", "OOMKilled", "OutOfcpu", "OutOfmemory", "OutOfpods", "PodLost", "PreemptionByScheduler",
    "Preempting", "RLJobError", "StartError", "Stopped", "StorageError", "Terminated", "TerminationByKubelet",
    "UnexpectedAdmissionError",
})
"""Reasons of restarts that are a label's value. A container may give any word of its own; that is `Other`."""
ENDS = frozenset({
    "Completed", "ConfigInvalid", "TemplateInvalid", "SpecInvalid", "SchedulingUnsupported", "BackoffLimitExceeded",
    "DisruptionLimitExceeded", "DeadlineExceeded", "PreRunningDeadlineExceeded",
})
"""Reasons for which a job ends."""
WAITS = frozenset({
    "Creating", "StartupOrder", "Unschedulable", "ImagePullFailed", "ContainerConfigInvalid", "VolumeUnavailable",
    "QuotaExceeded", "Forbidden", "Refused", "NameTaken", "BackOff", "Terminating", "Suspended",
})
"""What an active job waits for."""
# fmt: on


class JobValue(NamedTuple):
    """One series of one job; ``labels`` in the order of the family's."""

    family: Family
    labels: tuple[str, ...]
    value: float


class OperatorMetrics:
    """The operator's metrics on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.leader = LEADER.gauge(registry)
        self.leader.set(1)
        self.reconcile_duration = RECONCILE_DURATION_SECONDS.histogram(registry)
        self.reconcile_errors = RECONCILE_ERRORS_TOTAL.counter(registry)
        self.api_requests = API_REQUESTS_TOTAL.counter(registry)
        self.queue_depth = QUEUE_DEPTH.gauge(registry)
        self.queue_latency = QUEUE_LATENCY_SECONDS.histogram(registry)
        self.time_to_running = JOB_TIME_TO_RUNNING_SECONDS.histogram(registry)
        self.jobs_finished = JOBS_FINISHED_TOTAL.counter(registry)
        self.restarts = RESTARTS_TOTAL.counter(registry)
        self.events_dropped = EVENTS_DROPPED_TOTAL.counter(registry)
        self.resync_corrections = RESYNC_CORRECTIONS_TOTAL.counter(registry)
        export_process(registry, BUILD_INFO, __version__)

    def count_request(self, verb: str, resource: str, code: int | str) -> None:
        """Count one request; ``code`` is ``error`` where no answer came."""
        self.api_requests.labels(verb, resource or "discovery", str(code)).inc()

    def count_restarts(self, scope: str, budget: str, reason: str, count: int) -> None:
        """Count restarts that were charged.

        Args:
            scope: ``Gang`` for all trainers, ``Pod`` for one pod of another role.
            budget: ``Faults`` or ``Disruptions``.
        """
        self.restarts.labels(scope, budget, reason if reason in _REASONS else OTHER).inc(count)

    def count_end(self, phase: str, reason: str) -> None:
        """Count a job that has just ended."""
        self.jobs_finished.labels(phase, reason if reason in ENDS else OTHER).inc()

    def gauges_of(
        self,
        phases: Callable[[], Mapping[str, int]],
        watches: Callable[[], Mapping[str, float]],
        jobs: Callable[[], Iterable[JobValue]],
    ) -> None:
        """Register what is read only when someone asks, in a thread of its own.

        Args:
            phases: returns how many jobs are in each phase.
            watches: returns each watch's last activity in Unix time.
            jobs: returns what is to be said of the jobs that there are.
        """
        self.registry.register(_Read(phases, watches, jobs))


class _Read(Collector):
    def __init__(
        self,
        phases: Callable[[], Mapping[str, int]],
        watches: Callable[[], Mapping[str, float]],
        jobs: Callable[[], Iterable[JobValue]],
    ) -> None:
        self._phases, self._watches, self._jobs = phases, watches, jobs

    def describe(self) -> list[Metric]:
        """Return the families without their series: nothing is read as they are registered."""
        return [_empty(family) for family in (JOBS, WATCH_LAST_ACTIVITY_TIMESTAMP_SECONDS, *JOB_FAMILIES)]

    def collect(self) -> Iterator[Metric]:
        jobs = _empty(JOBS)
        for phase, count in self._phases().items():
            jobs.add_metric([phase], count)
        yield jobs
        watches = _empty(WATCH_LAST_ACTIVITY_TIMESTAMP_SECONDS)
        for resource, time_s in self._watches().items():
            watches.add_metric([resource], time_s)
        yield watches
        found = {family: _empty(family) for family in JOB_FAMILIES}
        for family, labels, value in self._jobs():
            found[family].add_metric(labels, value)
        yield from found.values()


def _empty(family: Family) -> GaugeMetricFamily:
    return GaugeMetricFamily(family.name, family.help, labels=family.labels)
