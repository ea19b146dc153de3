"""The difference between the status that the API server has and the one that is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_operator.builders.owner import KubeObject
from rljob_operator.reconcile.views import JobView
from rlruntime.spec.status import RLJobStatus


def status_changes(stored: RLJobStatus, wanted: RLJobStatus) -> KubeObject:
    """Return the merge patch from ``stored`` to ``wanted``; empty where they are the same.

    Fields of a newer operator, which neither holds, are left as they are.
    """
    if stored == wanted:
        return {}
    return _changes(_document(stored), _document(wanted))


def status_patch(job: JobView, changes: KubeObject) -> KubeObject:
    """Return the body of a write that is refused if the job is another, or has changed since."""
    guard = {"uid": job.owner.uid, "resourceVersion": str(job.resource_version)}
    return {"metadata": guard, "status": changes}


def is_talk_alone(stored: RLJobStatus, wanted: RLJobStatus) -> bool:
    """Return whether nothing but words has changed: what the trainer said, or the messages of conditions.

    A scheduler's words count nodes, and change with each that comes or goes.
    """
    return _without_talk(stored) == _without_talk(wanted)


def _without_talk(status: RLJobStatus) -> RLJobStatus:
    conditions = tuple(item.model_copy(update={"message": ""}) for item in status.conditions)
    silent = {"progress": None, "checkpoint": None, "message": None, "conditions": conditions}
    return status.model_copy(update=silent)


def _document(status: RLJobStatus) -> KubeObject:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _changes(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> KubeObject:
    changes: KubeObject = {name: None for name in stored if name not in wanted}
    for name, value in wanted.items():
        old = stored.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := _changes(old, value):
                changes[name] = inner
        elif value != old or type(value) is not type(old):
            changes[name] = value
    return changes
