"""What `helm test` runs, against a real API server: it tells a job that succeeds from one that fails, or never ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_harness.cluster import wait_for
from helm import CHART
from operator_place import JOBS, Own, job_document

NAME, ACCOUNT = "rljob-smoke", "smoke"
_RULES = [
    {"apiGroups": ["rljob.io"], "resources": ["rljobs"], "verbs": ["create"]},
    {"apiGroups": ["rljob.io"], "resources": ["rljobs"], "resourceNames": [NAME], "verbs": ["get", "delete"]},
]


class Script:
    """The script as a process, with the rights that the chart gives it."""

    def __init__(self, own: Own, folder: Path) -> None:
        self._own, self._folder = own, folder
        cluster, namespace = own.cluster, own.namespace
        (folder / "token").write_text(cluster.service_account_token(namespace, ACCOUNT))
        (folder / "ca.crt").write_bytes(cluster.authority.certificate)
        place = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        cluster.api.create(f"{place}/roles", {"metadata": {"name": ACCOUNT}, "rules": _RULES})
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT}
        body = {"metadata": {"name": ACCOUNT}, "roleRef": role, "subjects": [subject]}
        cluster.api.create(f"{place}/rolebindings", body)
        self._process: subprocess.Popen[str] | None = None

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Start it."""
        variables = {
            "ACCOUNT_FOLDER": str(self._folder),
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self._own.cluster.port),
            "JOB_NAME": NAME,
            "JOB_NAMESPACE": self._own.namespace,
            "JOB_SPEC": json.dumps(job_document(NAME)["spec"]),
            "TIMEOUT_SECONDS": str(timeout_s),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", (CHART / "files" / "smoke.py").read_text()],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        """Wait until it has ended; return its exit code and what it printed."""
        assert self._process is not None
        printed, _ = self._process.communicate(timeout=90)
        return self._process.returncode, printed

    def stop(self) -> None:
        """End it, whatever it does."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate(timeout=30)

    def say(self, status: dict[str, Any]) -> None:
        """Wait for its job, and say of it what an operator would."""
        wait_for("the job is there", lambda: self._own.cluster.job(self._own.namespace, NAME), deadline_s=60.0)
        self._own.cluster.api.patch(f"{JOBS.format(self._own.namespace)}/{NAME}/status", {"status": status})


@pytest.fixture
def script(own: Own, tmp_path: Path) -> Iterator[Script]:
    """The script, not started yet."""
    made = Script(own, tmp_path)
    yield made
    made.stop()


def test_a_job_that_succeeds_is_taken_away_and_the_script_is_content(own: Own, script: Script) -> None:
    own.create(NAME)  # left by an earlier run
    before = (own.cluster.job(own.namespace, NAME) or {})["metadata"]["uid"]
    script.start()

    def is_new() -> bool:
        found = own.cluster.job(own.namespace, NAME)
        return found is not None and found["metadata"]["uid"] != before

    wait_for("there is a new job", is_new, deadline_s=60.0)
    script.say({"phase": "Succeeded", "reason": "Completed", "message": "all frames", "progress": {"frames": 1000}})
    code, printed = script.end()
    assert code == 0, printed
    assert f"RLJob {own.namespace}/{NAME}: Succeeded Completed: all frames\nIt trained 1000 frames.\n" in printed
    assert own.cluster.job(own.namespace, NAME) is None


def test_a_job_that_fails_is_left_to_be_looked_at_and_its_words_are_said(own: Own, script: Script) -> None:
    script.start()
    script.say({"phase": "Failed", "reason": "ConfigInvalid", "message": "no such image"})
    code, printed = script.end()
    assert code == 1
    assert f"RLJob {own.namespace}/{NAME}: Failed ConfigInvalid: no such image" in printed
    assert own.cluster.job(own.namespace, NAME) is not None


def test_a_job_that_nobody_acts_on_is_given_up_in_time(own: Own, script: Script) -> None:
    script.start(timeout_s=3.0)
    code, printed = script.end()
    assert code == 1
    assert "not seen by the operator yet" in printed
    assert "has not ended in 3.0 seconds" in printed
