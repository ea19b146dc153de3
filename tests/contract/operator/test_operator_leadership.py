"""Two operators and one Lease on a real API server: one acts, and the other takes over when it can't any more.

Each speaks to the server through a proxy of its own, which tells what each has written.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from api_proxy import ApiProxy
from cluster_harness.cluster import wait_for
from operator_place import Own
from operator_process import ACCOUNT, SYSTEM_NAMESPACE, OperatorProcess
from played_kubelet import end_pod, run_pod

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"
_RBAC = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}"
SECONDS = 3


@dataclass
class Replica:
    """One of two operators."""

    process: OperatorProcess
    proxy: ApiProxy

    def writes(self) -> list[str]:
        """Return what it has written about jobs."""
        return [f"{item.method} {item.path}" for item in self.proxy.writes if "/leases" not in item.path]


@dataclass
class Pair:
    """Two operators with one Lease; the first was started first."""

    own: Own
    lease: str
    first: Replica
    second: Replica

    def holder(self) -> str:
        """Return who holds the Lease."""
        return str(self.own.cluster.api.get(f"{LEASES}/{self.lease}")["spec"]["holderIdentity"])

    def wait_successor(self, replica: Replica, *, deadline_s: float) -> None:
        """Wait until a replica acts."""
        wait_for(
            "the other one acts",
            lambda: "watching " in replica.process.log,
            deadline_s=deadline_s,
            describe=lambda: replica.process.log[-2000:],
        )


@pytest.fixture
def pair(own: Own, tmp_path: Path) -> Iterator[Pair]:
    """Two operators for one namespace, the second of which stands by."""
    lease = own.namespace
    allow_leases(own, lease)
    options = ["--namespace", own.namespace, "--lease", f"{SYSTEM_NAMESPACE}/{lease}", "--lease-seconds", f"{SECONDS}"]
    with contextlib.ExitStack() as stack:
        replicas = []
        for number in (1, 2):
            proxy = stack.enter_context(ApiProxy(own.kubeconfig))
            kubeconfig = proxy.kubeconfig(tmp_path / f"{number}.kubeconfig")
            replicas.append(Replica(stack.enter_context(OperatorProcess(kubeconfig, *options)), proxy))
        made = Pair(own, lease, *replicas)
        made.wait_successor(made.first, deadline_s=10.0)
        yield made


def allow_leases(own: Own, name: str) -> None:
    """Give the operator's account the rights on a Lease that the chart gives it."""
    about = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}]
    rules = [
        {**about[0], "verbs": ["create"]},
        {**about[0], "verbs": ["get", "update"], "resourceNames": [name]},
    ]
    own.cluster.api.create(f"{_RBAC}/roles", {"metadata": {"name": name}, "rules": rules})
    body = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": SYSTEM_NAMESPACE}],
    }
    own.cluster.api.create(f"{_RBAC}/rolebindings", body)


def test_the_second_stands_by_and_takes_over_the_job_when_the_first_is_killed(pair: Pair) -> None:
    own, first, second = pair.own, pair.first, pair.second
    own.create()
    own.wait_pods("ppo-trainer-0-0")
    run_pod(own.cluster, own.namespace, "ppo-trainer-0-0")
    own.wait_phase("Running")
    assert second.process.get("/readyz") == (200, "ok\n")
    assert second.process.get("/healthz") == (200, "ok\n")
    assert "rljob_operator_leader 0.0" in second.process.get("/metrics")[1]
    assert "rljob_operator_watch_last_activity_timestamp_seconds{" not in second.process.get("/metrics")[1]
    assert "rljob_operator_leader 1.0" in first.process.get("/metrics")[1]
    assert second.proxy.open_watches == 0
    before = pair.holder()
    first.process.kill()
    pair.wait_successor(second, deadline_s=20.0)
    assert pair.holder() != before
    end_pod(own.cluster, own.namespace, "ppo-trainer-0-0", exit_code=1)
    own.wait_pods("ppo-trainer-0-1")
    assert own.status()["restarts"]["faults"] == 1
    assert second.process.get("/healthz") == (200, "ok\n")
    assert own.writes().count("create pods") == 2  # one each, no work done twice
    assert [item for item in first.writes() if item.startswith("POST") and item.endswith("/pods")] == [
        f"POST /api/v1/namespaces/{own.namespace}/pods"
    ]


def test_one_that_is_asked_to_end_gives_the_lease_back(pair: Pair) -> None:
    assert pair.first.process.stop() == 0
    assert "is given back" in pair.first.process.log
    pair.wait_successor(pair.second, deadline_s=20.0)
    pair.own.create()
    pair.own.wait_pods("ppo-trainer-0-0")
    assert pair.first.writes() == []


def test_one_that_stood_still_writes_nothing_more_and_ends(pair: Pair) -> None:
    own, first, second = pair.own, pair.first, pair.second
    own.create()
    own.wait_pods("ppo-trainer-0-0")
    first.process.process.send(signal.SIGSTOP)
    pair.wait_successor(second, deadline_s=20.0)
    run_pod(own.cluster, own.namespace, "ppo-trainer-0-0")
    own.wait_phase("Running")
    end_pod(own.cluster, own.namespace, "ppo-trainer-0-0", exit_code=1)
    own.wait_pods("ppo-trainer-0-1")
    written = len(first.writes())
    first.process.process.send(signal.SIGCONT)
    code = wait_for("it has ended", lambda: first.process.process.returncode, deadline_s=20.0)
    assert code == 1
    assert first.writes()[written:] == []
    assert own.pods() == ["ppo-trainer-0-1"]
    assert own.status()["restarts"]["faults"] == 1


def test_an_account_without_rights_on_leases_is_refused(own: Own) -> None:
    program = Path(sys.executable).with_name("rljob-operator")
    arguments = ["run", "--kubeconfig", str(own.kubeconfig), "--metrics-port", "0", "--namespace", own.namespace]
    done = subprocess.run(
        [program, *arguments, "--lease", f"{SYSTEM_NAMESPACE}/forbidden"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 78
    assert 'cannot get resource "leases"' in done.stderr
