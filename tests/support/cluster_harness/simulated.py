"""Simulated nodes: kwok plays the kubelet, so that hundreds of pods run on a laptop, and none of them does anything."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Self

from cluster_harness import binaries, products
from cluster_harness.api import ApiError, JsonObject
from cluster_harness.cluster import wait_for
from cluster_harness.control_plane import ControlPlane
from cluster_harness.processes import Guard

STAGES = Path(__file__).resolve().parents[2] / "cluster" / "kwok" / "stages.yaml"
COMPLETE_LABEL = "kwok.rljob.io/complete"
"""A pod with this label, whatever its value, succeeds after a delay."""
DELAY_ANNOTATION = "kwok.rljob.io/complete-after"
"""Delay until it succeeds, such as ``1500ms`` or ``20s``; half a second unless given."""
MESSAGE_ANNOTATION = "kwok.rljob.io/message"
"""Termination message of its containers."""
EXIT_CODE_ANNOTATION = "kwok.rljob.io/exit-code"
"""Exit code of its containers; 0, with which the pod succeeds, unless given."""


class SimulatedNodes:
    """Nodes ``simulated-0`` and on, whose pods are Running and Ready as soon as they are bound.

    Args:
        count: how many.
        labels: labels of every node beside its hostname.
        capacity: what each offers beside CPU, memory and pods, such as ``{"nvidia.com/gpu": "8"}``.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        count: int,
        *,
        labels: dict[str, str] | None = None,
        capacity: dict[str, str] | None = None,
        report: binaries.Report = binaries.say,
    ) -> None:
        self._control_plane = control_plane
        program = binaries.find(products.SIMULATED_NODES, report)["kwok"]
        self.names = [f"simulated-{number}" for number in range(count)]
        self._offer = {"cpu": "1000", "memory": "4Ti", "pods": "500", "nvidia.com/gpu": "100", **(capacity or {})}
        self._labels = labels or {}
        self.guard = Guard()
        try:
            for name in self.names:
                control_plane.api.create("/api/v1/nodes", self._node(name))
            self.guard.start(
                "kwok",
                [
                    program,
                    f"--kubeconfig={control_plane.kubeconfig}",
                    f"--config={STAGES}",
                    "--manage-all-nodes=false",
                    "--manage-nodes-with-label-selector=kwok.rljob.io/simulated=true",
                    "--node-lease-duration-seconds=40",
                    "--node-ip=10.0.0.1",
                    "--cidr=10.1.0.1/16",
                ],
            )
            wait_for("all simulated nodes are ready", self._all_ready, deadline_s=60.0)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End kwok and take its nodes away; may be called twice."""
        self.guard.close()
        for name in self.names:
            with contextlib.suppress(OSError, ApiError):
                self._control_plane.api.delete(f"/api/v1/nodes/{name}")
        self.names = []

    def _all_ready(self) -> bool:
        nodes = self._control_plane.api.get("/api/v1/nodes")["items"]
        ready = {node["metadata"]["name"] for node in nodes if _is_ready(node)}
        return ready.issuperset(self.names)

    def _node(self, name: str) -> JsonObject:
        return {
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/hostname": name, "kwok.rljob.io/simulated": "true", **self._labels},
            },
            "status": {"capacity": self._offer, "allocatable": self._offer},
        }


def _is_ready(node: JsonObject) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
