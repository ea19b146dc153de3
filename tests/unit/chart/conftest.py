"""Helm, which renders the chart; no cluster is needed.

| fixture | what it is |
|---|---|
| `helm` | the program |
| `rendered` | what the chart becomes with its defaults |
"""

from __future__ import annotations

import pytest
from cluster_harness import products
from cluster_harness.fixtures import programs
from helm import Helm, KubeObject


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm, without any cluster."""
    programs(products.HELM)
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def rendered(helm: Helm) -> list[KubeObject]:
    """What the chart becomes with its defaults."""
    return helm.template()
