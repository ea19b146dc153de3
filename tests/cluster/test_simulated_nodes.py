"""Simulated nodes: pods run at once, end as their labels say, and go when they are deleted."""

from __future__ import annotations

from typing import Any

from cluster_harness.cluster import wait_for
from cluster_harness.control_plane import ControlPlane
from cluster_harness.simulated import (
    COMPLETE_LABEL,
    DELAY_ANNOTATION,
    EXIT_CODE_ANNOTATION,
    MESSAGE_ANNOTATION,
)


def create_pod(plane: ControlPlane, namespace: str, **metadata: Any) -> str:
    """Create a pod with this metadata and return its path."""
    spec = {"restartPolicy": "Never", "containers": [{"name": "rljob", "image": "localhost/none:1"}]}
    path = f"/api/v1/namespaces/{namespace}/pods"
    plane.api.create(path, {"metadata": {"name": "one", **metadata}, "spec": spec})
    return f"{path}/one"


def wait_for_phase(plane: ControlPlane, path: str, phase: str) -> dict[str, Any]:
    """Wait for a phase of a pod and return its status."""

    def status() -> dict[str, Any] | None:
        found: dict[str, Any] = plane.api.get(path)["status"]
        return found if found["phase"] == phase else None

    return wait_for(f"the pod is {phase}", status, describe=lambda: plane.api.get(path)["status"])


def test_pod_is_scheduled_runs_and_is_ready_until_it_is_deleted(
    running_cluster: ControlPlane, running_namespace: str
) -> None:
    path = create_pod(running_cluster, running_namespace)
    status = wait_for_phase(running_cluster, path, "Running")
    assert {condition["type"]: condition["status"] for condition in status["conditions"]}["Ready"] == "True"
    assert status["containerStatuses"][0]["ready"] is True
    assert status["podIP"]
    running_cluster.api.delete(path)
    wait_for("the pod is gone", lambda: running_cluster.pods(running_namespace) == [])


def test_labelled_pod_succeeds_with_its_message(running_cluster: ControlPlane, running_namespace: str) -> None:
    path = create_pod(
        running_cluster,
        running_namespace,
        labels={COMPLETE_LABEL: "yes"},
        annotations={DELAY_ANNOTATION: "100ms", MESSAGE_ANNOTATION: '{"reason": "Done", "message": "the \'end\'"}'},
    )
    status = wait_for_phase(running_cluster, path, "Succeeded")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    assert ended["message"] == '{"reason": "Done", "message": "the \'end\'"}'


def test_labelled_pod_fails_with_the_exit_code_it_names(running_cluster: ControlPlane, running_namespace: str) -> None:
    path = create_pod(
        running_cluster,
        running_namespace,
        labels={COMPLETE_LABEL: ""},
        annotations={EXIT_CODE_ANNOTATION: "78"},
    )
    status = wait_for_phase(running_cluster, path, "Failed")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (78, "Error")


def test_what_an_object_owns_goes_with_it(running_cluster: ControlPlane, running_namespace: str) -> None:
    path = f"/api/v1/namespaces/{running_namespace}/configmaps"
    owner = running_cluster.api.create(path, {"metadata": {"name": "owner"}})["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    pod = create_pod(running_cluster, running_namespace, ownerReferences=[reference])
    wait_for_phase(running_cluster, pod, "Running")
    running_cluster.api.delete(f"{path}/owner")
    wait_for("the pod is gone", lambda: running_cluster.pods(running_namespace) == [])
