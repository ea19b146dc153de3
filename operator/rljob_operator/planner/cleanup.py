"""What becomes of a finished job: its pods, and in the end itself."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from rljob_operator.planner.observed import ObservedPod
from rljob_operator.planner.plan import DeletePod
from rljob_operator.planner.times import parse
from rlruntime.spec.policies import RunPolicy
from rlruntime.spec.status import RLJobStatus

LINGER = timedelta(seconds=10)
"""How long after the job a pod is given to end whose main container has ended. Its node says so of the container first;
a pod that doesn't follow has other containers, which run on."""


def finished(status: RLJobStatus) -> bool:
    """Return whether the job has succeeded or failed; nothing brings it back from there."""
    return status.completion_time is not None


def deletions(
    policy: RunPolicy, pods: Iterable[ObservedPod], *, completed: datetime, now: datetime
) -> tuple[list[DeletePod], datetime | None]:
    """Return which pods of a finished job are deleted, whatever it ended with, and when to look again."""
    if policy.clean_pod_policy == "None":
        return [], None
    due = completed + LINGER
    found: list[DeletePod] = []
    waits = False
    for pod in pods:
        if pod.gone or pod.deletion_at is not None:
            continue
        if policy.clean_pod_policy != "All":
            if pod.phase in ("Succeeded", "Failed"):
                continue
            if pod.end is not None and now < due:
                waits = True
                continue
        found.append(DeletePod(pod.name, pod.uid))
    return found, due if waits else None


def expires_at(policy: RunPolicy, status: RLJobStatus) -> datetime | None:
    """Return when a finished job itself is deleted; None: never."""
    completed = parse(status.completion_time)
    if policy.ttl_seconds_after_finished is None or completed is None:
        return None
    return completed + timedelta(seconds=policy.ttl_seconds_after_finished)
