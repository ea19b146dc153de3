"""All objects of a job, as they are before anything has happened to it."""

from __future__ import annotations

from rljob_operator.builders.claims import storage_claim
from rljob_operator.builders.config import spec_config_map
from rljob_operator.builders.names import token_name
from rljob_operator.builders.network import Reach, network_policy
from rljob_operator.builders.owner import KubeObject, Owner
from rljob_operator.builders.pods import Place, pod
from rljob_operator.builders.secret import token_secret
from rljob_operator.builders.services import headless_service
from rlruntime.spec.manifest import RLJobSpec


def desired_replicas(spec: RLJobSpec, role: int) -> int:
    """Return how many pods are wanted of the role at this position in `spec.roles`."""
    if spec.elastic is not None and spec.elastic.role == spec.roles[role].name:
        return spec.elastic.replicas
    return spec.roles[role].replicas


def children(
    owner: Owner, spec: RLJobSpec, *, token: str, image: str, nonce: str, reach: Reach | None = None
) -> list[KubeObject]:
    """Return all objects of a job in its first attempt; what pods mount comes before them.

    Args:
        token: the job's token.
        image: image of a role for which the manifest names none.
        nonce: random end of the name of the token's Secret.
        reach: who may reach the pods; None: everybody, and no NetworkPolicy is made.

    Raises:
        ConfigError: something in the manifest can't become a valid object.
    """
    claim = storage_claim(owner, spec.storage)
    secret = token_name(owner, nonce)
    return [
        spec_config_map(owner, spec),
        token_secret(owner, secret, token),
        headless_service(owner, spec),
        *([network_policy(owner, spec, reach)] if reach else []),
        *([claim] if claim else []),
        *(
            pod(owner, spec, Place(role, index), image=image, secret=secret)
            for role in range(len(spec.roles))
            for index in range(desired_replicas(spec, role))
        ),
    ]
