"""Names of a job's objects. All are valid DNS labels of at most 63 characters.

A pod is called after its job, role, place and attempt, so that a second one for the same place can't come into being.
The other objects bear the beginning of the job's uid: a job that is deleted and made anew never waits for what its
predecessor leaves behind, and never takes it for its own.
"""

from __future__ import annotations

import hashlib

from rljob_operator.builders.owner import Owner

MAX_LABEL = 63
"""Longest DNS label, and longest value of a label."""
_MAX_INDEX_DIGITS, _MAX_ATTEMPT_DIGITS = 4, 10
_MAX_STEM = MAX_LABEL - len("--") - _MAX_INDEX_DIGITS - _MAX_ATTEMPT_DIGITS
_HASH_CHARS = 8
_UID_CHARS = 8


def pod_name(owner: Owner, role: str, index: int, attempt: int) -> str:
    """Return the name of a pod: ``job-role-index-attempt``; where that is too long, a hash stands in for the middle."""
    stem = f"{owner.name}-{role}"
    if len(stem) > _MAX_STEM:
        digest = hashlib.sha256(f"{owner.name}/{role}".encode()).hexdigest()[:_HASH_CHARS]
        stem = f"{stem[: _MAX_STEM - _HASH_CHARS - 1].rstrip('-')}-{digest}"
    return f"{stem}-{index}-{attempt}"


def service_name(owner: Owner) -> str:
    """Return the name of the headless Service under which the pods find each other."""
    return _with_uid(owner)


def spec_name(owner: Owner) -> str:
    """Return the name of the ConfigMap that holds the spec."""
    return f"{_with_uid(owner)}-spec"


def token_name(owner: Owner, nonce: str) -> str:
    """Return the name of the Secret that holds the token.

    Args:
        nonce: a few random letters and digits. Nobody knows the name in advance, so that a Secret which has it already
            is ours: it needn't be read to see that.
    """
    return f"{_with_uid(owner)}-token-{nonce}"


def claim_name(owner: Owner) -> str:
    """Return the name of the PersistentVolumeClaim that is made for the job."""
    return f"{_with_uid(owner)}-storage"


def policy_name(owner: Owner) -> str:
    """Return the name of the NetworkPolicy that is made for the job."""
    return f"{_with_uid(owner)}-network"


def _with_uid(owner: Owner) -> str:
    return f"{owner.name}-{owner.uid[:_UID_CHARS]}"
