"""The Secret that holds a job's token, and the drawing of a token."""

from __future__ import annotations

from collections.abc import Callable

from rljob_operator.builders.labels import job_labels
from rljob_operator.builders.owner import KubeObject, Owner, metadata
from rlruntime.spec.contract import TOKEN_BYTES, TOKEN_NAME


def draw_token(random_bytes: Callable[[int], bytes]) -> str:
    """Return a new token.

    Args:
        random_bytes: returns as many unpredictable bytes as asked for; ``secrets.token_bytes``.
    """
    return random_bytes(TOKEN_BYTES).hex()


def token_secret(owner: Owner, name: str, token: str) -> KubeObject:
    """Return the Secret ``name`` that every pod of the job mounts. It is created and never read, nor changed."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(owner, name, job_labels(owner)),
        "type": "Opaque",
        "immutable": True,
        "stringData": {TOKEN_NAME: token},
    }
