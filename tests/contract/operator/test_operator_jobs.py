"""Jobs from apply to their end, by the operator's process on a real API server."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_harness.cluster import wait_for
from operator_place import Place
from played_kubelet import end_pod, own_address, run_all, run_pod

TRAINERS = [{"name": "trainer", "type": "Trainer", "replicas": 4}]
WITH_COLLECTORS: dict[str, Any] = {
    "roles": [{"name": "trainer", "type": "Trainer"}, {"name": "collector", "type": "Collector"}],
    "elastic": {"role": "collector", "replicas": 2, "minReplicas": 0, "maxReplicas": 4},
}


def succeed(place: Place, pods: list[str]) -> None:
    for name in reversed(pods):  # the job has succeeded once the first is done, and those that still run are deleted
        end_pod(place.cluster, place.namespace, name, exit_code=0)
    place.wait_phase("Succeeded")


def test_a_job_of_one_pod_runs_to_its_end_with_at_most_twelve_requests(place: Place) -> None:
    place.create()
    pods = run_all(place.cluster, place.namespace, 1)
    running = place.wait_phase("Running")
    assert pods == ["ppo-trainer-0-0"]
    assert running["ready"] == "1/1"
    succeed(place, pods)
    wait_for("both events are there", lambda: len(place.events()) == 2)
    assert sorted(place.events()) == [("Normal", "Running"), ("Normal", "Succeeded")]
    assert len(place.requests()) <= 12, place.requests()
    assert place.condition("Succeeded")["status"] == "True"


def test_a_pod_that_somebody_took_the_labels_of_is_missed(place: Place) -> None:
    place.create()
    run_all(place.cluster, place.namespace, 1)
    place.wait_phase("Running")
    labels = {"app.kubernetes.io/managed-by": None, "rljob.io/job-uid": None}
    path = f"/api/v1/namespaces/{place.namespace}/pods/ppo-trainer-0-0"
    place.cluster.api.patch(path, {"metadata": {"labels": labels}})
    place.wait_pods("ppo-trainer-0-0", "ppo-trainer-0-1")


def test_a_job_of_four_pods_costs_at_most_seventeen_requests(place: Place) -> None:
    place.create(roles=TRAINERS)
    pods = run_all(place.cluster, place.namespace, 4)
    assert place.wait_phase("Running")["ready"] == "4/4"
    succeed(place, pods)
    assert len(place.requests()) <= 17, place.requests()


def test_children_belong_to_the_job_and_the_token_is_no_placeholder(place: Place) -> None:
    place.create()
    place.wait_pods("ppo-trainer-0-0")
    uid = (place.cluster.job(place.namespace, "ppo") or {})["metadata"]["uid"]
    base = f"/api/v1/namespaces/{place.namespace}"
    secret = place.cluster.api.get(f"{base}/secrets/{place.status()['tokenSecret']}")
    service = place.cluster.api.get(f"{base}/services/ppo-{uid[:8]}")
    for child in (secret, service):
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (uid, True, False)
    assert len(secret["data"]["token"]) == 88  # 64 hexadecimal digits, in base64


def test_a_failed_trainer_is_tried_again_as_a_whole_and_charged_once(place: Place) -> None:
    place.create(roles=[{"name": "trainer", "type": "Trainer", "replicas": 2}])
    run_all(place.cluster, place.namespace, 2)
    place.wait_phase("Running")
    end_pod(place.cluster, place.namespace, "ppo-trainer-1-0", exit_code=1, message="no more memory")
    place.wait_pods("ppo-trainer-0-1", "ppo-trainer-1-1")
    status = place.status()
    assert (status["attempt"], status["restarts"]["faults"], status["restarts"]["disruptions"]) == (1, 1, 0)
    assert ("Warning", "Restarting") in place.events()


def test_a_pod_that_a_user_deletes_is_replaced_and_charged_as_a_disruption(place: Place) -> None:
    place.create()
    run_all(place.cluster, place.namespace, 1)
    place.wait_phase("Running")
    place.delete_pod("ppo-trainer-0-0")
    place.wait_pods("ppo-trainer-0-1")
    restarts = place.status()["restarts"]
    assert (restarts["faults"], restarts["disruptions"]) == (0, 1)


def test_a_suspended_job_loses_its_pods_and_goes_on_in_another_attempt(place: Place) -> None:
    place.create()
    run_all(place.cluster, place.namespace, 1)
    place.wait_phase("Running")
    place.patch("ppo", {"runPolicy": {"suspend": True}})
    place.wait_phase("Suspended")
    assert place.pods() == []
    assert place.condition("Suspended")["status"] == "True"
    place.patch("ppo", {"runPolicy": {"suspend": False}})
    place.wait_pods("ppo-trainer-0-1")
    run_pod(place.cluster, place.namespace, "ppo-trainer-0-1")
    assert place.wait_phase("Running").get("restarts", {}).get("disruptions", 0) == 0


def test_kubectl_scale_moves_the_elastic_role_and_charges_nothing(place: Place) -> None:
    place.create(**WITH_COLLECTORS)
    run_all(place.cluster, place.namespace, 1)  # collectors wait for the trainer
    place.wait_pods("ppo-collector-0-0", "ppo-collector-1-0", "ppo-trainer-0-0")
    run_all(place.cluster, place.namespace, 3)
    place.wait_phase("Running")
    place.cluster.kubectl("scale", "rlj/ppo", "--replicas=3", "-n", place.namespace)
    place.wait_pods("ppo-collector-0-0", "ppo-collector-1-0", "ppo-collector-2-0", "ppo-trainer-0-0")
    place.cluster.kubectl("scale", "rlj/ppo", "--replicas=1", "-n", place.namespace)
    place.wait_pods("ppo-collector-0-0", "ppo-trainer-0-0")
    job = place.cluster.job(place.namespace, "ppo") or {}
    assert job["spec"]["elastic"]["replicas"] == 1
    wait_for("the scale says so", lambda: place.status()["elastic"]["replicas"] == 1)
    assert place.status().get("restarts", {}).get("disruptions", 0) == 0


def test_a_finished_job_is_deleted_when_its_time_has_come(place: Place) -> None:
    place.create(runPolicy={"ttlSecondsAfterFinished": 1})
    pods = run_all(place.cluster, place.namespace, 1)
    place.wait_phase("Running")
    for name in pods:
        end_pod(place.cluster, place.namespace, name, exit_code=0)
    wait_for("the job is gone", lambda: place.cluster.job(place.namespace, "ppo") is None)
    wait_for("the deletion is on record", lambda: "delete rljobs" in place.writes())
    assert place.writes().count("delete rljobs") == 1


def test_a_template_that_the_server_refuses_fails_the_job_before_anything_is_created(place: Place) -> None:
    place.create(roles=[{"name": "trainer", "type": "Trainer", "template": {"spec": {"contaniers": []}}}])
    place.wait_phase("Failed")
    failed = place.condition("Failed")
    assert failed["reason"] == "TemplateInvalid"
    assert "contaniers" in failed["message"]
    assert [item for item in place.writes() if item.startswith("create") and item != "create events"] == []
    assert place.requests().count("create pods dry") == 1


@pytest.mark.parametrize(("plural", "kind"), [("services", "Service"), ("configmaps", "ConfigMap")])
def test_an_object_of_a_stranger_is_left_as_it_was(place: Place, plural: str, kind: str) -> None:
    place.create(runPolicy={"suspend": True})
    place.wait_phase("Suspended")
    uid = (place.cluster.job(place.namespace, "ppo") or {})["metadata"]["uid"]
    name = f"ppo-{uid[:8]}" if kind == "Service" else f"ppo-{uid[:8]}-spec"
    path = f"/api/v1/namespaces/{place.namespace}/{plural}"
    body = {"spec": {"clusterIP": "None"}} if kind == "Service" else {"data": {"spec.json": "theirs"}}
    theirs = place.cluster.api.create(path, {"metadata": {"name": name}, **body})
    place.patch("ppo", {"runPolicy": {"suspend": False}})
    said = place.wait_condition("PodsReady", "NameTaken")
    assert name in said["message"]
    assert place.pods() == []
    assert place.cluster.api.get(f"{path}/{name}") == theirs


def test_a_pod_of_a_stranger_is_left_as_it_was(place: Place) -> None:
    spec = {"containers": [{"name": "theirs", "image": "theirs"}]}
    path = f"/api/v1/namespaces/{place.namespace}/pods"
    theirs = place.cluster.api.create(path, {"metadata": {"name": "ppo-trainer-0-0"}, "spec": spec})
    place.create()
    said = place.wait_condition("PodsReady", "NameTaken")
    assert "ppo-trainer-0-0" in said["message"]
    assert place.cluster.api.get(f"{path}/ppo-trainer-0-0") == theirs


def test_a_quota_is_quoted_and_the_job_goes_on_once_there_is_room(place: Place) -> None:
    path = f"/api/v1/namespaces/{place.namespace}/resourcequotas"
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    place.cluster.api.create(path, quota)
    place.cluster.api.patch(f"{path}/none/status", {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}})
    place.create()
    said = place.wait_condition("PodsReady", "QuotaExceeded")
    assert "exceeded quota: none" in said["message"]
    place.cluster.api.delete(f"{path}/none")
    place.wait_pods("ppo-trainer-0-0")


def test_a_job_that_another_controller_manages_is_left_alone(place: Place) -> None:
    place.create("theirs", managedBy="example.com/other")
    place.create("ours")
    place.wait_pods("ours-trainer-0-0")
    assert place.status("theirs") == {}


def test_deleting_the_job_ends_all_interest_in_it(place: Place) -> None:
    place.create()
    run_all(place.cluster, place.namespace, 1)
    place.wait_phase("Running")
    place.cluster.kubectl("delete", "rlj/ppo", "-n", place.namespace)
    place.delete_pod("ppo-trainer-0-0")  # the garbage collector would
    place.create()
    place.wait_pods("ppo-trainer-0-0")
    assert place.status()["attempt"] == 0


@pytest.fixture
def trainer() -> Iterator[tuple[int, dict[str, Any]]]:
    """A trainer's web server on a free port, and the report that it gives."""
    report: dict[str, Any] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(report).encode()
            self.send_response(200 if self.path == "/status" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer((own_address(), 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1], report
        server.shutdown()
        thread.join()


def test_what_the_trainer_says_of_its_progress_stands_in_the_status(
    place: Place, trainer: tuple[int, dict[str, Any]]
) -> None:
    port, report = trainer
    place.create(metrics={"port": port})
    place.wait_pods("ppo-trainer-0-0")
    uid = (place.cluster.job(place.namespace, "ppo") or {})["metadata"]["uid"]
    about = {"uid": uid, "attempt": 0, "round": 0, "phase": "Training"}
    report.update(about, frames=250, totalFrames=1000, resumedFrames=0, reward=12.5)
    run_pod(place.cluster, place.namespace, "ppo-trainer-0-0", ip=own_address())
    place.wait_phase("Running")
    wait_for("there is progress", lambda: "progress" in place.status(), deadline_s=60.0, describe=place.status)
    progress = place.status()["progress"]
    assert (progress["percent"], progress["reward"], progress["frames"]) == (25, 12.5, 250)
