"""A job from `kubectl apply` to its end on a real node, as a user sees it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cluster_harness.cluster import wait_for
from cluster_harness.volumes import folder_of_claim
from scene import CLAIM, END_S, Scene

from rlruntime.spec.loader import read_documents

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "01-ppo-cartpole.yaml"
NAME = "ppo-cartpole"
RUNNING_WITHIN_S = 10.0


def example(**spec: Any) -> dict[str, Any]:
    """Return the example with these fields of `spec` beside its own."""
    document: dict[str, Any] = read_documents(EXAMPLE.read_text(), EXAMPLE.name)[0].value
    document["spec"].update(spec)
    return document


def seconds_until_running(scene: Scene) -> float:
    """Wait until the job runs and return how long that took."""
    began = time.monotonic()
    scene.wait_phase("Running", NAME, deadline_s=60.0)
    return time.monotonic() - began


@pytest.mark.usefixtures("operated")
def test_the_first_example_runs_within_ten_seconds_and_learns_cartpole(scene: Scene) -> None:
    applied = scene.cluster.kubectl("-n", scene.namespace, "apply", "-f", EXAMPLE).stdout
    assert applied == "rljob.rljob.io/ppo-cartpole created\n"
    assert seconds_until_running(scene) <= RUNNING_WITHIN_S, scene.describe()
    status = scene.wait_phase("Succeeded", NAME, deadline_s=END_S)
    assert status["progress"]["reward"] >= 475
    assert status["progress"]["percent"] == 40  # it stops once the reward is reached
    (row,) = scene.cluster.kubectl("-n", scene.namespace, "get", "rlj", "--no-headers").stdout.splitlines()
    assert row.split()[:2] == [NAME, "Succeeded"]
    assert [kind for kind, _ in scene.events()] == ["Normal"] * len(scene.events())
    assert_logs_tell(scene, status["message"])


def assert_logs_tell(scene: Scene, message: str) -> None:
    """See that the node hands out the pod's log, as words and as it was written, and that the table has the job."""
    done = scene.rljob("logs", NAME)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert all(line.startswith("trainer-0 | ") for line in lines)
    assert any(" / 100,000 frames (" in line and "reward " in line and "collect " in line for line in lines)
    assert lines[-1].startswith("trainer-0 | ended: mean reward ")
    followed = scene.rljob("logs", NAME, "-f", "--raw")
    assert followed.returncode == 0
    assert [json.loads(line)["event"] for line in followed.stdout.splitlines()][-1] == "end"
    assert followed.stderr == f"rljob: {NAME} is Succeeded: Completed: {message}\n"
    row = scene.rljob("top").stdout.splitlines()[1].split()
    assert row[1:5] == [NAME, "Succeeded", "Completed", "40"]


@pytest.mark.usefixtures("operated")
def test_a_finished_job_is_cleaned_up_and_deleted_and_its_claim_keeps_the_policy(scene: Scene) -> None:
    policy = {"cleanPodPolicy": "All", "ttlSecondsAfterFinished": 10}
    scene.cluster.apply(example(storage=CLAIM, runPolicy=policy), namespace=scene.namespace)
    status = scene.wait_phase("Succeeded", NAME, deadline_s=END_S)
    uid = (scene.cluster.job(scene.namespace, NAME) or {})["metadata"]["uid"]
    scene.wait_pods()
    wait_for("the job is deleted", lambda: scene.cluster.job(scene.namespace, NAME) is None, deadline_s=60.0)
    claim = folder_of_claim(scene.cluster, scene.namespace, status["claimName"])
    evaluated = subprocess.run(
        [sys.executable, "-m", "rlruntime.cli.main", "evaluate", claim / f"{NAME}-{uid}", "--log-format", "json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert json.loads(evaluated.stdout)["rewardMean"] >= 475


@pytest.mark.usefixtures("operated")
def test_a_manifest_that_the_trainer_refuses_fails_at_once_with_its_words(scene: Scene) -> None:
    document = example()
    document["spec"]["training"]["env"]["id"] = "CartPoel-v1"
    scene.cluster.apply(document, namespace=scene.namespace)
    status = scene.wait_phase("Failed", NAME, deadline_s=END_S)
    assert status["reason"] == "ConfigInvalid"
    assert "CartPoel-v1" in status["message"]
    assert len(scene.pods()) == 1
