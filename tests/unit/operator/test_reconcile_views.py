"""What is kept of a pod, and the difference between two statuses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from rljob_operator.builders.owner import KubeObject, Owner
from rljob_operator.planner.observed import ContainerEnd, ObservedPod, Trouble
from rljob_operator.reconcile.status import is_talk_alone, status_changes, status_patch
from rljob_operator.reconcile.views import JobView, pod_view

from rlruntime.spec.status import Condition, ProgressStatus, RestartsStatus, RLJobStatus

UID = "job-uid"


def pod(status: dict[str, Any] | None = None, **about: Any) -> KubeObject:
    labels = {"rljob.io/job-uid": UID, "rljob.io/role": "trainer", "rljob.io/index": "1", "rljob.io/attempt": "2"}
    metadata: dict[str, Any] = {"name": "p", "namespace": "team-a", "uid": "u", "resourceVersion": "7"}
    metadata["labels"] = labels
    metadata["ownerReferences"] = [{"uid": "no", "controller": False}, {"uid": UID, "controller": True}]
    return {"metadata": {**metadata, **about}, "spec": {"nodeName": "a"}, "status": status or {}}


def seen(status: dict[str, Any], **about: Any) -> ObservedPod:
    view = pod_view(pod(status, **about))
    assert view is not None
    return view.pod


def test_a_running_pod() -> None:
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    found = seen(
        {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "sidecar"}, {"name": "rljob", "state": running}],
        },
        creationTimestamp="2026-01-01T00:00:00Z",
    )
    assert (found.role, found.index, found.attempt, found.node, found.ip) == ("trainer", 1, 2, "a", "10.0.0.1")
    assert (found.phase, found.ready, found.started, found.end) == ("Running", True, True, None)
    assert found.created_at == datetime(2026, 1, 1, tzinfo=UTC)


def test_a_pod_whose_main_container_ended() -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled", "message": "m", "finishedAt": "2026-01-01T00:00:05Z"}
    found = seen({"phase": "Failed", "containerStatuses": [{"name": "rljob", "state": {"terminated": ended}}]})
    assert found.end == ContainerEnd(137, "OOMKilled", "m", datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC))
    assert found.started


def test_a_container_that_could_not_be_started_has_not_run() -> None:
    ended = {"exitCode": 128, "reason": "StartError", "message": "no such file"}
    assert not seen({"containerStatuses": [{"name": "rljob", "state": {"terminated": ended}}]}).started


def test_a_pod_that_is_created_is_known_by_its_metadata_alone() -> None:
    item = pod()
    view = pod_view({"metadata": item["metadata"]})
    assert view is not None
    assert (view.pod.phase, view.pod.node, view.resource_version) == ("Pending", "", 7)


@pytest.mark.parametrize(
    ("status", "field", "value"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1"}]},
            "unschedulable",
            "0/1",
        ),
        (
            {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]},
            "disruption",
            "EvictionByEvictionAPI",
        ),
        ({"conditions": [{"type": "DisruptionTarget", "status": "False", "reason": "x"}]}, "disruption", ""),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "message", "low on memory"),
        ({"phase": "Failed", "reason": "Evicted"}, "reason", "Evicted"),
        (
            {"containerStatuses": [{"name": "rljob", "image": "i", "state": {"waiting": {"reason": "ErrImagePull"}}}]},
            "waiting",
            Trouble("ErrImagePull", "container rljob, image i: ErrImagePull"),
        ),
        (
            {"containerStatuses": [{"name": "rljob", "state": {"waiting": {"reason": "ContainerCreating"}}}]},
            "waiting",
            None,
        ),
        (
            {
                "phase": "Failed",
                "initContainerStatuses": [
                    {"name": "fetch", "state": {"terminated": {"exitCode": 2, "reason": "Error"}}}
                ],
            },
            "message",
            "container fetch ended with exit code 2: Error",
        ),
    ],
)
def test_what_a_pod_says_of_its_trouble(status: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(seen(status), field) == value


@pytest.mark.parametrize(
    "about",
    [
        {"labels": {}},
        {"ownerReferences": []},
        {"ownerReferences": [{"uid": "somebody", "controller": True}]},
        {"labels": {"rljob.io/job-uid": UID, "rljob.io/role": "trainer", "rljob.io/index": "x"}},
    ],
)
def test_a_pod_that_is_no_jobs(about: dict[str, Any]) -> None:
    assert pod_view(pod(**about)) is None


def test_the_patch_of_a_status_holds_what_differs_and_takes_away_what_is_gone() -> None:
    stored = RLJobStatus(
        phase="Restarting",
        message="old",
        attempt=1,
        restarts=RestartsStatus(faults=1, slots={"a/0": 1, "a/1": 2}, next_attempt_time="t"),
    )
    wanted = RLJobStatus(phase="Running", attempt=1, restarts=RestartsStatus(faults=1, slots={"a/1": 3}), ready="1/1")
    assert status_changes(stored, wanted) == {
        "phase": "Running",
        "message": None,
        "ready": "1/1",
        "restarts": {"slots": {"a/0": None, "a/1": 3}, "nextAttemptTime": None},
    }


def test_lists_are_replaced_as_a_whole() -> None:
    stored = RLJobStatus(conditions=(Condition(type="Failed", status="False"),))
    wanted = RLJobStatus(conditions=(Condition(type="Failed", status="True"),))
    (changed,) = status_changes(stored, wanted)["conditions"]
    assert (changed["type"], changed["status"]) == ("Failed", "True")


def test_equal_statuses_have_no_patch() -> None:
    status = RLJobStatus(phase="Running", progress=ProgressStatus(reward=0.1))
    assert status_changes(status, status.model_copy(deep=True)) == {}


def test_what_is_only_said_is_told_from_what_is() -> None:
    waits = RLJobStatus(message="1 node", conditions=(Condition(type="PodsReady", status="False", message="1 node"),))
    says = RLJobStatus(message="2 nodes", conditions=(Condition(type="PodsReady", status="False", message="2 nodes"),))
    runs = RLJobStatus(message="1 node", conditions=(Condition(type="PodsReady", status="True", message="1 node"),))
    assert is_talk_alone(waits, says)
    assert not is_talk_alone(waits, runs)
    assert is_talk_alone(RLJobStatus(), RLJobStatus(progress=ProgressStatus(frames=1)))
    assert not is_talk_alone(RLJobStatus(), RLJobStatus(ready="1/1", progress=ProgressStatus(frames=1)))


def test_a_patch_is_guarded_by_uid_and_version() -> None:
    view = JobView(Owner("ppo", "team-a", UID), 41, 1, None, RLJobStatus())
    patch = status_patch(view, {"phase": "Failed"})
    assert patch == {"metadata": {"uid": UID, "resourceVersion": "41"}, "status": {"phase": "Failed"}}
