"""The security model on a real node: who reaches a job's ports, what its pods hold, and where its token is seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster_harness import products
from cluster_harness.cluster import wait_for
from operator_process import SYSTEM_NAMESPACE
from settlement import MONITORING, OTHER, OWN_PORT, PORT, SCRAPER_LABELS, TEAM, Settlement, settlement

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.programs(*products.NETWORK_POLICIES)]

TRAINER, HELPER = "one-trainer-0-0", "one-helper-0-0"
Pod = tuple[str, str]
Target = tuple[str, int]
TARGETS: list[Target] = [(TRAINER, PORT), (HELPER, PORT), (HELPER, OWN_PORT)]


@pytest.fixture(scope="module")
def place(node_programs: None) -> Iterator[Settlement]:
    """A node that enforces policies, the operator in a pod, and two jobs that run."""
    with settlement() as found:
        yield found


@pytest.fixture(scope="module")
def strangers(place: Settlement) -> dict[str, Pod]:
    """Pods that are to be kept out of the job `one`, by what they are."""
    uid = place.job("one")["metadata"]["uid"]
    forged = {"rljob.io/job-uid": uid, "rljob.io/job-name": "one", **SCRAPER_LABELS, **place.operator_labels}
    with ThreadPoolExecutor() as pool:
        started = {
            "in the job's namespace": pool.submit(place.start, TEAM, "stranger"),
            "elsewhere, with the labels of all who may": pool.submit(place.start, OTHER, "forger", forged),
            "in the scraper's namespace": pool.submit(place.start, MONITORING, "stranger"),
            "in the operator's namespace": pool.submit(place.start, SYSTEM_NAMESPACE, "stranger"),
        }
        found = {name: future.result() for name, future in started.items()}
    return {"of another job": (TEAM, "two-trainer-0-0"), **found}


def reached(place: Settlement, sources: dict[str, Pod]) -> dict[tuple[str, Target], bool]:
    """Return who reaches what."""
    with ThreadPoolExecutor(4) as pool:
        asked = {
            (name, target): pool.submit(place.reaches, source, target)
            for name, source in sources.items()
            for target in TARGETS
        }
        return {question: future.result() for question, future in asked.items()}


def test_only_the_job_its_operator_and_its_scraper_reach_a_jobs_ports(
    place: Settlement, strangers: dict[str, Pod]
) -> None:
    friends = {
        "trainer": (TEAM, TRAINER),
        "helper": (TEAM, HELPER),
        "operator": (SYSTEM_NAMESPACE, place.operator),
        "scraper": place.start(MONITORING, "prometheus-0", SCRAPER_LABELS),
    }
    seen = reached(place, {**strangers, **friends})
    assert [question for question, is_open in seen.items() if is_open] == [
        ("trainer", (TRAINER, PORT)),
        ("trainer", (HELPER, PORT)),
        ("trainer", (HELPER, OWN_PORT)),
        ("helper", (TRAINER, PORT)),
        ("helper", (HELPER, PORT)),
        ("helper", (HELPER, OWN_PORT)),
        ("operator", (TRAINER, PORT)),
        ("operator", (HELPER, PORT)),
        ("scraper", (TRAINER, PORT)),
        ("scraper", (HELPER, PORT)),
    ]


def test_the_operator_learns_of_progress_and_the_kubelet_of_readiness_through_the_policy(place: Settlement) -> None:
    def frames() -> int:
        return int(place.job("one")["status"].get("progress", {}).get("frames", 0))

    first = wait_for("there is progress", frames, deadline_s=60.0, describe=place.operator_log)
    wait_for("there is more of it", lambda: frames() > first, deadline_s=90.0, describe=place.operator_log)
    assert place.job("one")["status"]["ready"] == "2/2"


def test_without_its_policy_strangers_reach_the_job_and_with_it_again_they_do_not(
    place: Settlement, strangers: dict[str, Pod]
) -> None:
    uid = place.job("one")["metadata"]["uid"]
    path = f"/apis/networking.k8s.io/v1/namespaces/{TEAM}/networkpolicies"
    name = f"one-{uid[:8]}-network"
    policy = place.plane.api.get(f"{path}/{name}")
    place.plane.api.delete(f"{path}/{name}")
    try:
        stranger = strangers["in the job's namespace"]
        wait_for("the job is open", lambda: place.reaches(stranger, TARGETS[0]), deadline_s=30.0)
        closed = [question for question, is_open in reached(place, strangers).items() if not is_open]
    finally:
        place.plane.api.create(path, {key: policy[key] for key in ("spec",)} | {"metadata": {"name": name}})
    assert closed == []
    wait_for("the job is closed", lambda: not place.reaches(stranger, TARGETS[0]), deadline_s=30.0)


@pytest.mark.parametrize("pod", [TRAINER, HELPER])
def test_pods_of_a_job_hold_no_credentials_of_the_cluster(place: Settlement, pod: str) -> None:
    spec = place.pod(TEAM, pod)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert [volume for volume in spec["volumes"] if "projected" in volume] == []
    look = (
        "ls /var/run/secrets /run/secrets 2>/dev/null; grep -c serviceaccount /proc/self/mountinfo; "
        "env | grep -i -e token -e secret -e password; id -u; grep -h -e NoNewPrivs -e CapEff /proc/1/status"
    )
    assert place.run(TEAM, pod, look).split() == [
        "0",
        "10001",
        "CapEff:",
        "0000000000000000",
        "NoNewPrivs:",
        "1",
    ]


def test_without_credentials_the_api_server_tells_a_pod_nothing(place: Settlement) -> None:
    ask = (
        "import json, os, ssl, urllib.error, urllib.request as u\n"
        "base = 'https://' + os.environ['KUBERNETES_SERVICE_HOST']\n"
        "for path in ('/api/v1/pods', '/api/v1/namespaces/team-a/secrets', '/apis/rljob.io/v1alpha1/rljobs'):\n"
        "    try:\n"
        "        u.urlopen(base + path, context=ssl._create_unverified_context(), timeout=10)\n"
        "        print('open')\n"
        "    except urllib.error.HTTPError as error:\n"
        "        print(error.code)\n"
    )
    done = place.plane.kubectl("-n", TEAM, "exec", TRAINER, "--", "python", "-c", ask)
    assert set(done.stdout.split()) <= {"401", "403"}
    assert len(done.stdout.split()) == 3


def test_the_token_of_a_job_is_in_its_secret_and_in_its_pods_alone(place: Settlement) -> None:
    job = place.job("one")
    secret = place.plane.api.get(f"/api/v1/namespaces/{TEAM}/secrets/{job['status']['tokenSecret']}")
    encoded = secret["data"]["token"]
    token = place.run(TEAM, TRAINER, "cat /etc/rljob/token/token").strip()
    assert len(token) == 64
    assert place.run(TEAM, "two-trainer-0-0", "cat /etc/rljob/token/token").strip() != token
    with_it = [name for name, text in everything_that_is_said(place).items() if token in text or encoded in text]
    assert with_it == []


def everything_that_is_said(place: Settlement) -> dict[str, str]:
    """Return all texts that people and programs get to see of the cluster, but its Secrets."""
    kubectl = place.plane.kubectl
    kinds = "rljobs,pods,services,configmaps,events,networkpolicies,persistentvolumeclaims,deployments"
    found = {"objects": kubectl("get", kinds, "--all-namespaces", "-o", "yaml", "--show-managed-fields").stdout}
    for pod in ("one-trainer-0-0", "one-helper-0-0"):
        found[f"log of {pod}"] = kubectl("-n", TEAM, "logs", pod).stdout
        found[f"answers of {pod}"] = place.run(TEAM, pod, scrape(place.address(TEAM, pod)))
        found[f"variables of {pod}"] = place.run(TEAM, pod, "tr '\\0' '\\n' </proc/1/environ; cat /proc/1/cmdline")
    found["log of the operator"] = place.operator_log()
    found["metrics of the operator"] = place.run(
        SYSTEM_NAMESPACE, place.operator, scrape(place.address(SYSTEM_NAMESPACE, place.operator), 9401)
    )
    assert "rljob_operator_jobs" in found["metrics of the operator"]
    assert "rljob" in found["answers of one-trainer-0-0"]
    found["audit"] = json.dumps(place.plane.audit_events())
    for guard in (place.plane.guard, place.node.guard):
        for log in Path(guard.folder).glob("*.log"):
            found[log.name] = log.read_text(errors="replace")
    assert {"audit.log", "kubelet.log", "containerd.log", "kube-apiserver.log"} <= found.keys()
    return found


def scrape(address: str, port: int = PORT) -> str:
    """Return a shell script that prints all that a pod answers."""
    ask = (
        f"import urllib.request as u; [print(u.urlopen('http://{address}:{port}' + p).read().decode()) for p in PATHS]"
    )
    paths = ["/metrics", "/healthz", "/readyz", *(["/status"] if port == PORT else [])]
    return f'python -c "{ask.replace("PATHS", repr(paths))}"'
