"""What is mounted in a pod, and where."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_operator.builders.claims import claim_of
from rljob_operator.builders.names import spec_name
from rljob_operator.builders.overlay import CODE_VOLUME, SPEC_VOLUME, TOKEN_VOLUME, main_container_of
from rljob_operator.builders.owner import KubeObject, Owner
from rlruntime.spec.contract import CODE_DIR, SPEC_DIR, STORAGE_DIR, TOKEN_DIR
from rlruntime.spec.manifest import RLJobSpec
from rlruntime.spec.roles import Role

TMP_DIR, SHM_DIR = "/tmp", "/dev/shm"
DEFAULT_SHM_SIZE = "8Gi"
"""Bound of shared memory in a pod without a memory limit. What isn't used costs nothing."""
_TOKEN_MODE = 0o440
"""The group is the pod's own, by `fsGroup`."""


@dataclass(frozen=True)
class Mounted:
    """A volume, and where the main container finds it."""

    volume: KubeObject
    mount: KubeObject


def volumes(owner: Owner, spec: RLJobSpec, role: Role, *, secret: str) -> list[Mounted]:
    """Return what a pod of ``role`` mounts.

    Only a Trainer's pod mounts the storage: it alone writes checkpoints, and a claim that one node may mount would keep
    all other pods on that node.

    Args:
        secret: name of the Secret that holds the job's token.
    """
    found = [
        _mounted(SPEC_VOLUME, {"configMap": {"name": spec_name(owner)}}, SPEC_DIR, read_only=True),
        _mounted(
            TOKEN_VOLUME,
            {"secret": {"secretName": secret, "defaultMode": _TOKEN_MODE}},
            TOKEN_DIR,
            read_only=True,
        ),
        _mounted("rljob-tmp", {"emptyDir": {}}, TMP_DIR),
        _mounted("rljob-shm", {"emptyDir": {"medium": "Memory", "sizeLimit": _shm_size(role)}}, SHM_DIR),
    ]
    if role.type == "Trainer":
        claim = claim_of(owner, spec.storage)
        source = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
        found.append(_mounted("rljob-storage", source, STORAGE_DIR))
    if spec.code is not None:
        source = {"configMap": {"name": spec.code.config_map.name}}
        found.append(_mounted(CODE_VOLUME, source, CODE_DIR, read_only=True))
    return found


def _mounted(name: str, source: KubeObject, path: str, *, read_only: bool = False) -> Mounted:
    mount: KubeObject = {"name": name, "mountPath": path}
    if read_only:
        mount["readOnly"] = True
    return Mounted({"name": name, **source}, mount)


def _shm_size(role: Role) -> str:
    """Shared memory counts as memory of the container, so its limit bounds both; containers get 64 MiB unasked."""
    overlaid = main_container_of(role.template.spec).get("resources")
    limits = overlaid.get("limits") if isinstance(overlaid, dict) else None
    limit = limits.get("memory") if isinstance(limits, dict) else None
    return str(limit or role.resources.limits.get("memory") or DEFAULT_SHM_SIZE)
