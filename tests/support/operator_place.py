"""A namespace in which the operator acts, and what tests do and see in it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster_harness.api import JsonObject
from cluster_harness.cluster import wait_for
from cluster_harness.control_plane import ControlPlane
from operator_process import USER, OperatorProcess

JOBS = "/apis/rljob.io/v1alpha1/namespaces/{}/rljobs"


@dataclass(frozen=True)
class Place:
    """A namespace, and what tests do in it."""

    cluster: ControlPlane
    namespace: str

    def create(self, name: str = "ppo", **spec: Any) -> None:
        """Create a job."""
        self.cluster.api.create(JOBS.format(self.namespace), job_document(name, **spec))

    def patch(self, name: str, spec: JsonObject) -> None:
        """Change the spec of a job."""
        self.cluster.api.patch(f"{JOBS.format(self.namespace)}/{name}", {"spec": spec})

    def status(self, name: str = "ppo") -> JsonObject:
        """Return the status of a job; empty where it has none, or there is no such job."""
        job = self.cluster.job(self.namespace, name) or {}
        status: JsonObject = job.get("status", {})
        return status

    def condition(self, kind: str, name: str = "ppo") -> JsonObject:
        """Return a condition of a job; empty where it isn't there."""
        conditions = self.status(name).get("conditions", [])
        return next((item for item in conditions if item["type"] == kind), {})

    def wait_phase(self, phase: str, name: str = "ppo", *, deadline_s: float = 30.0) -> JsonObject:
        """Wait until a job is in a phase, and return its status."""
        wait_for(
            f"{name} is {phase}",
            lambda: self.status(name).get("phase") == phase,
            deadline_s=deadline_s,
            describe=lambda: self.status(name),
        )
        return self.status(name)

    def wait_condition(self, kind: str, reason: str, name: str = "ppo", *, deadline_s: float = 30.0) -> JsonObject:
        """Wait until a condition of a job has a reason, and return it."""
        wait_for(
            f"{kind} of {name} says {reason}",
            lambda: self.condition(kind, name).get("reason") == reason,
            deadline_s=deadline_s,
            describe=lambda: self.status(name),
        )
        return self.condition(kind, name)

    def wait_pods(self, *names: str, deadline_s: float = 30.0) -> None:
        """Wait until there are these pods and no others."""
        wait_for(
            f"there are the pods {names}",
            lambda: self.pods() == sorted(names),
            deadline_s=deadline_s,
            describe=lambda: (self.pods(), self.status()),
        )

    def pods(self) -> list[str]:
        """Return the names of all pods."""
        return sorted(pod["metadata"]["name"] for pod in self.cluster.pods(self.namespace))

    def delete_pod(self, name: str) -> None:
        """Delete a pod, as a user may; without a node it goes at once."""
        self.cluster.api.delete(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def rljob(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command about the jobs of this namespace, as the administrator."""
        command = [sys.executable, "-m", "rlruntime.cli.main", *arguments, "-n", self.namespace]
        options = ["--kubeconfig", str(self.cluster.kubeconfig)]
        return subprocess.run([*command, *options], capture_output=True, text=True, timeout=timeout_s, check=False)

    def events(self) -> list[tuple[str, str]]:
        """Return type and reason of the events about jobs."""
        items = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        ours = [item for item in items if item["involvedObject"]["kind"] == "RLJob"]
        return [(item["type"], item["reason"]) for item in ours]

    def requests(self) -> list[str]:
        """Return what the operator asked of this namespace, as ``verb resource/subresource``; dry runs say so."""
        found = []
        for event in self.cluster.audit_events(USER):
            about = event.get("objectRef", {})
            if about.get("namespace") == self.namespace and event["verb"] != "watch":
                words = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
                dry = " dry" if "dryRun=All" in event["requestURI"] else ""
                found.append(f"{event['verb']} {words}{dry}")
        return found

    def writes(self) -> list[str]:
        """Return those requests that change something."""
        return [item for item in self.requests() if item.split()[0] not in ("get", "list") and " dry" not in item]


def job_document(name: str, **spec: Any) -> JsonObject:
    """Return a job that trains CartPole, with these fields of `spec` beside."""
    training = {"algorithm": "PPO", "totalFrames": 1000, "env": {"id": "CartPole-v1"}}
    return {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name},
        "spec": {"training": training, **spec},
    }


@dataclass(frozen=True)
class Own(Place):
    """A namespace with an operator of one's own."""

    kubeconfig: Path

    def operator(self, *options: str) -> OperatorProcess:
        """Return an operator for this namespace alone, which is started by ``with``."""
        return OperatorProcess(self.kubeconfig, "--namespace", self.namespace, *options)
