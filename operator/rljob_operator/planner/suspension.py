"""Taking a job's pods away, and bringing it back."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rljob_operator.planner.observed import ObservedPod
from rljob_operator.planner.plan import DeletePod
from rljob_operator.planner.times import stamp
from rlruntime.spec.status import ActivationStatus, RestartsStatus, RLJobStatus


def deletions(pods: Iterable[ObservedPod]) -> list[DeletePod]:
    """Return the pods of a suspended job that nobody has deleted yet. Each has its own time to write a checkpoint."""
    return [DeletePod(pod.name, pod.uid) for pod in pods if not pod.gone and pod.deletion_at is None]


def at_rest(restarts: RestartsStatus) -> RestartsStatus:
    """Return ``restarts`` of a job that is suspended: its budgets stay spent, and nothing is waited for."""
    if restarts.next_attempt_time is None and not restarts.streak:
        return restarts
    return restarts.model_copy(update={"next_attempt_time": None, "streak": 0})


def activation(status: RLJobStatus, now: datetime) -> ActivationStatus:
    """Return the activation that begins now: with the first attempts and the first round, or with the next ones.

    Its round is above the attempt of every pod that there ever was, so that no name is used twice.
    """
    if status.attempt is None:
        return ActivationStatus(time=stamp(now))
    latest = max(status.attempt, status.round or 0)
    if status.restarts is not None:
        latest = max(latest, *status.restarts.slots.values(), 0)
    return ActivationStatus(time=stamp(now), attempt=status.attempt + 1, round=latest + 1)
