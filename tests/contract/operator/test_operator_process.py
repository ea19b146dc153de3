"""The operator as a process: how it starts, is killed, starts anew, and ends."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_harness import products
from cluster_harness.cluster import CRDS, wait_for
from cluster_harness.control_plane import ControlPlane
from cluster_harness.fixtures import programs
from operator_place import JOBS, Own, job_document
from operator_process import ACCOUNT, DEPLOY, SYSTEM_NAMESPACE, USER, OperatorProcess, account_for_all
from played_kubelet import end_pod, run_all, run_pod
from rljob_operator.handlers import operator
from rljob_operator.metrics import JOB_FAMILIES
from rljob_operator.planner.decide import decide
from rljob_operator.settings import Options, Timing


def run_to_its_end(kubeconfig: Path, *options: str) -> tuple[int, str]:
    """Run an operator that is expected to refuse; return its exit code and what it printed last."""
    program = Path(sys.executable).with_name("rljob-operator")
    arguments = ["run", "--kubeconfig", str(kubeconfig), "--metrics-port", "0", *options]
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.splitlines()[-1]


def test_plans_are_logged_and_nothing_is_written_in_a_dry_run(own: Own) -> None:
    own.create()
    with own.operator("--dry-run", "--log-format", "json") as process:
        wait_for("a plan is logged", lambda: "ppo-trainer-0-0" in process.log, describe=lambda: process.log)
        (entry,) = [json.loads(line) for line in process.log.splitlines() if "ppo-trainer-0-0" in line]
        plan = json.loads(entry["message"])
        assert (entry["job"], entry["namespace"]) == ("ppo", own.namespace)
        assert "Pod/ppo-trainer-0-0" in plan["creates"]
        assert plan["status"]["phase"] == "Pending"
        assert process.stop() == 0
    assert {item.split()[0] for item in own.requests()} == {"list"}
    assert own.pods() == []
    assert own.status() == {}


def test_an_operator_that_was_killed_goes_on_where_it_was(own: Own) -> None:
    own.create()
    with own.operator() as process:
        own.wait_pods("ppo-trainer-0-0")
        process.kill()
        run_pod(own.cluster, own.namespace, "ppo-trainer-0-0")
        process.start()
        own.wait_phase("Running")
        process.kill()
        end_pod(own.cluster, own.namespace, "ppo-trainer-0-0", exit_code=1)
        process.start()
        own.wait_pods("ppo-trainer-0-1")
        process.kill()
        process.start()
        run_pod(own.cluster, own.namespace, "ppo-trainer-0-1")
        own.wait_phase("Running")
    assert own.status()["restarts"]["faults"] == 1
    assert own.writes().count("create pods") == 2


def test_a_pod_that_vanished_while_no_operator_ran_is_a_disruption(own: Own) -> None:
    own.create()
    with own.operator() as process:
        run_all(own.cluster, own.namespace, 1)
        own.wait_phase("Running")
        process.kill()
        own.delete_pod("ppo-trainer-0-0")
        process.start()
        own.wait_pods("ppo-trainer-0-1")
    assert own.status()["restarts"]["disruptions"] == 1


def test_two_hundred_unchanged_jobs_cost_an_operator_that_starts_not_one_write(own: Own) -> None:
    names = [f"job-{number}" for number in range(200)]
    suspended: dict[str, Any] = {"runPolicy": {"suspend": True}}
    for name in names[10:]:
        own.cluster.api.create(JOBS.format(own.namespace), job_document(name, **suspended))
    for name in names[:10]:
        own.create(name)
    with own.operator() as process:
        run_all(own.cluster, own.namespace, 10)

        def settled() -> bool:
            jobs = own.cluster.api.get(JOBS.format(own.namespace))["items"]
            return {job.get("status", {}).get("phase") for job in jobs} == {"Running", "Suspended"}

        wait_for("all jobs are settled", settled, deadline_s=90.0)
        time.sleep(5.0)  # counts are written a moment later
        process.stop()
        before = len(own.writes())
        process.start()
        process.wait_ready()
        passes = "rljob_operator_reconcile_duration_seconds_count"
        wait_for("all jobs were looked at", lambda: process.metric(passes) >= 200, deadline_s=60.0)
        time.sleep(2.0)
    assert own.writes()[before:] == []


def test_jobs_are_acted_on_after_the_api_server_was_away(idle: ControlPlane, own: Own) -> None:
    own.create()
    with own.operator() as process:
        run_all(own.cluster, own.namespace, 1)
        own.wait_phase("Running")
        idle.restart_apiserver(down_s=2.0)
        own.create("later")
        wait_for("the later job has a pod", lambda: "later-trainer-0-0" in own.pods(), deadline_s=60.0)
        own.delete_pod("ppo-trainer-0-0")
        wait_for("the lost pod is replaced", lambda: "ppo-trainer-0-1" in own.pods(), deadline_s=60.0)
        assert process.get("/healthz")[0] == 200
        assert "Traceback" not in process.log


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_operator_soon_and_quietly(own: Own, number: signal.Signals, code: int) -> None:
    own.create()
    with own.operator() as process:
        own.wait_pods("ppo-trainer-0-0")
        began = time.monotonic()
        assert process.stop(number) == code
        assert time.monotonic() - began < 5.0
        assert "Traceback" not in process.log


def test_probes_and_metrics_tell_of_the_operator(own: Own) -> None:
    own.create()
    with own.operator() as process:
        own.wait_pods("ppo-trainer-0-0")
        assert process.get("/healthz") == (200, "ok\n")
        assert process.get("/readyz") == (200, "ok\n")
        code, text = process.get("/metrics")
        assert code == 200
        assert 'rljob_operator_jobs{phase="Pending"} 1.0' in text
        assert 'rljob_operator_watch_last_activity_timestamp_seconds{resource="pods"}' in text
        assert process.metric("rljob_operator_api_requests_total") > 0
        assert process.metric("rljob_operator_queue_depth") == 0
        named = {line.partition("{")[0] for line in text.splitlines() if '"ppo"' in line}
        assert named <= {family.name for family in JOB_FAMILIES}  # of single jobs there are gauges alone
        assert "rljob_job_phase" in named
        own.cluster.api.delete(f"{JOBS.format(own.namespace)}/ppo")
        wait_for("the job's series are gone", lambda: '"ppo"' not in process.get("/metrics")[1])


def test_a_cluster_without_our_definition_is_refused() -> None:
    programs(products.API_SERVER)
    with ControlPlane() as bare:
        code, words = run_to_its_end(bare.kubeconfig, "--all-namespaces")
        assert code == 78
        assert "doesn't know RLJob" in words
        assert "crds/" in words
        old = older_crd()
        bare.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", old)
        bare.wait_established()

        def refusal() -> str | None:
            code, words = run_to_its_end(bare.kubeconfig, "--all-namespaces")
            return words if code == 78 and "older" in words else None

        words = wait_for("the older definition is refused", refusal, deadline_s=30.0)
        assert "spec.runPolicy.nodeLostSeconds" in words


def test_an_operator_whose_definition_is_taken_away_ends() -> None:
    programs(products.API_SERVER)
    with ControlPlane() as bare:
        bare.install_crds()
        with OperatorProcess(account_for_all(bare), "--all-namespaces") as process:
            bare.kubectl("delete", "crd", "rljobs.rljob.io")
            code = wait_for("it has ended", lambda: process.process.returncode, deadline_s=60.0)
        assert code == 1


def older_crd() -> dict[str, Any]:
    """Return our definition as if `nodeLostSeconds` had not been there yet."""
    document: dict[str, Any] = copy.deepcopy(yaml.safe_load((CRDS / "rljob.io_rljobs.yaml").read_text()))
    (version,) = document["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["runPolicy"]["properties"]["nodeLostSeconds"]
    default = spec["properties"]["runPolicy"].get("default")
    if default:
        default.pop("nodeLostSeconds", None)
    return document


def test_an_account_without_rights_is_refused_with_what_it_lacks(idle: ControlPlane) -> None:
    namespace = idle.create_namespace()
    kubeconfig = idle.service_account_kubeconfig(namespace, "powerless")
    code, words = run_to_its_end(kubeconfig, "--namespace", namespace)
    assert code == 78
    assert "cannot list resource" in words
    assert "deploy/rbac.yaml" in words


def test_a_kubeconfig_that_is_not_there_is_refused(tmp_path: Path) -> None:
    code, words = run_to_its_end(tmp_path / "none", "--all-namespaces")
    assert code == 78
    assert "--kubeconfig" in words


def test_credentials_that_the_server_refuses_are_said(idle: ControlPlane) -> None:
    code, words = run_to_its_end(idle.token_kubeconfig("forged", "forged"), "--all-namespaces")
    assert code == 78
    assert "refuses the credentials" in words
    assert "forged" not in words.replace(str(idle.folder), "")


def test_an_api_server_that_does_not_answer_is_given_up_in_time(idle: ControlPlane, tmp_path: Path) -> None:
    kubeconfig = idle.write_kubeconfig("nowhere", {"token": "t"}, server="https://127.0.0.1:9")
    options = Options(kubeconfig=str(kubeconfig), metrics_port=0, metrics_host="127.0.0.1")
    with pytest.raises(operator.Unavailable, match=r"didn't answer within 2 s") as raised:
        asyncio.run(operator.run(options, decide, Timing(start_timeout_s=2.0)))
    assert raised.value.exit_code == 75


def test_the_account_can_not_do_more_than_it_needs(idle: ControlPlane, own: Own) -> None:
    def may(verb: str, what: str, *options: str) -> bool:
        words = ["auth", "can-i", verb, what, *options, "-n", own.namespace, "--as", USER]
        return idle.kubectl(*words, check=False).stdout.strip() == "yes"

    assert may("create", "secrets")
    forbidden = [
        *((verb, "secrets") for verb in ("get", "list", "watch", "patch", "update", "delete")),
        *((verb, "rljobs.rljob.io") for verb in ("create", "patch", "update")),
        *((verb, "pods") for verb in ("patch", "update")),
        *((verb, "services") for verb in ("patch", "update", "delete")),
        *((verb, "persistentvolumeclaims") for verb in ("patch", "update", "delete")),
        ("create", "pods", "--subresource=exec"),
    ]
    assert [item for item in forbidden if may(*item)] == []


def test_resyncs_of_unchanged_jobs_only_list(own: Own) -> None:
    own.create("kept", runPolicy={"suspend": True})
    own.create("run")
    options = Options(
        namespaces=(own.namespace,), kubeconfig=str(own.kubeconfig), metrics_port=0, metrics_host="127.0.0.1"
    )

    async def story() -> tuple[int, list[str]]:
        running = asyncio.create_task(operator.run(options, decide, Timing(resync_s=0.5)))

        async def until(condition: Callable[[], bool]) -> None:
            async with asyncio.timeout(30.0):
                while not condition():
                    await asyncio.sleep(0.1)

        def settled() -> bool:
            seen = [role["seen"] for role in own.status("run").get("roles", [])]
            return own.status("kept").get("phase") == "Suspended" and seen == ["0"]

        await until(settled)
        before = len(own.requests())
        await until(lambda: own.requests()[before:].count("list pods") >= 3)
        os.kill(os.getpid(), signal.SIGTERM)
        return await running, own.requests()[before:]

    code, requests = asyncio.run(story())
    assert code == 0
    assert set(requests) == {"list rljobs", "list pods"}


def test_the_shipped_deployment_is_taken_and_meets_the_strictest_pod_security(idle: ControlPlane) -> None:
    idle.apply(DEPLOY / "rbac.yaml", DEPLOY / "operator.yaml")
    deployment = idle.get("/apis/apps/v1/deployments", SYSTEM_NAMESPACE, "rljob-operator")
    assert deployment is not None
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    strict = idle.create_namespace("strict")
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    idle.api.patch(f"/api/v1/namespaces/{strict}", {"metadata": {"labels": labels}})
    idle.create_service_account(strict, ACCOUNT)
    pod = {"metadata": {"name": "operator"}, "spec": deployment["spec"]["template"]["spec"]}
    assert idle.api.create(f"/api/v1/namespaces/{strict}/pods?dryRun=All", pod)["spec"]["serviceAccountName"] == ACCOUNT
