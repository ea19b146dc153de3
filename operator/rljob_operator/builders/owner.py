"""The job that objects belong to, and the metadata that says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlruntime.spec.manifest import API_VERSION, KIND

KubeObject = dict[str, Any]
"""A Kubernetes object, or a part of one, as JSON has it."""


@dataclass(frozen=True)
class Owner:
    """A job on the API server."""

    name: str
    namespace: str
    uid: str


def metadata(
    owner: Owner,
    name: str,
    labels: dict[str, str],
    *,
    annotations: dict[str, str] | None = None,
    goes_with_job: bool = True,
) -> KubeObject:
    """Return the metadata of an object that belongs to ``owner``.

    Args:
        goes_with_job: whether Kubernetes deletes the object once its job is gone. It never holds up the job's deletion.
    """
    found: KubeObject = {"name": name, "namespace": owner.namespace, "labels": labels}
    if annotations:
        found["annotations"] = annotations
    if goes_with_job:
        found["ownerReferences"] = [_reference(owner)]
    return found


def _reference(owner: Owner) -> KubeObject:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
