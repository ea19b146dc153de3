"""The PersistentVolumeClaim of a job that asks for one."""

from __future__ import annotations

import copy

from rljob_operator.builders.labels import job_labels
from rljob_operator.builders.names import claim_name
from rljob_operator.builders.overlay import with_metadata
from rljob_operator.builders.owner import KubeObject, Owner, metadata
from rlruntime.spec.policies import Storage


def storage_claim(owner: Owner, storage: Storage | None) -> KubeObject | None:
    """Return the claim that is made for the job, or None for a job that names an existing one, or none.

    A claim that is retained has no owner: it holds the trained policy, and outlives the job.

    Raises:
        ConfigError: the template sets a label or an annotation that is the operator's.
    """
    if storage is None or storage.volume_claim_template is None:
        return None
    template = storage.volume_claim_template
    path = ("spec", "storage", "volumeClaimTemplate", "metadata")
    labels, annotations = with_metadata(job_labels(owner), template.metadata, path)
    goes_with_job = storage.retention_policy == "Delete"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(owner, claim_name(owner), labels, annotations=annotations, goes_with_job=goes_with_job),
        "spec": copy.deepcopy(template.spec),
    }


def claim_of(owner: Owner, storage: Storage | None) -> str | None:
    """Return the name of the claim that the job writes into; None when what it writes goes with its pods."""
    if storage is None:
        return None
    existing = storage.persistent_volume_claim
    return existing.claim_name if existing else claim_name(owner)
