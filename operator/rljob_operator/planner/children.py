"""The objects that a plan creates."""

from __future__ import annotations

from collections.abc import Iterable

from rljob_operator.builders.claims import storage_claim
from rljob_operator.builders.config import spec_config_map
from rljob_operator.builders.names import claim_name, policy_name, service_name, spec_name
from rljob_operator.builders.network import Reach, network_policy
from rljob_operator.builders.owner import KubeObject, Owner
from rljob_operator.builders.pods import Place, pod
from rljob_operator.builders.secret import token_secret
from rljob_operator.builders.services import headless_service
from rljob_operator.planner.roster import Slot
from rlruntime.spec.manifest import RLJobSpec

UNDRAWN = ""
"""Stands in the Secret for the token, which whoever creates it draws: a plan may be logged, and is a function of what
was observed."""


def missing(
    owner: Owner, spec: RLJobSpec, existing: frozenset[str], *, secret: str, reach: Reach | None
) -> list[KubeObject]:
    """Return what pods need and isn't known to exist.

    Args:
        secret: name of the Secret that holds the job's token.
        reach: who may reach the pods; None: everybody, and no NetworkPolicy is made.

    Raises:
        ConfigError: something in the manifest can't become a valid object.
    """
    found: list[KubeObject] = []
    if spec_name(owner) not in existing:
        found.append(spec_config_map(owner, spec))
    if secret not in existing:
        found.append(token_secret(owner, secret, UNDRAWN))
    if service_name(owner) not in existing:
        found.append(headless_service(owner, spec))
    if reach is not None and policy_name(owner) not in existing:
        found.append(network_policy(owner, spec, reach))
    if claim_name(owner) not in existing and (claim := storage_claim(owner, spec.storage)):
        found.append(claim)
    return found


def pods(
    owner: Owner, spec: RLJobSpec, slots: Iterable[Slot], *, round_: int, image: str, secret: str
) -> list[KubeObject]:
    """Return the pods for ``slots``.

    Raises:
        ConfigError: a role's template or resources set what is the operator's.
    """
    return [
        pod(owner, spec, Place(slot.role, slot.index, slot.attempt, round_), image=image, secret=secret)
        for slot in slots
    ]


def samples(owner: Owner, spec: RLJobSpec, *, image: str, secret: str) -> tuple[KubeObject, ...]:
    """Return a pod of each role, for the API server to judge.

    Raises:
        ConfigError: a role's template or resources set what is the operator's.
    """
    return tuple(pod(owner, spec, Place(role, 0), image=image, secret=secret) for role in range(len(spec.roles)))
