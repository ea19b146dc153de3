"""What the operator can't be made to do, on a real API server: by its own account, by a manifest, by a pod."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cluster_harness.api import ApiError, JsonObject
from cluster_harness.cluster import wait_for
from operator_place import JOBS, Own, Place, job_document
from operator_process import ACCOUNT, SYSTEM_NAMESPACE, USER
from played_kubelet import end_pod, own_address, run_all, run_pod

POLICY_OPTIONS = [
    "--job-network-policies",
    f"--operator-namespace-labels=kubernetes.io/metadata.name={SYSTEM_NAMESPACE}",
    "--operator-pod-labels=app.kubernetes.io/name=rljob",
]
NEVER = [
    *((verb, "secrets", "") for verb in ("get", "list", "watch", "update", "patch", "delete", "deletecollection")),
    *((verb, "pods", "exec") for verb in ("get", "create")),
    *((verb, "pods", "attach") for verb in ("get", "create")),
    *((verb, "pods", "portforward") for verb in ("get", "create")),
    *((verb, "pods", "proxy") for verb in ("get", "create")),
    *((verb, "pods", "ephemeralcontainers") for verb in ("update", "patch")),
    ("get", "pods", "log"),
    ("patch", "pods", "status"),
    ("create", "serviceaccounts", "token"),
    ("impersonate", "users", ""),
    ("impersonate", "serviceaccounts", ""),
    ("get", "nodes", ""),
    ("get", "nodes", "proxy"),
    ("list", "namespaces", ""),
    ("update", "configmaps", ""),
    ("patch", "configmaps", ""),
    ("update", "networkpolicies", ""),
    ("patch", "networkpolicies", ""),
    ("delete", "networkpolicies", ""),
]


def test_the_operators_account_reads_no_secret_and_enters_no_pod(place: Place) -> None:
    place.create()
    place.wait_pods("ppo-trainer-0-0")
    token = place.status()["tokenSecret"]
    api = place.cluster.api
    for verb, resource, subresource in NEVER:
        group = "networking.k8s.io" if resource == "networkpolicies" else ""
        about = {"verb": verb, "resource": resource, "subresource": subresource, "group": group}
        for namespace in (place.namespace, SYSTEM_NAMESPACE, ""):
            review = {"spec": {"user": USER, "resourceAttributes": {**about, "namespace": namespace}}}
            answer = api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
            assert answer["status"]["allowed"] is False, about
    kubeconfig = place.cluster.service_account_kubeconfig(SYSTEM_NAMESPACE, ACCOUNT)
    for words in (
        ["get", "secret", token, "-n", place.namespace],
        ["get", "secrets", "-n", place.namespace],
        ["get", "secrets", "--all-namespaces"],
        ["patch", "secret", token, "-n", place.namespace, "--type=merge", "-p", "{}"],
    ):
        done = place.cluster.kubectl(*words, kubeconfig=kubeconfig, check=False)
        assert done.returncode == 1
        assert "forbidden" in done.stderr.lower()


def with_role(**template: Any) -> JsonObject:
    """Return fields of a spec whose one role has this template."""
    return {"roles": [{"name": "trainer", "type": "Trainer", "template": template}]}


def with_claim(**template: Any) -> JsonObject:
    """Return fields of a spec whose claim has this template."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"storage": {"volumeClaimTemplate": {"spec": {**spec, **template.pop("spec", {})}, **template}}}


def tricks(there: str) -> dict[str, JsonObject]:
    """Return manifests that try to reach into the namespace ``there``, by what they try."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "victim", "uid": "00000000-0000-0000-0000-000000000001"}
    foreign = {"namespace": there, "name": "victim", "ownerReferences": [owner], "finalizers": ["a/b"]}
    source = {"kind": "PersistentVolumeClaim", "name": "victim", "namespace": there}

    def volume(**what: Any) -> JsonObject:
        return with_role(spec={"volumes": [{"name": "v", **what}]})

    specs: dict[str, JsonObject] = {
        "template-metadata": with_role(metadata=foreign),
        "template-namespace": with_role(spec={"namespace": there}),
        "template-api-object": with_role(spec={"apiVersion": "v1", "kind": "Pod", "metadata": foreign}),
        "claim-metadata": with_claim(metadata=foreign),
        "claim-source": with_claim(spec={"dataSourceRef": source}),
        "claim-name": {"storage": {"persistentVolumeClaim": {"claimName": f"{there}/victim"}}},
        "claim-path": {"storage": {"persistentVolumeClaim": {"claimName": f"../{there}/victim"}}},
        "claim-namespace": {"storage": {"persistentVolumeClaim": {"claimName": "victim", "namespace": there}}},
        "code-name": {"code": {"configMap": {"name": f"{there}/victim"}}},
        "code-path": {"code": {"configMap": {"name": f"../../{there}/configmaps/victim"}}},
        "code-namespace": {"code": {"configMap": {"name": "victim", "namespace": there}}},
        "secret-namespace": volume(secret={"secretName": "victim", "namespace": there}),
        "secret-path": volume(secret={"secretName": f"../{there}/secrets/victim"}),
        "config-path": volume(configMap={"name": f"{there}/victim"}),
        "account": with_role(spec={"serviceAccountName": f"{there}:default"}),
        "account-path": with_role(spec={"serviceAccountName": f"../{there}/default"}),
        "pull-secret": with_role(spec={"imagePullSecrets": [{"name": "victim", "namespace": there}]}),
        "role-path": {"roles": [{"name": f"../{there}", "type": "Trainer"}]},
        "priority-path": {"scheduling": {"priorityClassName": f"../{there}"}},
        "hostname": with_role(spec={"hostname": "trainer-0", "subdomain": f"x.{there}"}),
        "labels": with_role(metadata={"labels": {"rljob.io/job-uid": "another"}}),
    }
    documents = {name: job_document(name, **spec) for name, spec in specs.items()}
    documents["namespace"] = job_document("namespace")
    documents["namespace"]["metadata"]["namespace"] = there
    documents["owner"] = job_document("owner")
    documents["owner"]["metadata"] |= {"ownerReferences": [owner], "labels": {"rljob.io/job-uid": owner["uid"]}}
    documents["uid"] = job_document("uid")
    documents["uid"]["metadata"]["uid"] = owner["uid"]
    documents["status"] = {
        **job_document("status"),
        "status": {"tokenSecret": "victim", "attempt": 9, "phase": "Running"},
    }
    for number, name in enumerate((f"../{there}/x", f"{there}.x", "UPPER", "a" * 60)):
        documents[f"name-{number}"] = job_document(name)
    return documents


REFUSED = {
    "claim-name",
    "claim-path",
    "code-name",
    "code-path",
    "role-path",
    "priority-path",
    "namespace",
    "name-0",
    "name-1",
    "name-2",
    "name-3",
}
"""What the API server doesn't even store."""
INVALID = {
    "template-namespace",
    "template-api-object",
    "secret-namespace",
    "pull-secret",
    "hostname",
    "labels",
}
"""What fails the job before anything is made."""
HELD = {"account", "account-path"}
"""What the API server refuses to make a pod of, since there is no such account in the job's namespace."""


def test_no_manifest_makes_the_operator_act_outside_its_namespace(place: Place) -> None:
    there = place.cluster.create_namespace("victim")
    api = place.cluster.api
    base = f"/api/v1/namespaces/{there}"
    for kind, body in (
        ("configmaps", {"data": {"a.py": "mine"}}),
        ("secrets", {"stringData": {"token": "mine"}}),
        ("persistentvolumeclaims", with_claim()["storage"]["volumeClaimTemplate"]),
    ):
        api.create(f"{base}/{kind}", {"metadata": {"name": "victim"}, **body})
    before = contents(place, there)
    refused, codes = set(), set()
    documents = tricks(there)
    for name, document in documents.items():
        try:
            api.create(JOBS.format(place.namespace), document)
        except ApiError as error:
            refused.add(name)
            codes.add(error.status)
    assert refused == REFUSED
    assert codes <= {400, 422}
    taken = documents.keys() - refused

    def settled() -> bool:
        return all(place.status(name).get("phase") in ("Pending", "Failed") for name in taken)

    wait_for("all are settled", settled, deadline_s=60.0, describe=lambda: {n: place.status(n) for n in taken})
    failed = {name: place.status(name) for name in taken if place.status(name)["phase"] == "Failed"}
    assert {name: status["reason"] for name, status in failed.items()} == dict.fromkeys(INVALID, "TemplateInvalid")
    assert {place.condition("PodsReady", name)["reason"] for name in HELD} == {"Forbidden"}
    with_pods = sorted(f"{name}-trainer-0-0" for name in taken - INVALID - HELD)
    wait_for("all others have a pod", lambda: place.pods() == with_pods, describe=place.pods)
    assert contents(place, there) == before
    assert {name for name in namespaces_written(place) if name == there} == set()
    for pod in place.cluster.pods(place.namespace):
        about = pod["metadata"]
        (reference,) = about["ownerReferences"]
        assert (reference["kind"], reference["name"]) == ("RLJob", about["labels"]["rljob.io/job-name"])
        assert reference["uid"] == about["labels"]["rljob.io/job-uid"]
        assert "finalizers" not in about
    claims = api.get(f"/api/v1/namespaces/{place.namespace}/persistentvolumeclaims")["items"]
    assert [claim for claim in claims if "namespace" in claim["spec"].get("dataSourceRef", {})] == []


def contents(place: Place, namespace: str) -> list[str]:
    """Return all objects of a namespace, with their versions."""
    kinds = "configmaps,secrets,persistentvolumeclaims,pods,services,events,networkpolicies,rljobs"
    listed = place.cluster.kubectl("get", kinds, "-n", namespace, "-o", "json").stdout
    items = json.loads(listed)["items"]
    return sorted(f"{item['kind']} {item['metadata']['name']} {item['metadata']['resourceVersion']}" for item in items)


def namespaces_written(place: Place) -> set[str]:
    """Return the namespaces in which the operator asked for more than a list or a watch."""
    events = place.cluster.audit_events(USER)
    return {
        event["objectRef"]["namespace"]
        for event in events
        if event["verb"] not in ("list", "watch") and "namespace" in event.get("objectRef", {})
    }


def forged_pod(name: str, uid: str, attempt: int) -> JsonObject:
    """Return a pod that says of itself that it belongs to the job ``uid``."""
    owner = {"apiVersion": "rljob.io/v1alpha1", "kind": "RLJob", "name": "ppo", "uid": uid, "controller": True}
    labels = {
        "app.kubernetes.io/managed-by": "rljob-operator",
        "rljob.io/job-uid": uid,
        "rljob.io/job-name": "ppo",
        "rljob.io/role": "trainer",
        "rljob.io/index": "0",
        "rljob.io/attempt": str(attempt),
    }
    return {
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "rljob", "image": "theirs"}]},
    }


def test_pods_of_another_namespace_that_claim_a_job_as_theirs_change_nothing_for_it(place: Place) -> None:
    place.create()
    run_all(place.cluster, place.namespace, 1)
    place.wait_phase("Running")
    uid = (place.cluster.job(place.namespace, "ppo") or {})["metadata"]["uid"]
    there = place.cluster.create_namespace("forger")
    for number, attempt in enumerate((0, 1, 99)):
        body = forged_pod(f"forged-{number}", uid, attempt)
        place.cluster.api.create(f"/api/v1/namespaces/{there}/pods", body)
    end_pod(place.cluster, there, "forged-0", exit_code=78, message="fail, please")
    end_pod(place.cluster, there, "forged-1", exit_code=0)
    place.create("later")  # what was forged has been seen once this has been acted on
    wait_for("the later job has a pod", lambda: "later-trainer-0-0" in place.pods())
    status = place.status()
    assert (status["phase"], status["attempt"], status.get("restarts", {})) == ("Running", 0, {})
    end_pod(place.cluster, place.namespace, "ppo-trainer-0-0", exit_code=1)
    wait_for("the job goes on", lambda: "ppo-trainer-0-1" in place.pods(), describe=place.status)
    assert place.status()["restarts"]["faults"] == 1
    assert len(place.cluster.pods(there)) == 3


@contextmanager
def trainer_at(address: str) -> Iterator[tuple[int, list[str], JsonObject]]:
    """Serve a trainer's answers; yield the port, the paths that were asked for, and the report to give."""
    asked: list[str] = []
    report: JsonObject = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps(report).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer((address, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1], asked, report
        server.shutdown()
        thread.join()


def test_an_address_that_no_pod_has_is_not_asked_for_progress(place: Place) -> None:
    with trainer_at("127.0.0.1") as (local_port, asked, _), trainer_at(own_address()) as (port, _, report):
        place.create("local", metrics={"port": local_port})
        place.create("honest", metrics={"port": port})
        place.wait_pods("honest-trainer-0-0", "local-trainer-0-0")
        uid = (place.cluster.job(place.namespace, "honest") or {})["metadata"]["uid"]
        report.update(uid=uid, attempt=0, frames=10)
        run_pod(place.cluster, place.namespace, "local-trainer-0-0", ip="127.0.0.1")
        place.wait_phase("Running", "local")
        run_pod(place.cluster, place.namespace, "honest-trainer-0-0", ip=own_address())
        wait_for("the other is asked", lambda: "progress" in place.status("honest"), deadline_s=60.0)
        assert asked == []


@pytest.mark.parametrize("ip", ["metadata.internal", "10.0.0.1:80", "10.0.0.1/x", "http://10.0.0.1"])
def test_the_api_server_takes_nothing_but_an_address_as_that_of_a_pod(place: Place, ip: str) -> None:
    place.create()
    place.wait_pods("ppo-trainer-0-0")
    with pytest.raises(ApiError) as refused:
        run_pod(place.cluster, place.namespace, "ppo-trainer-0-0", ip=ip)
    assert refused.value.status == 422


def test_whoever_may_create_jobs_can_in_effect_create_pods(place: Place) -> None:
    api = place.cluster.api
    rules = [{"apiGroups": ["rljob.io"], "resources": ["rljobs"], "verbs": ["create", "get"]}]
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{place.namespace}"
    api.create(f"{rbac}/roles", {"metadata": {"name": "editor"}, "rules": rules})
    binding = {
        "metadata": {"name": "editor"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "editor"},
        "subjects": [{"kind": "ServiceAccount", "name": "editor", "namespace": place.namespace}],
    }
    api.create(f"{rbac}/rolebindings", binding)
    kubeconfig = place.cluster.service_account_kubeconfig(place.namespace, "editor")
    place.cluster.create_service_account(place.namespace, "powerful")
    asked = place.cluster.kubectl(
        "auth", "can-i", "create", "pods", "-n", place.namespace, kubeconfig=kubeconfig, check=False
    )
    assert asked.stdout.strip() == "no"
    spec = {
        "serviceAccountName": "powerful",
        "automountServiceAccountToken": True,
        "volumes": [{"name": "theirs", "secret": {"secretName": "of-another-team"}}],
    }
    document = json.dumps(job_document("escalate", **with_role(spec=spec)))
    place.cluster.kubectl("create", "-n", place.namespace, "-f", "-", stdin=document, kubeconfig=kubeconfig)
    place.wait_pods("escalate-trainer-0-0")
    (pod,) = place.cluster.pods(place.namespace)
    assert pod["spec"]["serviceAccountName"] == "powerful"
    assert any("projected" in volume for volume in pod["spec"]["volumes"])  # the account's token


def restricted(place: Place) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    place.cluster.api.patch(f"/api/v1/namespaces/{place.namespace}", {"metadata": {"labels": labels}})


def test_a_job_meets_the_strictest_pod_security_and_one_that_asks_for_more_is_told_what(place: Place) -> None:
    restricted(place)
    place.create("plain")
    place.create("host", **with_role(spec={"hostNetwork": True}))
    said = place.wait_condition("PodsReady", "Forbidden", "host")
    assert "hostNetwork=true" in said["message"]
    wait_for("the plain one has its pod", lambda: place.pods() == ["plain-trainer-0-0"], describe=place.pods)


def test_with_policies_a_job_of_one_pod_takes_one_request_more_and_a_strangers_policy_is_left(own: Own) -> None:
    with own.operator(*POLICY_OPTIONS):
        own.create()
        run_all(own.cluster, own.namespace, 1)
        own.wait_phase("Running")
        end_pod(own.cluster, own.namespace, "ppo-trainer-0-0", exit_code=0)
        own.wait_phase("Succeeded")
        wait_for("both events are there", lambda: len(own.events()) == 2)
        assert own.writes().count("create networkpolicies") == 1
        requests = [item for item in own.requests() if not item.startswith("list ")]
        assert len(requests) <= 13, requests
        path = f"/apis/networking.k8s.io/v1/namespaces/{own.namespace}/networkpolicies"
        (policy,) = own.cluster.api.get(path)["items"]
        uid = (own.cluster.job(own.namespace, "ppo") or {})["metadata"]["uid"]
        assert policy["metadata"]["ownerReferences"][0]["uid"] == uid
        assert policy["spec"]["podSelector"] == {"matchLabels": {"rljob.io/job-uid": uid}}


def test_without_the_right_to_make_policies_no_pod_is_made_and_the_job_says_why(own: Own) -> None:
    role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{own.namespace}/roles/rljob-operator"
    rules = own.cluster.api.get(role)["rules"]
    fewer = [rule for rule in rules if rule["apiGroups"] != ["networking.k8s.io"]]
    own.cluster.api.patch(role, {"rules": fewer})
    # Another test may have given the account its rights everywhere.
    own.cluster.kubectl("delete", "clusterrolebinding", "rljob-operator", "--ignore-not-found")
    with own.operator(*POLICY_OPTIONS):
        own.create()
        said = own.wait_condition("PodsReady", "Forbidden")
        assert "networkpolicies" in said["message"]
        assert own.pods() == []
        own.cluster.api.patch(role, {"rules": rules})
        own.wait_pods("ppo-trainer-0-0")
