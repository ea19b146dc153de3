"""What the operator exports of single jobs: made anew from what it knows whenever somebody asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rljob_operator import metrics
from rljob_operator.metrics import JobValue
from rljob_operator.planner.conditions import find
from rljob_operator.planner.deadlines import deadline
from rljob_operator.reconcile.views import JobView, time_of

_ENDED = frozenset({"Succeeded", "Failed"})
_PHASES = frozenset(metrics.PHASES)


def phase_of(job: JobView) -> str:
    """Return the phase of a job as a label has it."""
    return job.status.phase if job.status.phase in _PHASES else metrics.UNKNOWN


def phases(jobs: Iterable[JobView]) -> Counter[str]:
    """Return how many jobs are in each phase."""
    return Counter(phase_of(job) for job in jobs)


def job_values(jobs: Iterable[JobView]) -> Iterator[JobValue]:
    """Return what is exported of each of these jobs: at most 17 series."""
    for job in jobs:
        own = (job.owner.namespace, job.owner.name)
        phase = phase_of(job)
        yield JobValue(metrics.JOB_PHASE, (*own, phase), 1.0)
        yield from _lasting(job, own)
        if phase not in _ENDED and phase != "Suspended":
            yield from _waiting(job, own)
            yield from _deadline(job, own)
        yield from _progress(job, own, runs=phase == "Running")


def _lasting(job: JobView, own: tuple[str, str]) -> Iterator[JobValue]:
    status, spec = job.status, job.spec
    algorithm = spec.training.algorithm if spec is not None else metrics.UNKNOWN
    durable = find(status.conditions, "CheckpointDurable")
    storage = "true" if durable is not None and durable.status == "True" else "false"
    yield JobValue(metrics.JOB_INFO, (*own, job.owner.uid, algorithm, storage), 1.0)
    yield JobValue(metrics.JOB_PODS, (*own, "desired"), sum(role.desired for role in status.roles))
    yield JobValue(metrics.JOB_PODS, (*own, "ready"), sum(role.ready for role in status.roles))
    restarts = status.restarts
    yield JobValue(metrics.JOB_RESTARTS, (*own, "Faults"), restarts.faults if restarts is not None else 0)
    yield JobValue(metrics.JOB_RESTARTS, (*own, "Disruptions"), restarts.disruptions if restarts is not None else 0)


def _waiting(job: JobView, own: tuple[str, str]) -> Iterator[JobValue]:
    ready = find(job.status.conditions, "PodsReady")
    if ready is not None and ready.status == "False":
        reason = ready.reason if ready.reason in metrics.WAITS else metrics.OTHER
        yield JobValue(metrics.JOB_WAITING, (*own, reason), 1.0)


def _deadline(job: JobView, own: tuple[str, str]) -> Iterator[JobValue]:
    status, spec = job.status, job.spec
    if spec is None or status.activation is None:
        return
    policy = spec.run_policy
    found = deadline(policy, activated=status.activation.time, running=status.running_time)
    kind = "Active" if status.running_time is not None else "PreRunning"
    limit_s = policy.active_deadline_seconds if kind == "Active" else policy.pre_running_deadline_seconds
    if found is not None and limit_s is not None:
        yield JobValue(metrics.JOB_DEADLINE_TIMESTAMP_SECONDS, (*own, kind), found.at.timestamp())
        yield JobValue(metrics.JOB_DEADLINE_LIMIT_SECONDS, (*own, kind), limit_s)


def _progress(job: JobView, own: tuple[str, str], *, runs: bool) -> Iterator[JobValue]:
    status = job.status
    times = (
        (metrics.JOB_RUNNING_TIMESTAMP_SECONDS, status.running_time),
        (metrics.JOB_CHECKPOINT_TIMESTAMP_SECONDS, status.checkpoint.time if status.checkpoint is not None else None),
    )
    for family, text in times:
        time = time_of(text)
        if time is not None:
            yield JobValue(family, own, time.timestamp())
    progress = status.progress
    if progress is None:
        return
    frames, total = progress.frames, progress.total_frames
    numbers = (
        (metrics.JOB_PROGRESS_FRAMES, frames),
        (metrics.JOB_PROGRESS_RATIO, min(1.0, frames / total) if frames is not None and total else None),
        (metrics.JOB_REWARD, progress.reward),
        (metrics.JOB_BEST_REWARD, progress.best_reward),
        (metrics.JOB_FRAMES_PER_SECOND, progress.frames_per_second if runs else None),
        (metrics.JOB_REMAINING_SECONDS, progress.remaining_seconds if runs else None),
    )
    for family, number in numbers:
        if number is not None:
            yield JobValue(family, own, number)
