"""A release of the chart on a cluster with a real node, and a job that trains meanwhile."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster_harness.api import JsonObject
from cluster_harness.cluster import wait_for
from cluster_harness.control_plane import ControlPlane
from cluster_harness.images import OPERATOR, RUNTIME, seen_at
from helm import CHART, NAMESPACE, ROOT, Helm, options
from kill_job import kill_code, kill_job
from operator_place import JOBS
from rljob_operator.settings import DEFAULT_METRICS_PORT

EARLIER = ROOT / "tests" / "fixtures" / "charts" / "rljob-0.0.9.tgz"
"""The chart as it once was, with the definition of that time."""
EARLIER_OPERATOR = ROOT / "tests" / "fixtures" / "charts" / "rljob-operator-0.0.9.zip"
"""The operator of that time; Python imports it as it is."""
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rljobs.rljob.io"
_DEPLOYMENTS = "/apis/apps/v1/deployments"
_WAIT = ["--wait", "--timeout", "3m"]
_RULE = re.compile(r"^(?P<resource>\S+)\s+\[[^\]]*\]\s+\[(?P<names>[^\]]*)\]\s+\[(?P<verbs>[^\]]*)\]$")


def images(image: str) -> JsonObject:
    """Return an image of a test node as the chart's values have it."""
    repository, _, tag = image.partition(":")
    return {"repository": repository, "tag": tag}


@dataclass(frozen=True)
class Release:
    """A release in a namespace.

    Args:
        values: a file, before those that every test needs.
    """

    cluster: ControlPlane
    helm: Helm
    values: Sequence[Path] = ()
    name: str = "rljob"
    namespace: str = NAMESPACE

    def install(self, chart: Path = CHART, values: Mapping[str, Any] | None = None, *flags: str) -> str:
        """Install it, wait until it is ready, and return what Helm said."""
        place: list[str | Path] = ["--namespace", self.namespace, "--create-namespace"]
        return self.helm.run(
            "install", self.name, chart, *place, *self._options(values), *_WAIT, *flags, timeout_s=240.0
        )

    def install_earlier(self) -> str:
        """Install the earlier chart, with the operator of that time."""
        path = {"name": "PYTHONPATH", "value": str(seen_at(EARLIER_OPERATOR))}
        return self.install(EARLIER, {"operator.extraEnv": [path], "replicaCount": 1})

    def upgrade(self, values: Mapping[str, Any] | None = None, chart: Path = CHART) -> str:
        """Upgrade it to the chart of now, wait until that is ready, and return what Helm said."""
        words: list[str | Path] = [
            "upgrade",
            self.name,
            chart,
            "--namespace",
            self.namespace,
            *self._options(values),
            *_WAIT,
        ]
        return self.helm.run(*words, timeout_s=240.0)

    def roll_back(self, revision: int) -> None:
        """Go back to an earlier revision, and wait until that is ready."""
        self.helm.run("rollback", self.name, str(revision), "--namespace", self.namespace, *_WAIT, timeout_s=240.0)

    def test(self) -> str:
        """Run `helm test`, and return what was said, the pod's log included."""
        words = ["test", self.name, "--namespace", self.namespace, "--logs", "--timeout", "4m"]
        return self.helm.run(*words, timeout_s=300.0)

    def uninstall(self) -> str:
        """Uninstall it, wait until its pods are gone, and return what Helm said."""
        said = self.helm.run("uninstall", self.name, "--namespace", self.namespace, timeout_s=120.0)
        wait_for(
            "its pods are gone", lambda: self.operators() == [], deadline_s=60.0, every_s=0.5, describe=self.describe
        )
        return said

    def deployment(self) -> JsonObject:
        """Return the operator's Deployment."""
        found = self.cluster.get(_DEPLOYMENTS, self.namespace, f"{self.name}-operator")
        assert found is not None
        return found

    def operators(self) -> list[JsonObject]:
        """Return the operator's pods."""
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component=operator"
        items = self.cluster.kubectl("-n", self.namespace, "get", "pods", "-l", selector, "-o", "json").stdout
        found: list[JsonObject] = json.loads(items)["items"]
        return found

    def addresses(self) -> list[str]:
        """Return the addresses of the operator's pods."""
        return [pod["status"]["podIP"] for pod in self.operators()]

    def logs(self) -> str:
        """Return what the operator's pods have logged."""
        names = [pod["metadata"]["name"] for pod in self.operators()]
        return "".join(self.cluster.kubectl("-n", self.namespace, "logs", name, check=False).stdout for name in names)

    def describe(self) -> str:
        """Return what a person would look at."""
        parts = [("get", "all"), ("get", "events"), ("describe", "pods")]
        return (
            "\n".join(self.cluster.kubectl("-n", self.namespace, *part, check=False).stdout[-6000:] for part in parts)
            + self.logs()
        )

    def _options(self, values: Mapping[str, Any] | None) -> list[str]:
        ours = {"image": images(OPERATOR), "runtimeImage": images(RUNTIME), **(values or {})}
        return options(ours, self.values)


@dataclass(frozen=True)
class Job:
    """A job that runs for ten minutes, and costs little meanwhile."""

    cluster: ControlPlane
    namespace: str
    name: str = "long"

    def begin(self) -> None:
        """Create it, and wait until it runs."""
        self.cluster.api.create(f"/api/v1/namespaces/{self.namespace}/configmaps", kill_code(namespace=self.namespace))
        self.cluster.api.create(JOBS.format(self.namespace), kill_job(self.name, self.namespace, seconds=600.0))
        wait_for(
            "the job runs", lambda: self.phase() == "Running", deadline_s=120.0, every_s=0.5, describe=self.describe
        )

    def phase(self) -> str:
        """Return its phase; empty where there is no such job."""
        job = self.cluster.job(self.namespace, self.name) or {}
        return str(job.get("status", {}).get("phase", ""))

    def frames(self) -> int:
        """Return how many frames its status tells of."""
        job = self.cluster.job(self.namespace, self.name) or {}
        return int(job.get("status", {}).get("progress", {}).get("frames", 0))

    def reaches(self, address: str, port: int = DEFAULT_METRICS_PORT) -> bool:
        """Return whether its trainer's pod can connect to an address."""
        program = f"import socket; socket.create_connection(({address!r}, {port}), 3)"
        (name, _), *_ = self.pods()
        words = ["-n", self.namespace, "exec", name, "-c", "rljob", "--", "python", "-c", program]
        return self.cluster.kubectl(*words, check=False).returncode == 0

    def pods(self) -> list[tuple[str, str]]:
        """Return names and uids of its pods."""
        found = self.cluster.pods(self.namespace, f"rljob.io/job-name={self.name}")
        return [(pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in found]

    def wait_for_the_collector(self) -> None:
        """Wait until what a deleted job owned is deleted too. Each change of the definition ends Kubernetes' own watch
        of jobs, and what is deleted before there is another one goes by unseen.
        """
        path = JOBS.format(self.namespace)
        body = kill_job("unmanaged", self.namespace, managedBy="example.com/nobody")
        configmaps = f"/api/v1/namespaces/{self.namespace}/configmaps"

        def is_seen() -> bool:
            uid = self.cluster.api.create(path, body)["metadata"]["uid"]
            owner = {"apiVersion": body["apiVersion"], "kind": "RLJob", "name": "unmanaged", "uid": uid}
            owned = {"metadata": {"generateName": "owned-", "ownerReferences": [owner]}}
            name = self.cluster.api.create(configmaps, owned)["metadata"]["name"]
            # The collector looks whether there is such an owner; from then on only its deletion tells it anything.
            time.sleep(2.0)
            self.cluster.api.delete(f"{path}/unmanaged")
            ends = time.monotonic() + 3.0
            while self.cluster.get("/api/v1/configmaps", self.namespace, name) is not None:
                if time.monotonic() > ends:
                    return False
                time.sleep(0.2)
            return True

        wait_for("what a deleted job owned is deleted", is_seen, deadline_s=120.0, every_s=1.0)

    def describe(self) -> str:
        """Return what a person would look at."""
        parts = [("describe", "rlj"), ("get", "pods", "-o", "wide"), ("get", "events")]
        return "\n".join(
            self.cluster.kubectl("-n", self.namespace, *part, check=False).stdout[-6000:] for part in parts
        )


def rights(cluster: ControlPlane, kubeconfig: Path, namespace: str) -> dict[str, set[str]]:
    """Return what `kubectl auth can-i --list` says that a user may do in a namespace, verbs by resource.

    What every account may do, such as asking for its own rights, is left out.
    """
    nobody = cluster.service_account_kubeconfig("default", "nobody")
    everybody = _listed(cluster, nobody, namespace)
    found = _listed(cluster, kubeconfig, namespace)
    return {name: verbs for name, verbs in found.items() if everybody.get(name) != verbs}


def _listed(cluster: ControlPlane, kubeconfig: Path, namespace: str) -> dict[str, set[str]]:
    printed = cluster.kubectl("auth", "can-i", "--list", "-n", namespace, kubeconfig=kubeconfig).stdout
    found: dict[str, set[str]] = {}
    for line in printed.splitlines()[1:]:
        match = _RULE.match(line.strip())
        if match is not None:
            name = f"{match['resource']} {match['names']}".strip()
            found.setdefault(name, set()).update(match["verbs"].split())
    return found
