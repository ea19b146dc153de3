"""A cluster as a platform team has it, for tests of the security model.

One node that enforces NetworkPolicies, the operator in a pod of its own, two jobs in a namespace of the strictest Pod
Security, and strangers around them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml
from cluster_harness.api import JsonObject
from cluster_harness.cluster import wait_for
from cluster_harness.control_plane import ControlPlane, Settings
from cluster_harness.images import OPERATOR, RUNTIME
from cluster_harness.node import Node
from cluster_harness.policies import PolicyAgent
from kill_job import kill_code, kill_job
from operator_place import JOBS
from operator_process import DEPLOY, SYSTEM_NAMESPACE

TEAM, OTHER, MONITORING = "team-a", "team-b", "monitoring"
SCRAPER_LABELS = {"app.kubernetes.io/name": "prometheus"}
PORT, OWN_PORT = 9400, 8001
"""What every pod of a job serves, and what the code of one serves besides."""
_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
_HELPER = """\
import http.server


def serve(config):
    http.server.ThreadingHTTPServer(("", config["port"]), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
_HELPER_ROLE = {"name": "helper", "type": "Service", "entrypoint": "helper:serve", "config": {"port": OWN_PORT}}


@dataclass(frozen=True)
class Settlement:
    """The cluster, and what tests ask of it."""

    plane: ControlPlane
    node: Node
    agent: PolicyAgent
    operator: str
    """Name of the operator's pod."""
    operator_labels: dict[str, str]

    def pod(self, namespace: str, name: str) -> JsonObject:
        """Return a pod."""
        found = self.plane.get("/api/v1/pods", namespace, name)
        assert found is not None
        return found

    def address(self, namespace: str, name: str) -> str:
        """Return the address of a pod."""
        return str(self.pod(namespace, name)["status"]["podIP"])

    def job(self, name: str) -> JsonObject:
        """Return a job of the team."""
        found = self.plane.job(TEAM, name)
        assert found is not None
        return found

    def run(self, namespace: str, pod: str, script: str) -> str:
        """Run a shell script in a pod's first container, and return what it printed."""
        done = self.plane.kubectl("-n", namespace, "exec", pod, "--", "bash", "-c", script, check=False)
        return done.stdout + done.stderr

    def reaches(self, source: tuple[str, str], target: tuple[str, int]) -> bool:
        """Return whether a pod (namespace and name) can open a connection to a pod of the team (name and port)."""
        name, port = target
        address = self.address(TEAM, name)
        said = self.run(*source, f"timeout 2 bash -c 'exec 3<>/dev/tcp/{address}/{port}' && echo open || echo closed")
        assert said.split()[-1:] in (["open"], ["closed"]), said
        return said.split()[-1] == "open"

    def start(self, namespace: str, name: str, labels: dict[str, str] | None = None) -> tuple[str, str]:
        """Run a pod that does nothing, and return where it is."""
        self.plane.apply(idle_pod(name, labels or {}), namespace=namespace)
        self.wait_running(namespace, name)
        return namespace, name

    def wait_running(self, namespace: str, name: str) -> None:
        """Wait until a pod runs."""
        wait_for(
            f"{name} runs",
            lambda: (self.plane.get("/api/v1/pods", namespace, name) or {}).get("status", {}).get("phase") == "Running",
            deadline_s=90.0,
            describe=lambda: self.plane.kubectl("-n", namespace, "describe", "pod", name, check=False).stdout[-3000:],
        )

    def wait_job(self, name: str, phase: str) -> JsonObject:
        """Wait until a job is in a phase, and return its status."""

        def status() -> JsonObject | None:
            found: JsonObject = self.job(name).get("status", {})
            return found if found.get("phase") == phase else None

        def describe() -> str:
            shown = self.plane.kubectl("-n", TEAM, "get", "rlj,pods,events", "-o", "wide", check=False).stdout
            return f"{shown[-5000:]}\n{self.operator_log()[-2000:]}"

        return wait_for(f"{name} is {phase}", status, deadline_s=300.0, describe=describe)

    def operator_log(self) -> str:
        """Return what the operator has logged."""
        return self.plane.kubectl("-n", SYSTEM_NAMESPACE, "logs", self.operator, check=False).stdout

    def create_job(self, name: str, **spec: Any) -> None:
        """Create a job that trains for minutes, with a pod beside the trainer that serves a port of its own."""
        roles = [{"name": "trainer", "type": "Trainer"}, _HELPER_ROLE]
        document = kill_job(name, TEAM, seconds=600.0, image=RUNTIME, **{"roles": roles, **spec})
        self.plane.api.create(JOBS.format(TEAM), document)


@contextmanager
def settlement() -> Iterator[Settlement]:
    """Start all of it, with two jobs that run, `one` and `two`."""
    settings = Settings(controller_manager=True, scheduler=True, audit_users=["*"], audit_bodies=True)
    with ControlPlane(settings) as plane, Node(plane, "node-a") as node, PolicyAgent(plane, [node]) as agent:
        plane.install_crds()
        for name in (TEAM, OTHER, MONITORING):
            plane.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": _RESTRICTED}})
            plane.create_service_account(name, "default")
        code = kill_code(namespace=TEAM)
        code["data"]["helper.py"] = _HELPER
        plane.api.create(f"/api/v1/namespaces/{TEAM}/configmaps", code)
        found = Settlement(plane, node, agent, *start_operator(plane))
        for job in ("one", "two"):
            found.create_job(job)
        for job in ("one", "two"):
            found.wait_job(job, "Running")
        yield found


def start_operator(plane: ControlPlane) -> tuple[str, dict[str, str]]:
    """Deploy the operator by the shipped manifests, with a scraper; return name and labels of its pod."""
    plane.apply(DEPLOY / "rbac.yaml")
    plane.api.patch(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}", {"metadata": {"labels": _RESTRICTED}})
    (deployment,) = [
        item
        for item in yaml.safe_load_all((DEPLOY / "operator.yaml").read_text())
        if item is not None and item["kind"] == "Deployment"
    ]
    template = deployment["spec"]["template"]
    labels: dict[str, str] = deployment["spec"]["selector"]["matchLabels"]
    (container,) = template["spec"]["containers"]
    container["image"] = OPERATOR
    container["args"] += [
        *policy_options(labels, without=container["args"]),
        f"--scraper-namespace-labels=kubernetes.io/metadata.name={MONITORING}",
        f"--scraper-pod-labels={_joined(SCRAPER_LABELS)}",
    ]
    plane.apply(deployment)
    selector = _joined(labels)
    pod = wait_for(
        "the operator is ready",
        lambda: _ready(plane, selector),
        deadline_s=90.0,
        describe=lambda: plane.kubectl("-n", SYSTEM_NAMESPACE, "describe", "pods", check=False).stdout[-3000:],
    )
    return pod, labels


def policy_options(labels: dict[str, str], *, without: list[str]) -> list[str]:
    """Return the options by which the operator's pods are let in, those that are given already left out."""
    if "--job-network-policies" in without:
        return []
    return [
        "--job-network-policies",
        f"--operator-namespace-labels=kubernetes.io/metadata.name={SYSTEM_NAMESPACE}",
        f"--operator-pod-labels={_joined(labels)}",
    ]


def _ready(plane: ControlPlane, selector: str) -> str | None:
    listed = plane.kubectl("-n", SYSTEM_NAMESPACE, "get", "pods", "-l", selector, "-o", "json").stdout
    for pod in yaml.safe_load(listed)["items"]:
        conditions = pod["status"].get("conditions", [])
        if any(item["type"] == "Ready" and item["status"] == "True" for item in conditions):
            return str(pod["metadata"]["name"])
    return None


def _joined(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def idle_pod(name: str, labels: dict[str, str]) -> JsonObject:
    """Return a pod that does nothing, which the strictest Pod Security admits."""
    container = {
        "name": "idle",
        "image": RUNTIME,
        "command": ["sleep", "3600"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }
