"""Fixtures that share one control plane among the tests of a process; `tests/conftest.py` names this as a plugin.

| fixture | what it is |
|---|---|
| `cluster` | etcd and kube-apiserver with our definitions applied; no controllers, no scheduler, no node |
| `running_cluster` | the same with controller manager, scheduler and simulated nodes, on which pods run at once |
| `namespace` | a new namespace of `cluster` for one test |
| `running_namespace` | a new namespace of `running_cluster` for one test |
| `real_nodes` | a control plane with two real nodes and volumes for claims; needs root |
| `real_namespace` | a new namespace of `real_nodes` for one test |
| `api_server_programs`, `controller_programs`, `node_programs` | what a test needs that starts a cluster of its own |

Programs that are found nowhere are built when the tests have been collected, so that no test's time limit covers it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from cluster_harness import binaries, products
from cluster_harness.cluster import Cluster
from cluster_harness.control_plane import ControlPlane, Settings
from cluster_harness.errors import Unavailable
from cluster_harness.machine import require_node_rights
from cluster_harness.node import Node
from cluster_harness.simulated import SimulatedNodes
from cluster_harness.volumes import offer_volumes

KUBECONFIG_VARIABLE = "RLJOB_TEST_KUBECONFIG"
"""Names the kubeconfig of a cluster for tests of the API server, which make namespaces and definitions in it."""
REQUIRED_VARIABLE = "RLJOB_E2E"
"""With the value ``required`` a test whose cluster this machine can't give fails; otherwise it is skipped."""
SIMULATED_NODES = 4

_CONTROLLERS = (*products.API_SERVER, *products.CONTROLLERS, *products.SIMULATED_NODES)
_NODE = (*products.API_SERVER, *products.CONTROLLERS, *products.NODE)
_PROGRAMS = {
    "cluster": products.API_SERVER,
    "api_server_programs": products.API_SERVER,
    "controller_programs": _CONTROLLERS,
    "node_programs": _NODE,
}


@dataclass(frozen=True)
class RealNodes:
    """A control plane whose pods run in containers, on one of two nodes."""

    plane: ControlPlane
    first: Node
    second: Node

    def node_of(self, namespace: str, pod: str) -> Node:
        """Return the node that a pod was bound to."""
        found = self.plane.get("/api/v1/pods", namespace, pod)
        assert found is not None
        return {node.name: node for node in (self.first, self.second)}[found["spec"]["nodeName"]]


def skip_or_fail(reason: str) -> NoReturn:
    """End a test for which this machine lacks something: skipped, unless ``RLJOB_E2E=required``."""
    if os.environ.get(REQUIRED_VARIABLE) == "required":
        pytest.fail(f"{reason} ({REQUIRED_VARIABLE}=required)", pytrace=False)
    pytest.skip(reason)


def programs(names: Iterable[str]) -> None:
    """Make sure that these programs are there; skip or fail the test that needs them otherwise."""
    try:
        binaries.find(names)
    except Unavailable as error:
        skip_or_fail(str(error))


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker that names programs a test needs beside those of its fixtures."""
    config.addinivalue_line("markers", "programs(*names): programs of a cluster, built before the first test starts")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the programs that the collected tests need, and show the progress."""
    if session.config.option.collectonly:
        return
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    marked = {program for item in session.items for mark in item.iter_markers("programs") for program in mark.args}
    possible = dict(_PROGRAMS)
    if KUBECONFIG_VARIABLE in os.environ:
        possible["cluster"] = ("kubectl",)
    try:
        require_node_rights()
    except Unavailable:
        del possible["node_programs"]  # tests of nodes will say so, and need no build
    wanted = marked.union(*(names for fixture, names in possible.items() if fixture in used))
    if not wanted:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")

    def report(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(line, file=sys.stderr, flush=True)

    try:
        binaries.find(sorted(wanted), report)
    except Unavailable as error:
        report(str(error))  # each test that needs them says so too


@pytest.fixture(scope="session")
def api_server_programs() -> None:
    """What an API server needs is there."""
    programs(products.API_SERVER)


@pytest.fixture(scope="session")
def controller_programs() -> None:
    """What a control plane with controllers, scheduler and simulated nodes needs is there."""
    programs(_CONTROLLERS)


@pytest.fixture(scope="session")
def node_programs() -> None:
    """What a control plane with real nodes needs is there, this machine's consent included."""
    try:
        require_node_rights()
    except Unavailable as error:
        skip_or_fail(str(error))
    programs(_NODE)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """An API server with our definitions: a ControlPlane, or the cluster that RLJOB_TEST_KUBECONFIG names."""
    named = os.environ.get(KUBECONFIG_VARIABLE)
    if named:
        with tempfile.TemporaryDirectory() as folder:
            kubectl = binaries.find(["kubectl"])["kubectl"]
            given = Cluster(Path(named).expanduser().resolve(), kubectl, Path(folder))
            given.install_crds()
            yield given
        return
    request.getfixturevalue("api_server_programs")
    with ControlPlane() as own:
        own.install_crds()
        yield own


@pytest.fixture(scope="session")
def control_plane(cluster: Cluster) -> ControlPlane:
    """`cluster`, for tests that restart it or read its audit log: skipped on a cluster that isn't ours."""
    if not isinstance(cluster, ControlPlane):
        pytest.skip(f"{KUBECONFIG_VARIABLE} names a cluster that isn't ours to restart")
    return cluster


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """Name of a new namespace of `cluster`."""
    name = cluster.create_namespace()
    yield name
    if not isinstance(cluster, ControlPlane):  # ours ends with all its namespaces
        cluster.delete_namespace(name)


@pytest.fixture(scope="session")
def running_cluster(controller_programs: None) -> Iterator[ControlPlane]:
    """A control plane with controllers, scheduler and simulated nodes, on which pods run at once."""
    with (
        ControlPlane(Settings(controller_manager=True, scheduler=True)) as own,
        SimulatedNodes(own, SIMULATED_NODES),
    ):
        own.install_crds()
        yield own


@pytest.fixture
def running_namespace(running_cluster: ControlPlane) -> str:
    """Name of a new namespace of `running_cluster`."""
    return running_cluster.create_namespace()


@pytest.fixture(scope="session")
def real_nodes(node_programs: None) -> Iterator[RealNodes]:
    """A control plane with two real nodes on this machine; their loss is noticed after ten seconds."""
    noticing = ["--node-monitor-grace-period=10s", "--node-monitor-period=1s"]
    settings = Settings(controller_manager=True, scheduler=True, controller_manager_arguments=noticing)
    with ControlPlane(settings) as plane, Node(plane, "node-a") as first, Node(plane, "node-b") as second:
        plane.install_crds()
        offer_volumes(plane, plane.guard.folder / "volumes", 64)
        yield RealNodes(plane, first, second)


@pytest.fixture
def real_namespace(real_nodes: RealNodes) -> Iterator[str]:
    """Name of a new namespace of `real_nodes`; its pods end with the test."""
    name = real_nodes.plane.create_namespace()
    yield name
    real_nodes.plane.delete_namespace(name)
