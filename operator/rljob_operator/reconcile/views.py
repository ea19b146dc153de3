"""A job or a pod of the API server, trimmed to what the rules read. The object itself isn't kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from rljob_operator.builders.owner import KubeObject, Owner
from rljob_operator.planner.observed import ORDINARY_WAITS, ContainerEnd, ObservedPod, Trouble
from rlruntime.spec.contract import (
    LABEL_ATTEMPT,
    LABEL_INDEX,
    LABEL_JOB_UID,
    LABEL_ROLE,
    MAIN_CONTAINER,
)
from rlruntime.spec.manifest import MANAGED_BY, RLJobSpec
from rlruntime.spec.problems import model_error
from rlruntime.spec.status import RLJobStatus

_LEVELS = 100
"""Most levels of a spec. Whoever walks through it calls himself at each, and what is far deeper isn't even read."""
_NEVER_RAN = frozenset({"ContainerCannotRun", "StartError", "CreateContainerError"})


@dataclass(frozen=True, slots=True)
class JobView:
    """What is kept of a job."""

    owner: Owner
    resource_version: int
    generation: int
    spec: RLJobSpec | None
    """None where this version can't read it; `spec_problem` says why."""
    status: RLJobStatus
    spec_problem: str = ""
    managed_by: str = MANAGED_BY
    """As it stands in the spec, also in one that can't be read."""
    status_problem: str = ""
    """Why the status can't be read; such a job is left alone."""
    deleting: bool = False
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PodView:
    """What is kept of a pod."""

    pod: ObservedPod
    job_uid: str
    namespace: str
    resource_version: int


def version_of(item: Mapping[str, Any]) -> int:
    """Return the resourceVersion as a number, which rises with every change of an object."""
    text = item.get("metadata", {}).get("resourceVersion") or ""
    return int(text) if text.isdigit() else 0


def job_view(item: KubeObject, known: JobView | None = None) -> JobView:
    """Return the view of an RLJob.

    Args:
        known: an older view of the same job, whose spec is taken over where the generation is the same: reading one
            takes a millisecond.
    """
    about = item["metadata"]
    generation = int(about.get("generation") or 0)
    if known is not None and known.generation == generation and known.owner.uid == about["uid"]:
        spec, problem = known.spec, known.spec_problem
    else:
        spec, problem = _spec(item.get("spec"))
    status, status_problem = _status(item.get("status"))
    return JobView(
        owner=Owner(name=about["name"], namespace=about["namespace"], uid=about["uid"]),
        resource_version=version_of(item),
        generation=generation,
        spec=spec,
        spec_problem=problem,
        managed_by=_managed_by(item.get("spec")),
        status=status,
        status_problem=status_problem,
        deleting="deletionTimestamp" in about,
        created_at=time_of(about.get("creationTimestamp")),
    )


def _spec(document: Any) -> tuple[RLJobSpec | None, str]:
    if _is_deeper(document, _LEVELS):
        return None, f"spec: is nested more than {_LEVELS} levels deep; put what is so deep into a file of the image"
    try:
        return RLJobSpec.model_validate(document, by_alias=True, by_name=False), ""
    except ValidationError as error:
        return None, str(model_error(error, RLJobSpec, document, at="spec"))


def _managed_by(document: Any) -> str:
    named = document.get("managedBy") if isinstance(document, dict) else None
    return named if isinstance(named, str) else MANAGED_BY


def _is_deeper(document: Any, levels: int) -> bool:
    """Return whether ``document`` has more levels of mappings and lists."""
    layer = [document]
    for _ in range(levels + 1):
        layer = [
            inner
            for item in layer
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not layer:
            return False
    return True


def _status(document: Any) -> tuple[RLJobStatus, str]:
    if not document:
        return RLJobStatus(), ""
    try:
        return RLJobStatus.model_validate(document, by_alias=True, by_name=False), ""
    except ValidationError as error:
        return RLJobStatus(), str(model_error(error, RLJobStatus, document, at="status"))


def controller_uid(item: Mapping[str, Any]) -> str:
    """Return the uid of the object that controls ``item``; empty where none does."""
    for reference in item.get("metadata", {}).get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference.get("uid") or "")
    return ""


def pod_view(item: KubeObject) -> PodView | None:
    """Return the view of a pod, or None for one that is no job's: without our labels, or controlled by another.

    ``item`` may be its metadata alone, as after its creation.
    """
    about = item["metadata"]
    labels = about.get("labels") or {}
    uid = labels.get(LABEL_JOB_UID)
    role, index, attempt = (labels.get(name, "") for name in (LABEL_ROLE, LABEL_INDEX, LABEL_ATTEMPT))
    if not uid or controller_uid(item) != uid or not role or not index.isdigit() or not attempt.isdigit():
        return None
    status = item.get("status") or {}
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    main = (
        next((entry for entry in status.get("containerStatuses") or () if entry.get("name") == MAIN_CONTAINER), None)
        or {}
    )
    end = _end(main)
    pod = ObservedPod(
        name=about["name"],
        uid=about["uid"],
        role=role,
        index=int(index),
        attempt=int(attempt),
        phase=status.get("phase") or "Pending",
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        started=_started(main),
        created_at=time_of(about.get("creationTimestamp")),
        node=(item.get("spec") or {}).get("nodeName") or "",
        ip=status.get("podIP") or "",
        deletion_at=time_of(about.get("deletionTimestamp")),
        deletion_grace_seconds=about.get("deletionGracePeriodSeconds"),
        end=end,
        reason=status.get("reason") or "",
        message=status.get("message") or (_failed_other(status) if end is None else ""),
        disruption=_reason_if(conditions.get("DisruptionTarget"), "True"),
        unschedulable=_unschedulable(conditions.get("PodScheduled")),
        waiting=_waiting(status),
    )
    return PodView(pod, uid, about["namespace"], version_of(item))


def _end(main: Mapping[str, Any]) -> ContainerEnd | None:
    ended = (main.get("state") or {}).get("terminated")
    if not ended:
        return None
    return ContainerEnd(
        exit_code=int(ended.get("exitCode") or 0),
        reason=ended.get("reason") or "",
        message=ended.get("message") or "",
        finished_at=time_of(ended.get("finishedAt")),
    )


def _started(main: Mapping[str, Any]) -> bool:
    state = main.get("state") or {}
    if "running" in state:
        return True
    ended = state.get("terminated")
    return ended is not None and ended.get("reason") not in _NEVER_RAN


def _reason_if(condition: Mapping[str, Any] | None, status: str) -> str:
    if condition is None or condition.get("status") != status:
        return ""
    return condition.get("reason") or "Unknown"


def _unschedulable(condition: Mapping[str, Any] | None) -> str:
    if condition is None or condition.get("status") != "False" or condition.get("reason") != "Unschedulable":
        return ""
    return condition.get("message") or "Unschedulable"


def _containers(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _waiting(status: Mapping[str, Any]) -> Trouble | None:
    for entry in _containers(status):
        waiting = (entry.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason") or ""
        if reason not in ORDINARY_WAITS:
            about = f"container {entry.get('name')}, image {entry.get('image')}"
            return Trouble(reason, f"{about}: {waiting.get('message') or reason}")
    return None


def _failed_other(status: Mapping[str, Any]) -> str:
    """Where a pod failed before its main container ran, say which container did."""
    if status.get("phase") != "Failed":
        return ""
    for entry in _containers(status):
        ended = (entry.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            words = ended.get("message") or ended.get("reason") or ""
            return f"container {entry.get('name')} ended with exit code {ended['exitCode']}: {words}".rstrip(": ")
    return ""


def time_of(text: Any) -> datetime | None:
    """Return the time that an API object gives, or None."""
    try:
        return datetime.fromisoformat(text) if text else None
    except (TypeError, ValueError):
        return None


def time_text(time: datetime) -> str:
    """Return a time as API objects give it, to the second."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
