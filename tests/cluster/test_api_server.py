"""The control plane itself: it answers, keeps what it stored, serves several users, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_harness.api import Api, ApiError
from cluster_harness.cluster import Cluster, wait_for
from cluster_harness.control_plane import ControlPlane, Settings
from cluster_harness.leftovers import Traces

SUPPORT = Path(__file__).resolve().parents[1] / "support"


def test_api_server_answers_in_the_pinned_version_and_knows_our_kind(cluster: Cluster) -> None:
    assert cluster.api.get("/version")["gitVersion"].startswith("v1.37.")
    kinds = {resource["kind"] for resource in cluster.api.get("/apis/rljob.io/v1alpha1")["resources"]}
    assert "RLJob" in kinds


def test_pod_is_stored_at_once_in_a_new_namespace(cluster: Cluster, namespace: str) -> None:
    pod = {"metadata": {"name": "one"}, "spec": {"containers": [{"name": "main", "image": "localhost/none:1"}]}}
    cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    assert [stored["status"]["phase"] for stored in cluster.pods(namespace)] == ["Pending"]


def test_object_outlives_a_killed_api_server_that_comes_back_under_the_same_address(
    control_plane: ControlPlane, namespace: str
) -> None:
    body = {"metadata": {"name": "kept"}, "data": {"key": "value"}}
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    control_plane.api.create(path, body)
    before = control_plane.process_ids["kube-apiserver"]
    control_plane.kill_apiserver()
    with pytest.raises(OSError, match="refused"):
        control_plane.api.get(f"{path}/kept")
    control_plane.start_apiserver()
    assert control_plane.process_ids["kube-apiserver"] != before
    assert control_plane.api.get(f"{path}/kept")["data"] == {"key": "value"}


def test_service_account_may_do_only_what_it_was_given(cluster: Cluster, namespace: str) -> None:
    api = Api(cluster.service_account_kubeconfig(namespace, "reader"))
    with pytest.raises(ApiError, match=f"system:serviceaccount:{namespace}:reader") as refused:
        api.get(f"/api/v1/namespaces/{namespace}/pods")
    assert refused.value.status == 403
    # "view" itself is filled from this role, but by the controller manager.
    cluster.bind_role("system:aggregate-to-view", namespace, "reader")
    pods = wait_for(
        "its right has reached the server",
        lambda: api.get(f"/api/v1/namespaces/{namespace}/pods"),
        ignore=[ApiError],
    )
    assert pods["items"] == []


def test_user_with_a_certificate_is_known_by_name(control_plane: ControlPlane) -> None:
    api = Api(control_plane.user_kubeconfig("ann", ["testers"]))
    review = api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert review["status"]["userInfo"]["username"] == "ann"
    assert "testers" in review["status"]["userInfo"]["groups"]


def test_audit_log_holds_every_request_of_the_chosen_user_and_no_other(api_server_programs: None) -> None:
    with ControlPlane(Settings(audit_users=["ann"])) as plane:
        ann = Api(plane.user_kubeconfig("ann", ["system:masters"]))
        ann.create("/api/v1/namespaces", {"metadata": {"name": "hers"}})
        ann.get("/api/v1/namespaces/hers")
        with pytest.raises(ApiError, match="not found"):
            ann.delete("/api/v1/namespaces/nobodys")
        plane.api.get("/api/v1/namespaces")
        seen = [
            (event["verb"], event["objectRef"]["resource"], event["responseStatus"]["code"])
            for event in plane.audit_events("ann")
        ]
        assert seen == [("create", "namespaces", 201), ("get", "namespaces", 200), ("delete", "namespaces", 404)]
        assert {event["user"]["username"] for event in plane.audit_events()} == {"ann"}


def test_two_control_planes_at_once_know_nothing_of_each_other(cluster: Cluster, namespace: str) -> None:
    with ControlPlane() as other, pytest.raises(ApiError, match="not found"):
        other.api.get(f"/api/v1/namespaces/{namespace}")


def test_nothing_is_left_after_stop(api_server_programs: None) -> None:
    plane = ControlPlane()
    assert len(plane.guard.traces.found()) >= 3
    plane.stop()
    assert plane.guard.traces.found() == []
    plane.stop()


def test_nothing_is_left_when_its_owner_is_killed(api_server_programs: None) -> None:
    program = (
        f"import sys, time; sys.path.insert(0, {str(SUPPORT)!r})\n"
        "from cluster_harness.control_plane import ControlPlane\n"
        "plane = ControlPlane(); print(plane.guard.folder, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        traces = Traces(owner.stdout.readline().strip())
        assert len(traces.found()) >= 3
        os.kill(owner.pid, signal.SIGKILL)
    wait_for("all is gone", lambda: traces.found() == [], describe=traces.found)
