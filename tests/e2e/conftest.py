"""Jobs on real nodes: kubelet, containerd, pods that train. As root; the nodes are `real_nodes` of the harness.

| fixture | what it is |
|---|---|
| `operated` | the operator on all namespaces, by the account and the rights that are shipped |
| `scene` | a new namespace, with the code of the job that is killed |
| `expected` | the records that this job must leave, however often it was killed |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster_harness.fixtures import RealNodes
from cluster_harness.images import RUNTIME
from kill_job import undisturbed_records
from operator_process import OperatorProcess, account_for_all
from scene import Scene


@pytest.fixture(scope="session")
def shared_operator(real_nodes: RealNodes) -> Iterator[OperatorProcess]:
    """The operator on all namespaces."""
    account = account_for_all(real_nodes.plane)
    with OperatorProcess(account, "--all-namespaces", "--log-format", "json", "--image", RUNTIME) as operator:
        yield operator


@pytest.fixture
def operated(shared_operator: OperatorProcess) -> OperatorProcess:
    """The operator, ready."""
    shared_operator.wait_ready()
    return shared_operator


@pytest.fixture
def scene(real_nodes: RealNodes) -> Scene:
    """A new namespace with the code of the job that is killed."""
    return Scene.make(real_nodes.plane)


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the job that is killed leaves when nobody kills it."""
    return undisturbed_records(tmp_path_factory.mktemp("undisturbed"))
