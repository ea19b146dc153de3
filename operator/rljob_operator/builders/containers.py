"""The main container of a pod: `rljob role`, its variables, its resources, its probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_operator.builders.overlay import CODE_VARIABLE
from rljob_operator.builders.owner import KubeObject
from rljob_operator.builders.volumes import TMP_DIR
from rlruntime.errors import ConfigError
from rlruntime.spec.contract import (
    CODE_DIR,
    LIVENESS_PATH,
    MAIN_CONTAINER,
    MAX_VARIABLE_BYTES,
    PORT_NAME,
    READINESS_PATH,
    PodIdentity,
    port_of,
    role_command,
)
from rlruntime.spec.manifest import RLJobSpec
from rlruntime.spec.problems import Path, path_text
from rlruntime.spec.roles import Role

_USER = "rljob"


def main_container(
    spec: RLJobSpec, role: Role, path: Path, identity: PodIdentity, *, image: str, mounts: list[KubeObject]
) -> KubeObject:
    """Return the container that does a role's work.

    Args:
        path: where ``role`` stands in the manifest.
        image: image of a role for which the manifest names none.
        mounts: its volume mounts.

    Raises:
        ConfigError: `resources` names what `gpus` asks for, or `config` is too large for a variable.
    """
    command, *arguments = role_command(role.type)
    port = port_of(spec.metrics)
    container: KubeObject = {
        "name": MAIN_CONTAINER,
        "image": role.image or spec.image or image,
        "command": [command],
        "args": arguments,
        "env": _variables(spec, identity, path),
        "ports": [{"name": PORT_NAME, "containerPort": port, "protocol": "TCP"}],
    }
    if resources := _resources(role, path):
        container["resources"] = resources
    return {
        **container,
        "volumeMounts": mounts,
        **_probes(port),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }


def _variables(spec: RLJobSpec, identity: PodIdentity, path: Path) -> list[KubeObject]:
    """Besides the identity: a home and a user name, which the image may lack for this user id and libraries ask for."""
    values = {**identity.to_variables(), "HOME": TMP_DIR, "USER": _USER}
    if spec.code is not None:
        values[CODE_VARIABLE] = CODE_DIR
    for name, value in values.items():
        if len(value.encode()) > MAX_VARIABLE_BYTES:
            problem = f"is longer than {MAX_VARIABLE_BYTES:,} bytes, too long for the variable {name}"
            raise ConfigError(problem, field=path_text((*path, "config")), remedy="put it into a file of the image")
    # Kubernetes would put another variable's value in the place of $(NAME).
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in values.items()]


def _resources(role: Role, path: Path) -> KubeObject:
    requests, limits = _quantities(role.resources.requests), _quantities(role.resources.limits)
    if role.gpus:
        for section, quantities in (("requests", requests), ("limits", limits)):
            if role.gpu_resource_name in quantities:
                raise ConfigError(
                    "is what gpus asks for",
                    field=path_text((*path, "resources", section, role.gpu_resource_name)),
                    remedy="remove it, or remove gpus",
                )
        limits[role.gpu_resource_name] = str(role.gpus)
    return {name: value for name, value in (("requests", requests), ("limits", limits)) if value}


def _quantities(given: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in given.items()}


def _probes(port: int) -> KubeObject:
    """A start may take ten minutes. After it, five minutes without an answer end the container, as a fault."""

    def get(path: str, **timing: int) -> KubeObject:
        return {"httpGet": {"path": path, "port": port}, **timing}

    return {
        "startupProbe": get(LIVENESS_PATH, periodSeconds=1, timeoutSeconds=2, failureThreshold=600),
        "livenessProbe": get(LIVENESS_PATH, periodSeconds=30, timeoutSeconds=10, failureThreshold=10),
        "readinessProbe": get(READINESS_PATH, periodSeconds=1, timeoutSeconds=5, failureThreshold=10),
    }
