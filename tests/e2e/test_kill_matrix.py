"""Whatever is killed, a job on a real node ends with the numbers of one that nobody killed, charged once."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from cluster_harness.cluster import wait_for
from cluster_harness.fixtures import RealNodes
from operator_process import OperatorProcess
from scene import NAME, Scene

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

Records = list[dict[str, Any]]
LIMITED = [
    {
        "name": "trainer",
        "type": "Trainer",
        "resources": {"requests": {"memory": "600Mi"}, "limits": {"memory": "600Mi"}},
    }
]
FILL_MEMORY = "f = open('/dev/shm/filled', 'wb', 0)\nwhile True: f.write(bytes(1 << 20))"


@pytest.mark.usefixtures("operated")
def test_a_trainer_killed_by_sigkill_goes_on_from_its_checkpoint_as_a_fault(
    scene: Scene, real_nodes: RealNodes, expected: Records
) -> None:
    scene.begin()
    scene.wait_checkpoint()
    real_nodes.node_of(scene.namespace, scene.pod()).kill(scene.namespace, scene.pod())
    status = scene.assert_once(expected, faults=1)
    assert status["attempt"] == 1


@pytest.mark.usefixtures("operated")
@pytest.mark.parametrize("remove", [Scene.delete_pod, Scene.evict], ids=["deleted", "evicted"])
def test_a_trainer_whose_pod_is_taken_away_saves_and_goes_on_as_a_disruption(
    scene: Scene, expected: Records, remove: Callable[[Scene, str], None]
) -> None:
    scene.begin()
    scene.wait_checkpoint()
    remove(scene, scene.pod())
    status = scene.assert_once(expected, disruptions=1)
    assert status["attempt"] == 1


@pytest.mark.usefixtures("operated")
def test_a_trainer_out_of_memory_is_a_fault_that_is_called_by_its_name(scene: Scene, expected: Records) -> None:
    scene.begin(roles=LIMITED)
    scene.wait_checkpoint()
    python = ("-n", scene.namespace, "exec", scene.pod(), "-c", "rljob", "--", "python", "-c", FILL_MEMORY)
    scene.cluster.kubectl(*python, check=False)
    scene.assert_once(expected, faults=1)
    events = scene.cluster.api.get(f"/api/v1/namespaces/{scene.namespace}/events")["items"]
    (restart,) = [event["message"] for event in events if event["reason"] == "Restarting"]
    assert "OOMKilled" in restart


@pytest.mark.usefixtures("operated")
def test_a_restarted_api_server_costs_a_job_nothing(scene: Scene, expected: Records) -> None:
    scene.begin()
    scene.wait_checkpoint()
    scene.cluster.restart_apiserver(down_s=3.0)
    status = scene.assert_once(expected)
    assert status["attempt"] == 0


def test_a_job_whose_pod_succeeds_while_no_operator_runs_succeeds_without_a_charge(
    scene: Scene, operated: OperatorProcess, expected: Records
) -> None:
    scene.begin(seconds=8.0)
    scene.wait_phase("Running", NAME, deadline_s=120.0)
    operated.kill()
    wait_for("the pod has ended", lambda: phase_of(scene, scene.pod()) == "Succeeded", deadline_s=120.0)
    operated.start()
    operated.wait_ready()
    assert scene.assert_once(expected)["attempt"] == 0


def test_a_job_whose_pod_succeeds_and_is_deleted_while_no_operator_runs_is_found_complete(
    scene: Scene, operated: OperatorProcess, expected: Records
) -> None:
    scene.begin(seconds=8.0)
    scene.wait_phase("Running", NAME, deadline_s=120.0)
    operated.kill()
    wait_for("the pod has ended", lambda: phase_of(scene, scene.pod()) == "Succeeded", deadline_s=120.0)
    scene.delete_pod(scene.pod())
    wait_for("the pod is gone", lambda: scene.pods() == [])
    operated.start()
    operated.wait_ready()
    status = scene.assert_once(expected, disruptions=1)
    assert status["attempt"] == 1


@pytest.mark.usefixtures("operated")
def test_a_suspended_job_has_no_pods_and_goes_on_from_its_checkpoint_without_a_charge(
    scene: Scene, expected: Records
) -> None:
    scene.begin()
    scene.wait_checkpoint()
    suspended = scene.rljob("suspend", NAME, "--wait", "--timeout", "120", timeout_s=150.0)
    assert suspended.returncode == 0, suspended
    assert re.search(rf"^{NAME}: suspended, saved at [0-9,]+ frames, after [0-9]+ s$", suspended.stdout, re.MULTILINE)
    assert scene.pods() == []
    resumed = scene.rljob("resume", NAME)
    assert resumed.stdout.startswith(f"{NAME}: resuming from the checkpoint of "), resumed
    assert scene.assert_once(expected)["attempt"] == 1


def test_an_operator_that_is_asked_to_end_ends_and_leaves_its_jobs_running(
    scene: Scene, operated: OperatorProcess, expected: Records
) -> None:
    scene.begin(seconds=8.0)
    scene.wait_phase("Running", NAME, deadline_s=120.0)
    uid = scene.cluster.pods(scene.namespace)[0]["metadata"]["uid"]
    assert operated.stop(signal.SIGTERM) == 0
    operated.start()  # as an upgrade does
    operated.wait_ready()
    scene.assert_once(expected)
    (pod,) = scene.cluster.pods(scene.namespace)
    assert pod["metadata"]["uid"] == uid


def phase_of(scene: Scene, pod: str) -> str | None:
    """Return the phase of a pod."""
    found = scene.cluster.get("/api/v1/pods", scene.namespace, pod) or {}
    phase: str | None = found.get("status", {}).get("phase")
    return phase
