"""The operator's process against a real API server. No node is there: a test plays the kubelet.

| fixture | what it is |
|---|---|
| `operated` | the operator on all of a control plane that records everything its account asks |
| `place` | a new namespace of `operated` |
| `idle` | such a control plane without an operator, for tests that start, kill and restrict their own |
| `own` | a new namespace of `idle`, and a kubeconfig of the operator's account with its rights in it |
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster_harness import products
from cluster_harness.control_plane import ControlPlane, Settings
from cluster_harness.fixtures import programs
from operator_place import Own, Place
from operator_process import USER, OperatorProcess, account_for_all, account_for_one

pytestmark = pytest.mark.programs(*products.API_SERVER)


def _control_plane() -> ControlPlane:
    programs(products.API_SERVER)
    return ControlPlane(Settings(audit_users=[USER]))


@pytest.fixture(scope="session")
def shared_operator() -> Iterator[tuple[ControlPlane, OperatorProcess]]:
    """A control plane, and an operator that acts on all of it."""
    with _control_plane() as cluster:
        cluster.install_crds()
        with OperatorProcess(account_for_all(cluster), "--all-namespaces", "--log-format", "json") as operator:
            yield cluster, operator


@pytest.fixture
def operated(shared_operator: tuple[ControlPlane, OperatorProcess]) -> Iterator[OperatorProcess]:
    """The operator of all namespaces, which no test may have made stumble."""
    operator = shared_operator[1]
    began = len(operator.log)
    yield operator
    assert "Traceback" not in operator.log[began:]


@pytest.fixture
def place(shared_operator: tuple[ControlPlane, OperatorProcess], operated: OperatorProcess) -> Place:
    """A new namespace that the operator acts on."""
    cluster = shared_operator[0]
    return Place(cluster, cluster.create_namespace())


@pytest.fixture(scope="session")
def idle() -> Iterator[ControlPlane]:
    """A control plane without an operator."""
    with _control_plane() as cluster:
        cluster.install_crds()
        yield cluster


@pytest.fixture
def own(idle: ControlPlane) -> Own:
    """A new namespace in which the operator's account has its rights, and nobody acts."""
    namespace = idle.create_namespace()
    return Own(idle, namespace, account_for_one(idle, namespace))
