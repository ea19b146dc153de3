"""The part of a kubelet, played by a test: what a node would say of its pods, on a cluster without one."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from cluster_harness.api import ApiError, JsonObject
from cluster_harness.cluster import Cluster, wait_for

_STARTED, _FINISHED = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def own_address() -> str:
    """Return an address of this machine that others may have a route to, as pods have one.

    Raises:
        OSError: it has none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        return str(probe.getsockname()[0])


def run_pod(cluster: Cluster, namespace: str, name: str, *, ip: str = "127.0.0.1") -> None:
    """Say that a pod runs and is ready."""
    _say(
        cluster,
        namespace,
        name,
        phase="Running",
        ready=True,
        state={"running": {"startedAt": _STARTED}},
        podIP=ip,
        podIPs=[{"ip": ip}],
    )


def end_pod(
    cluster: Cluster, namespace: str, name: str, *, exit_code: int, reason: str = "", message: str = ""
) -> None:
    """Say that a pod's container ended."""
    ended: JsonObject = {
        "exitCode": exit_code,
        "reason": reason or ("Completed" if exit_code == 0 else "Error"),
        "message": message,
        "startedAt": _STARTED,
        "finishedAt": _FINISHED,
    }
    phase = "Succeeded" if exit_code == 0 else "Failed"
    _say(cluster, namespace, name, phase=phase, ready=False, state={"terminated": ended})


def _say(
    cluster: Cluster, namespace: str, name: str, *, phase: str, ready: bool, state: JsonObject, **more: Any
) -> None:
    container = {"name": "rljob", "image": "i", "imageID": "i", "ready": ready, "restartCount": 0, "state": state}
    condition = {"type": "Ready", "status": str(ready)}
    status = {"phase": phase, "conditions": [condition], "containerStatuses": [container], **more}
    cluster.api.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status})


def run_all(cluster: Cluster, namespace: str, count: int, selector: str = "") -> list[str]:
    """Wait for so many pods, say of each that it runs, and return their names in order."""
    found = wait_for(
        f"there are {count} pods",
        lambda: pods if len(pods := cluster.pods(namespace, selector)) == count else None,
        describe=lambda: [pod["metadata"]["name"] for pod in cluster.pods(namespace, selector)],
    )
    names = sorted(pod["metadata"]["name"] for pod in found)
    for name in names:
        run_pod(cluster, namespace, name)
    return names


def let_go(cluster: Cluster, namespace: str, name: str) -> None:
    """Say that a pod that was being deleted has ended."""
    with contextlib.suppress(ApiError):
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        cluster.api.delete(path, {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
