"""What a manifest becomes on a cluster, found without one."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from rljob_operator.builders.children import children
from rljob_operator.builders.network import Reach
from rljob_operator.builders.owner import KubeObject, Owner
from rljob_operator.planner.scheduling import unsupported
from rlruntime.errors import ConfigError
from rlruntime.spec.manifest import MANAGED_BY, RLJob, RLJobSpec

PLACEHOLDER_UID = "00000000-0000-0000-0000-000000000000"
DEFAULT_NAMESPACE = "default"
PLACEHOLDER_TOKEN = "drawn at random when the job is created"
"""Stands where a token would; a pod refuses it as one."""
PLACEHOLDER_NONCE = "00000"
"""Stands where the random end of the Secret's name would."""


@dataclass(frozen=True)
class Preview:
    """The objects of one job, and what they don't show."""

    objects: tuple[KubeObject, ...]
    notes: tuple[str, ...]
    """One line each, for people."""


def preview(
    job: RLJob, *, image: str, uid: str | None = None, namespace: str | None = None, reach: Reach | None = None
) -> Preview:
    """Return what ``job`` becomes: its objects before anything has happened to it. The same job gives the same objects.

    Args:
        image: image of a role for which the manifest names none.
        uid: uid that the API server would give the job; None takes the manifest's, or zeros.
        namespace: namespace of the job; None takes the manifest's, or ``default``.
        reach: who may reach the job's pods; None: everybody, and no NetworkPolicy is made.

    Raises:
        ConfigError: something in the manifest can't become a valid object, or it names another namespace.
    """
    if namespace and job.metadata.namespace and namespace != job.metadata.namespace:
        raise ConfigError(
            f"the manifest is for another namespace than {namespace!r}",
            field="metadata.namespace",
            value=job.metadata.namespace,
            remedy="give the same, or leave one out",
        )
    if job.spec.managed_by != MANAGED_BY:
        note = f"spec.managedBy: {job.spec.managed_by} acts on this job; the operator leaves it alone"
        return Preview((), (f"{job.metadata.name}: {note}",))
    owner = Owner(
        name=job.metadata.name,
        namespace=namespace or job.metadata.namespace or DEFAULT_NAMESPACE,
        uid=uid or _uid(job) or PLACEHOLDER_UID,
    )
    objects = children(owner, job.spec, token=PLACEHOLDER_TOKEN, image=image, nonce=PLACEHOLDER_NONCE, reach=reach)
    return Preview(tuple(objects), tuple(f"{job.metadata.name}: {note}" for note in _notes(job.spec)))


def _uid(job: RLJob) -> str | None:
    """Names are made of the uid, so it must be one."""
    text = job.metadata.uid
    if text is None:
        return None
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise ConfigError("must be a uid", field="metadata.uid", value=text, remedy="remove it") from None


def _notes(spec: RLJobSpec) -> list[str]:
    notes = []
    if spec.run_policy.suspend:
        notes.append("spec.runPolicy.suspend: a suspended job has no pods; these are made once it is resumed")
    if (refusal := unsupported(spec)) is not None:
        notes.append(refusal[1])
    return notes
