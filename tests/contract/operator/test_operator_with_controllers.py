"""The operator beside Kubernetes' own controllers and a scheduler; the nodes are simulated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster_harness.cluster import wait_for
from cluster_harness.control_plane import ControlPlane
from operator_place import Place
from operator_process import OperatorProcess, account_for_all


@pytest.fixture(scope="module")
def operated_cluster(running_cluster: ControlPlane) -> Iterator[ControlPlane]:
    """A cluster on which pods run at once, with an operator."""
    with OperatorProcess(account_for_all(running_cluster), "--all-namespaces"):
        yield running_cluster


@pytest.fixture
def place(operated_cluster: ControlPlane, running_namespace: str) -> Place:
    """A new namespace of it."""
    return Place(operated_cluster, running_namespace)


def children(place: Place) -> list[str]:
    """Return what there is of jobs' objects, by kind."""
    kinds = ("pods", "services", "configmaps", "secrets", "persistentvolumeclaims")
    base = f"/api/v1/namespaces/{place.namespace}"
    selector = "labelSelector=app.kubernetes.io%2Fmanaged-by%3Drljob-operator"
    return [kind for kind in kinds for _ in place.cluster.api.get(f"{base}/{kind}?{selector}")["items"]]


def test_all_that_was_made_for_a_job_goes_with_it(place: Place) -> None:
    place.create(roles=[{"name": "trainer", "type": "Trainer", "replicas": 4}])
    place.wait_phase("Running", deadline_s=60.0)
    assert children(place) == ["pods"] * 4 + ["services", "configmaps", "secrets"]
    place.cluster.kubectl("delete", "rlj/ppo", "-n", place.namespace)
    wait_for("everything is gone", lambda: children(place) == [], deadline_s=60.0, describe=lambda: children(place))


@pytest.mark.parametrize(("policy", "left"), [("Retain", ["persistentvolumeclaims"]), ("Delete", [])])
def test_a_claim_is_kept_or_goes_as_the_manifest_says(place: Place, policy: str, left: list[str]) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    place.create(storage={"volumeClaimTemplate": {"spec": claim}, "retentionPolicy": policy})
    said = place.wait_condition("PodsReady", "Unschedulable", deadline_s=60.0)
    assert "unbound" in said["message"]  # the cluster has no storage class
    place.cluster.kubectl("delete", "rlj/ppo", "-n", place.namespace)
    wait_for("the rest is gone", lambda: children(place) == left, deadline_s=60.0, describe=lambda: children(place))


def test_an_evicted_pod_is_replaced_and_charged_as_a_disruption(place: Place) -> None:
    place.create()
    place.wait_phase("Running", deadline_s=60.0)
    place.cluster.evict(place.namespace, "ppo-trainer-0-0")
    wait_for("it is replaced", lambda: "ppo-trainer-0-1" in place.pods(), deadline_s=60.0, describe=place.status)
    place.wait_phase("Running", deadline_s=60.0)
    restarts = place.status()["restarts"]
    assert (restarts["faults"], restarts["disruptions"]) == (0, 1)
