"""Real nodes: containers as the operator makes them, names, claims, kills, a lost kubelet, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster_harness.cluster import wait_for
from cluster_harness.control_plane import ControlPlane, Settings
from cluster_harness.fixtures import RealNodes
from cluster_harness.images import RUNTIME
from cluster_harness.leftovers import Traces
from cluster_harness.node import Node
from cluster_harness.volumes import folder_of_claim

SUPPORT = Path(__file__).resolve().parents[1] / "support"

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def pod(name: str, script: str, **spec: Any) -> dict[str, Any]:
    """Return a pod that runs a shell script under the restrictions of a job's pods, with a scratch folder /tmp."""
    container = {
        "name": "rljob",
        "image": RUNTIME,
        "command": ["sh", "-c", script],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *spec.pop("mounts", [])],
        "resources": spec.pop("resources", {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": spec.pop("labels", {})},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}, *spec.pop("volumes", [])],
            **spec,
        },
    }


def wait_for_phase(plane: ControlPlane, namespace: str, name: str, *phases: str) -> dict[str, Any]:
    """Wait for a phase of a pod and return its status."""

    def status() -> dict[str, Any] | None:
        found = plane.get("/api/v1/pods", namespace, name)
        return found["status"] if found and found["status"]["phase"] in phases else None

    def describe() -> str:
        return plane.kubectl("describe", "pod", name, "-n", namespace).stdout

    return wait_for(f"{name} is {' or '.join(phases)}", status, deadline_s=90.0, describe=describe)


def ended(status: dict[str, Any]) -> dict[str, Any]:
    """Return how the container of a pod ended."""
    terminated: dict[str, Any] = status["containerStatuses"][0]["state"]["terminated"]
    return terminated


def test_pod_runs_this_environment_as_an_ordinary_user_on_a_root_that_it_cannot_write(
    real_nodes: RealNodes, real_namespace: str
) -> None:
    script = (
        "id -u; rljob version; touch /tmp/x && touch /x; python -c 'import torch; print(torch.ones(2).sum().item())'"
    )
    real_nodes.plane.apply(pod("one", script), namespace=real_namespace)
    assert ended(wait_for_phase(real_nodes.plane, real_namespace, "one", "Succeeded", "Failed"))["exitCode"] == 0
    lines = real_nodes.plane.kubectl("logs", "one", "-n", real_namespace).stdout.splitlines()
    assert (lines[0], lines[-1]) == ("10001", "2.0")
    assert any(line.startswith("rljob 0.") for line in lines)
    assert any("cannot touch '/x': Read-only file system" in line for line in lines)


def test_claim_is_bound_and_what_a_pod_writes_outlives_it(real_nodes: RealNodes, real_namespace: str) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "runs"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    volume = {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}
    mount = {"name": "runs", "mountPath": "/runs"}
    written = pod("one", "echo kept >/runs/file; echo said >/dev/termination-log", mounts=[mount], volumes=[volume])
    real_nodes.plane.apply(claim, written, namespace=real_namespace)
    assert ended(wait_for_phase(real_nodes.plane, real_namespace, "one", "Succeeded"))["message"] == "said\n"
    real_nodes.plane.kubectl("delete", "pod", "one", "-n", real_namespace)
    file = folder_of_claim(real_nodes.plane, real_namespace, "runs") / "file"
    assert (file.read_text(), file.stat().st_uid) == ("kept\n", 10001)


def test_pods_on_two_nodes_find_each_other_by_name_before_they_are_ready(
    real_nodes: RealNodes, real_namespace: str
) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "job"},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job": "one"}},
    }
    serve = "cd /tmp && echo hello >index.html && exec python -m http.server 8000"
    ask = (
        'python -c "import time, urllib.request as u\nfor _ in range(300):\n  try:\n'
        "    print(u.urlopen('http://server-0.job:8000/', timeout=5).read().decode()); break\n"
        '  except OSError: time.sleep(0.1)"'
    )
    both = {"labels": {"job": "one"}, "subdomain": "job"}
    real_nodes.plane.apply(
        service,
        pod("server", serve, hostname="server-0", nodeName="node-a", **both),
        pod("client", ask, hostname="client-0", nodeName="node-b", **both),
        namespace=real_namespace,
    )
    wait_for_phase(real_nodes.plane, real_namespace, "client", "Succeeded")
    assert real_nodes.plane.kubectl("logs", "client", "-n", real_namespace).stdout.strip() == "hello"


def test_killed_process_ends_its_pod_with_137(real_nodes: RealNodes, real_namespace: str) -> None:
    plane = real_nodes.plane
    plane.apply(pod("one", "exec sleep 600"), namespace=real_namespace)
    wait_for_phase(plane, real_namespace, "one", "Running")
    real_nodes.node_of(real_namespace, "one").kill(real_namespace, "one")
    assert ended(wait_for_phase(plane, real_namespace, "one", "Failed"))["exitCode"] == 137


def test_container_above_its_memory_limit_is_killed_for_it(real_nodes: RealNodes, real_namespace: str) -> None:
    script = "exec python -c \"x = bytearray(b'1' * (512 << 20)); import time; time.sleep(600)\""
    hungry = pod("one", script, resources={"limits": {"memory": "64Mi"}})
    real_nodes.plane.apply(hungry, namespace=real_namespace)
    how = ended(wait_for_phase(real_nodes.plane, real_namespace, "one", "Failed"))
    assert (how["reason"], how["exitCode"]) == ("OOMKilled", 137)


def test_evicted_pod_gets_a_signal_and_goes(real_nodes: RealNodes, real_namespace: str) -> None:
    plane = real_nodes.plane
    plane.apply(pod("one", "exec sleep 600"), namespace=real_namespace)
    wait_for_phase(plane, real_namespace, "one", "Running")
    plane.evict(real_namespace, "one")
    wait_for("the pod is gone", lambda: plane.pods(real_namespace) == [], deadline_s=60.0)


def test_process_outlives_the_kubelet_whose_node_is_then_not_ready(real_nodes: RealNodes, real_namespace: str) -> None:
    plane, node = real_nodes.plane, real_nodes.second
    plane.apply(pod("one", "exec sleep 600", nodeName=node.name), namespace=real_namespace)
    wait_for_phase(plane, real_namespace, "one", "Running")
    (process,) = node.processes_of(real_namespace, "one")

    def condition() -> str:
        conditions = plane.api.get(f"/api/v1/nodes/{node.name}")["status"]["conditions"]
        return str(next(found["status"] for found in conditions if found["type"] == "Ready"))

    node.stop_kubelet()
    try:
        wait_for("its node is not ready", lambda: condition() == "Unknown", deadline_s=60.0)
        assert node.processes_of(real_namespace, "one") == [process]
    finally:
        node.start_kubelet()
    assert condition() == "True"
    assert node.processes_of(real_namespace, "one") == [process]


def test_nothing_is_left_of_a_node_whose_pods_run(node_programs: None) -> None:
    before = mounts_of_this_machine()
    with ControlPlane(Settings(controller_manager=True, scheduler=True)) as plane:
        node = Node(plane, "node-c")
        namespace = plane.create_namespace()
        plane.apply(pod("one", "exec sleep 617"), namespace=namespace)
        wait_for_phase(plane, namespace, "one", "Running")
        assert len(node.guard.traces.found()) > 5
        node.stop()
        assert node.guard.traces.found() == []
    assert mounts_of_this_machine() == before
    assert subprocess.run(["pgrep", "-f", "sleep 617"], capture_output=True, check=False).returncode == 1


def test_nothing_is_left_of_a_node_whose_owner_is_killed(node_programs: None) -> None:
    program = (
        f"import dataclasses, json, sys, time; sys.path.insert(0, {str(SUPPORT)!r})\n"
        "from cluster_harness.control_plane import ControlPlane, Settings\n"
        "from cluster_harness.node import Node\n"
        "node = Node(ControlPlane(Settings(controller_manager=True)), 'node-c')\n"
        "print(*dataclasses.astuple(node.guard.traces), flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        traces = Traces(*owner.stdout.readline().split())
        assert len(traces.found()) > 5
        os.kill(owner.pid, signal.SIGKILL)
    wait_for("all is gone", lambda: traces.found() == [], deadline_s=60.0, describe=traces.found)


def mounts_of_this_machine() -> set[str]:
    """Return the mount points that this process sees."""
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
