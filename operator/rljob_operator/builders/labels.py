"""Labels of a job's objects. Objects are selected by the job's uid: a job of the same name finds none of another's."""

from __future__ import annotations

from rljob_operator.builders.owner import Owner
from rlruntime.spec.contract import (
    LABEL_ATTEMPT,
    LABEL_INDEX,
    LABEL_JOB_NAME,
    LABEL_JOB_UID,
    LABEL_MANAGED_BY,
    LABEL_PREFIX,
    LABEL_ROLE,
    LABEL_ROLE_TYPE,
    MANAGED_BY_OPERATOR,
)
from rlruntime.spec.roles import Role


def job_labels(owner: Owner) -> dict[str, str]:
    """Return the labels of every object of a job."""
    return {LABEL_MANAGED_BY: MANAGED_BY_OPERATOR, LABEL_JOB_NAME: owner.name, LABEL_JOB_UID: owner.uid}


def pod_labels(owner: Owner, role: Role, index: int, attempt: int) -> dict[str, str]:
    """Return the labels of a pod."""
    return {
        **job_labels(owner),
        LABEL_ROLE: role.name,
        LABEL_ROLE_TYPE: role.type,
        LABEL_INDEX: str(index),
        LABEL_ATTEMPT: str(attempt),
    }


def job_selector(owner: Owner) -> dict[str, str]:
    """Return what all pods of a job have in common, and no other pod has."""
    return {LABEL_JOB_UID: owner.uid}


def is_ours(key: str) -> bool:
    """Return whether a label or an annotation of this name is set by the operator alone."""
    return key.startswith(LABEL_PREFIX) or key == LABEL_MANAGED_BY
