"""The pod of one place in a role."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_operator.builders.containers import main_container
from rljob_operator.builders.labels import pod_labels
from rljob_operator.builders.names import pod_name, service_name
from rljob_operator.builders.overlay import with_metadata, with_template
from rljob_operator.builders.owner import KubeObject, Owner, metadata
from rljob_operator.builders.volumes import volumes
from rlruntime.spec.contract import PodIdentity, hostname
from rlruntime.spec.manifest import RLJobSpec
from rlruntime.spec.problems import Path
from rlruntime.spec.roles import Role

USER_ID = 10001
"""User, group and group of the volumes. The image needs no such user."""
_TRAINER_GRACE_S, _GRACE_S = 120, 30
"""Seconds between SIGTERM and SIGKILL; a trainer writes a checkpoint in them."""

_LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@dataclass(frozen=True)
class Place:
    """Where a pod stands in its job."""

    role: int
    """Position of its role in `spec.roles`."""
    index: int
    """Number within the role, from 0."""
    attempt: int = 0
    """How many pods had this place before."""
    round: int = 0
    """Rendezvous round that it joins first."""


def pod(owner: Owner, spec: RLJobSpec, place: Place, *, image: str, secret: str) -> KubeObject:
    """Return the pod for ``place``.

    Args:
        image: image of a role for which the manifest names none.
        secret: name of the Secret that holds the job's token.

    Raises:
        ConfigError: the role's template or resources set what is the operator's.
    """
    role = spec.roles[place.role]
    path: Path = ("spec", "roles", place.role)
    labels, annotations = with_metadata(
        pod_labels(owner, role, place.index, place.attempt), role.template.metadata, (*path, "template", "metadata")
    )
    generated = _pod_spec(owner, spec, place, image, secret)
    template_path = (*path, "template", "spec")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(
            owner, pod_name(owner, role.name, place.index, place.attempt), labels, annotations=annotations
        ),
        "spec": with_template(generated, role.template.spec, template_path, has_code=spec.code is not None),
    }


def _pod_spec(owner: Owner, spec: RLJobSpec, place: Place, image: str, secret: str) -> KubeObject:
    role = spec.roles[place.role]
    mounted = volumes(owner, spec, role, secret=secret)
    container = main_container(
        spec,
        role,
        ("spec", "roles", place.role),
        _identity(owner, role, place),
        image=image,
        mounts=[item.mount for item in mounted],
    )
    found: KubeObject = {
        "restartPolicy": "Never",
        "hostname": hostname(role.name, place.index),
        "subdomain": service_name(owner),
        "terminationGracePeriodSeconds": _TRAINER_GRACE_S if role.type == "Trainer" else _GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if spec.scheduling.priority_class_name:
        found["priorityClassName"] = spec.scheduling.priority_class_name
    found["tolerations"] = _tolerations(role, spec.run_policy.node_lost_seconds)
    return {**found, "containers": [container], "volumes": [item.volume for item in mounted]}


def _tolerations(role: Role, node_lost_s: int) -> list[KubeObject]:
    """Kubernetes itself deletes a pod whose node is lost, after as long as the pod tolerates that."""
    found: list[KubeObject] = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": node_lost_s}
        for key in _LOST_NODE_TAINTS
    ]
    if role.gpus:
        found.append({"key": role.gpu_resource_name, "operator": "Exists", "effect": "NoSchedule"})
    return found


def _identity(owner: Owner, role: Role, place: Place) -> PodIdentity:
    return PodIdentity(
        name=owner.name,
        namespace=owner.namespace,
        uid=owner.uid,
        role=role.name,
        index=place.index,
        attempt=place.attempt,
        round=place.round,
        service=service_name(owner),
        processes=role.processes_per_replica,
        entrypoint=role.entrypoint,
        config=role.config,
    )
