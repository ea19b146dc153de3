"""The chart on a real control plane and node: installed, upgraded while a job trains, rolled back, removed, and again.

The operator runs as a pod, by the account and the rights of the chart. The stage is a cluster of this file's own: it
takes away the definition of RLJob, which others need.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cluster_harness import products
from cluster_harness.api import ApiError
from cluster_harness.cluster import wait_for
from cluster_harness.control_plane import ControlPlane, Settings
from cluster_harness.errors import ClusterError
from cluster_harness.fixtures import programs
from cluster_harness.node import Node
from cluster_harness.policies import PolicyAgent
from helm import CHART, Helm, options
from releases import DEFINITION, Job, Release, rights

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.programs(*products.HELM, *products.NETWORK_POLICIES),
]

ABOUT_JOBS = {
    "rljobs.rljob.io": {"get", "list", "watch", "delete"},
    "rljobs.rljob.io/status": {"patch"},
    "pods": {"get", "list", "watch", "create", "delete"},
    "configmaps": {"get", "create"},
    "services": {"get", "create"},
    "persistentvolumeclaims": {"get", "create"},
    "secrets": {"create"},
    "events": {"create", "list"},
    "networkpolicies.networking.k8s.io": {"get", "create"},
}
ABOUT_THE_LEASE = {
    "leases.coordination.k8s.io": {"create"},
    "leases.coordination.k8s.io rljob-operator": {"get", "update"},
}
STRICT = {"pod-security.kubernetes.io/enforce": "restricted"}
LARGEST_SECRET = 1024 * 1024


@dataclass(frozen=True)
class Variant:
    """How the chart is installed."""

    values: tuple[Path, ...]
    jobs: str
    """Namespace of jobs."""
    smoke: str
    """Namespace of the job of `helm test`."""
    replicas: int
    has_policy: bool
    """Whether the operator has a network policy, which is then enforced."""
    is_aggregated: bool
    """Whether the cluster's roles `edit` and `view` hold those of the chart."""
    rights: dict[str, dict[str, set[str]]]
    """What the operator's account may do, by namespace; elsewhere nothing."""


VARIANTS = {
    "default": Variant(
        (),
        "team-b",
        "rljob-system",
        1,
        False,
        True,
        {"team-b": ABOUT_JOBS, "rljob-system": ABOUT_JOBS, "default": ABOUT_JOBS},
    ),
    "hardened": Variant(
        (CHART / "ci" / "hardened-values.yaml",),
        "team-a",
        "team-a",
        2,
        True,
        False,
        {"team-a": ABOUT_JOBS, "rljob-system": ABOUT_THE_LEASE, "default": {}},
    ),
}


@pytest.fixture
def ground(node_programs: None) -> Iterator[tuple[ControlPlane, Node]]:
    """A control plane with one real node, where no definition was ever deleted: once one was, Kubernetes' own collector
    opens its watch of jobs up to half a minute after each change of the definition, not at once.
    """
    programs([*products.HELM, *products.NETWORK_POLICIES])
    with ControlPlane(Settings(controller_manager=True, scheduler=True)) as plane, Node(plane) as node:
        yield plane, node


@pytest.fixture
def stage(ground: tuple[ControlPlane, Node]) -> ControlPlane:
    """The control plane."""
    return ground[0]


@pytest.fixture
def enforced(ground: tuple[ControlPlane, Node], variant: Variant) -> Iterator[None]:
    """The node enforces network policies, where the chart makes one for the operator."""
    if not variant.has_policy:
        yield
        return
    with PolicyAgent(ground[0], [ground[1]]):
        yield


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> Variant:
    """How the chart is installed."""
    return VARIANTS[request.param]


@pytest.fixture
def release(stage: ControlPlane, variant: Variant, tmp_path: Path) -> Iterator[Release]:
    """A release that isn't installed yet; its namespaces take no pod but restricted ones."""
    made = Release(stage, Helm(tmp_path, stage.kubeconfig), variant.values)
    for name in (made.namespace, variant.jobs):
        stage.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": STRICT}})
        stage.create_service_account(name, "default")
    yield made
    for name in (made.namespace, variant.jobs):
        stage.delete_namespace(name)
    wait_for(
        "the namespaces are gone",
        lambda: (
            not {made.namespace, variant.jobs}
            & {item["metadata"]["name"] for item in stage.api.get("/api/v1/namespaces")["items"]}
        ),
        deadline_s=90.0,
        every_s=0.5,
    )


@pytest.mark.usefixtures("enforced")
def test_a_release_from_its_first_day_to_its_last_while_a_job_trains(
    stage: ControlPlane, variant: Variant, release: Release
) -> None:
    job = Job(stage, variant.jobs)

    # An earlier version, and a job that trains under it.
    release.install_earlier()
    job.begin()
    pods = job.pods()
    assert [name for name, _ in pods] == ["long-trainer-0-0"]

    # The version of now.
    said = release.upgrade()
    assert f"helm test rljob --namespace {release.namespace} --logs" in said
    assert release.deployment()["spec"]["replicas"] == variant.replicas
    _see_that_it_acts(release, job, pods)
    log = release.test()
    assert f"RLJob {variant.smoke}/rljob-smoke: Succeeded" in log
    assert re.search(r"It trained 10\d\d frames", log)
    assert job.pods() == pods
    _see_rights(stage, release, variant)
    wait_for("the trainer was asked how far it is", job.frames, deadline_s=90.0, every_s=0.5, describe=release.describe)
    assert [job.reaches(address) for address in release.addresses()] == [not variant.has_policy] * variant.replicas
    assert _size_of_release(stage, release) < LARGEST_SECRET / 2

    # Back again.
    release.roll_back(1)
    _see_that_it_acts(release, job, pods)

    # Removed, with the definition kept: the job trains on, and another release takes over both, to the version of now.
    assert "rljobs.rljob.io" in release.uninstall()
    assert _has_definition(stage)
    assert job.pods() == pods
    successor = replace(release, name="rljob-two")
    with pytest.raises(ClusterError, match=r"rljobs\.rljob\.io.*(invalid ownership metadata|cannot be imported)"):
        successor.install()
    successor.install(CHART, None, "--take-ownership")
    _see_that_it_acts(successor, job, pods)

    # Removed with all jobs, as asked for and announced.
    said = successor.upgrade({"crds.keep": False})
    assert "deletes the definition of RLJob, and with it EVERY RLJob" in said
    assert job.pods() == pods
    job.wait_for_the_collector()
    successor.uninstall()
    wait_for("the definition is gone", lambda: not _has_definition(stage), deadline_s=60.0, every_s=0.5)
    wait_for("the job's pods are gone", lambda: job.pods() == [], deadline_s=120.0, every_s=0.5, describe=job.describe)
    assert _left(stage) == []


def _see_that_it_acts(release: Release, job: Job, pods: list[tuple[str, str]]) -> None:
    """See that the operator that is ready acts, and that the job's pods are those that there were."""
    job.cluster.api.patch(
        f"/apis/rljob.io/v1alpha1/namespaces/{job.namespace}/rljobs/{job.name}/status", {"status": {"ready": "?"}}
    )
    wait_for(
        "the operator writes the status",
        lambda: (job.cluster.job(job.namespace, job.name) or {})["status"].get("ready") == "1/1",
        deadline_s=60.0,
        every_s=0.5,
        describe=release.describe,
    )
    assert job.phase() == "Running", job.describe()
    assert job.pods() == pods
    restarts = [status["restartCount"] for pod in release.operators() for status in pod["status"]["containerStatuses"]]
    assert set(restarts) == {0}, release.describe()


def _see_rights(stage: ControlPlane, release: Release, variant: Variant) -> None:
    """See that the operator's account may do what is shipped and no more, and people what their roles say."""
    account = stage.service_account_kubeconfig(release.namespace, f"{release.name}-operator")
    for namespace, expected in variant.rights.items():
        assert rights(stage, account, namespace) == expected, namespace
    for role in ("edit", "view"):
        stage.kubectl("-n", variant.jobs, "create", "rolebinding", role, "--clusterrole", role, "--user", role)

    def may(user: str, verb: str) -> bool:
        words = ["auth", "can-i", verb, "rljobs.rljob.io", "-n", variant.jobs, "--as", user]
        return stage.kubectl(*words, check=False).stdout.strip() == "yes"

    if variant.is_aggregated:
        wait_for(
            "the cluster's own roles hold those of the chart", lambda: may("edit", "create") and may("view", "list")
        )
    assert [may("edit", "create"), may("view", "list"), may("view", "create")] == [*[variant.is_aggregated] * 2, False]
    roles = stage.kubectl("get", "roles", "-A", "-o", "name").stdout
    assert "rljob-smoke" not in roles  # the rights of `helm test` went with it


def _size_of_release(stage: ControlPlane, release: Release) -> int:
    items = stage.api.get(f"/api/v1/namespaces/{release.namespace}/secrets")["items"]
    return max(len(item["data"]["release"]) for item in items if item["type"] == "helm.sh/release.v1")


def _has_definition(stage: ControlPlane) -> bool:
    try:
        stage.api.get(DEFINITION)
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True


def _left(stage: ControlPlane) -> list[str]:
    """Return what bears the chart's label."""
    kinds = "deployments,services,pods,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"
    kinds += ",networkpolicies,poddisruptionbudgets,configmaps,leases"
    printed = stage.kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/part-of=rljob", "-o", "name").stdout
    return printed.split()


def test_a_definition_that_kubectl_applied_is_taken_over_on_request_and_left_when_it_is_given_up(
    stage: ControlPlane, tmp_path: Path
) -> None:
    stage.install_crds()
    helm = Helm(tmp_path, stage.kubeconfig)
    namespace = stage.create_namespace("adopted")

    def run(command: str, values: dict[str, Any], *flags: str) -> str:
        nowhere = {"nodeSelector": {"no": "node"}}  # what runs is another test's matter
        words: list[str | Path] = [
            command,
            "rljob",
            CHART,
            "--namespace",
            namespace,
            *options({**nowhere, **values}),
            *flags,
        ]
        return helm.run(*words)

    with pytest.raises(ClusterError, match="invalid ownership metadata"):
        run("install", {})
    with pytest.raises(ClusterError, match='no matches for kind "ServiceMonitor"'):
        run("install", {"metrics.serviceMonitor.enabled": True}, "--take-ownership")
    run("install", {}, "--take-ownership", "--force-conflicts")
    annotations = stage.api.get(DEFINITION)["metadata"]["annotations"]
    assert annotations["meta.helm.sh/release-namespace"] == namespace
    run("upgrade", {"crds.install": False})
    assert _has_definition(stage)
    helm.run("uninstall", "rljob", "--namespace", namespace)
    assert _has_definition(stage)
    stage.kubectl("delete", "crd", "rljobs.rljob.io")
