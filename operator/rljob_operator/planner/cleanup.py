"""What becomes of a finished job: its pods, and in the end itself."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from rljob_operator.planner.observed import ObservedPod
from rljob_operator.planner.plan import DeletePod
from rljob_operator.planner.times import parse
from rlruntime.spec.policies import RunPolicy
from rlruntime.spec.status import RLJobStatus


def finished(status: RLJobStatus) -> bool:
    """Return whether the job has succeeded or failed; nothing brings it back from there."""
    return status.completion_time is not None


def deletions(policy: RunPolicy, pods: Iterable[ObservedPod]) -> list[DeletePod]:
    """Return which pods of a finished job are deleted, whatever it ended with."""
    if policy.clean_pod_policy == "None":
        return []
    everything = policy.clean_pod_policy == "All"
    return [
        DeletePod(pod.name, pod.uid)
        for pod in pods
        if not pod.gone and pod.deletion_at is None and (everything or pod.phase not in ("Succeeded", "Failed"))
    ]


def expires_at(policy: RunPolicy, status: RLJobStatus) -> datetime | None:
    """Return when a finished job itself is deleted; None: never."""
    completed = parse(status.completion_time)
    if policy.ttl_seconds_after_finished is None or completed is None:
        return None
    return completed + timedelta(seconds=policy.ttl_seconds_after_finished)
