"""A node is lost while its containers live on: only the successor's training counts."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from cluster_harness.cluster import wait_for
from cluster_harness.fixtures import RealNodes
from kill_job import timeless_records
from scene import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROLES = [{"name": "trainer", "type": "Trainer", "template": {"spec": {"terminationGracePeriodSeconds": 5}}}]


@pytest.mark.usefixtures("operated")
def test_a_trainer_on_a_lost_node_trains_on_and_nothing_of_it_counts(
    scene: Scene, real_nodes: RealNodes, expected: list[dict[str, Any]]
) -> None:
    scene.begin(seconds=60.0, roles=ROLES, runPolicy={"nodeLostSeconds": 5})
    scene.wait_checkpoint()
    (pod,) = scene.cluster.pods(scene.namespace)
    lost = real_nodes.node_of(scene.namespace, pod["metadata"]["name"])
    old_processes = lost.processes_of(scene.namespace, pod["metadata"]["name"])
    old_folder = scene.folder() / "attempts" / "0"
    lost.stop_kubelet()
    try:
        see_that_only_the_successor_counts(scene, lost.name, old_processes, old_folder)
    finally:
        lost.start_kubelet()
    status = scene.assert_once(expected, disruptions=1)
    assert status["attempt"] == 1


def see_that_only_the_successor_counts(scene: Scene, lost: str, old_processes: list[int], old_folder: Path) -> None:
    """Wait for the successor on another node than ``lost``; see the old process train on until then, and end."""
    frames = frames_of(old_folder)
    wait_for("the lost trainer trains on", lambda: frames_of(old_folder) > frames, deadline_s=60.0)
    wait_for(
        "a successor runs on the other node",
        lambda: successor_node(scene) not in (None, lost),
        deadline_s=180.0,
        describe=scene.describe,
    )
    wait_for("the lost trainer has ended", lambda: not any(map(alive, old_processes)), deadline_s=60.0)
    ended_at = frames_of(old_folder)
    time.sleep(3.0)
    assert frames_of(old_folder) == ended_at


def frames_of(attempt: Path) -> int:
    """Return how many frames an attempt has recorded."""
    return int(timeless_records(attempt)[-1]["frames"])


def successor_node(scene: Scene) -> str | None:
    """Return the node of the second attempt's pod, once it runs."""
    found = scene.cluster.get("/api/v1/pods", scene.namespace, scene.pod(1))
    running = found is not None and found["status"]["phase"] == "Running"
    return str(found["spec"]["nodeName"]) if found is not None and running else None


def alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and isn't reaped doesn't."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
