"""What the chart makes for a Prometheus operator, held against that operator's own definitions."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from cluster_harness import products
from cluster_harness.api import ApiError
from cluster_harness.cluster import Cluster
from cluster_harness.definitions import monitoring_definitions
from cluster_harness.errors import Unavailable
from cluster_harness.fixtures import programs, skip_or_fail
from helm import CHART, Helm, KubeObject

pytestmark = pytest.mark.programs(*products.HELM)

PLURALS = {"ServiceMonitor": "servicemonitors", "PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"}


@pytest.fixture
def objects(cluster: Cluster, tmp_path: Path) -> list[KubeObject]:
    """The chart's objects of these kinds, all that can be switched on; their definitions are installed."""
    programs(products.HELM)
    definitions = tmp_path / "definitions"
    definitions.mkdir()
    try:
        found = monitoring_definitions(*PLURALS.values())
    except Unavailable as error:
        skip_or_fail(str(error))
    for file in found:
        shutil.copy(file, definitions)
    cluster.install_crds(definitions)
    relabelings = [{"sourceLabels": ["__name__"], "regex": "python_.*", "action": "drop"}]
    values = {
        f"metrics.{kind}": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "interval": "15s",
            "scrapeTimeout": "5s",
            "relabelings": [{"targetLabel": "cluster", "replacement": "one"}],
            "metricRelabelings": relabelings,
        }
        for kind in ("serviceMonitor", "podMonitor")
    }
    rendered = Helm(tmp_path).template(values, files=[CHART / "ci" / "monitoring-values.yaml"])
    return [item for item in rendered if item["kind"] in PLURALS]


def test_the_prometheus_operators_definitions_take_every_field_of_monitors_and_rules(
    cluster: Cluster, namespace: str, objects: list[KubeObject]
) -> None:
    assert sorted(item["kind"] for item in objects) == sorted(PLURALS)
    for item in objects:
        path = f"/apis/{item['apiVersion']}/namespaces/{namespace}/{PLURALS[item['kind']]}?fieldValidation=Strict"
        item["metadata"]["namespace"] = namespace
        assert without_the_default(cluster.api.create(path, item)["spec"]) == item["spec"]


def without_the_default(node: Any) -> Any:
    """Return a stored object without the action of relabelings that the definitions add where none is named."""
    if isinstance(node, list):
        return [without_the_default(item) for item in node]
    if isinstance(node, dict):
        kept = {key: value for key, value in node.items() if (key, value) != ("action", "replace")}
        return {key: without_the_default(value) for key, value in kept.items()}
    return node


def test_a_field_that_they_do_not_know_is_refused(cluster: Cluster, namespace: str, objects: list[KubeObject]) -> None:
    monitor = next(item for item in objects if item["kind"] == "PodMonitor")
    monitor["metadata"]["namespace"] = namespace
    monitor["spec"]["podMetricsEndpoints"][0]["intervall"] = "15s"
    path = f"/apis/{monitor['apiVersion']}/namespaces/{namespace}/podmonitors?fieldValidation=Strict"
    with pytest.raises(ApiError, match="intervall"):
        cluster.api.create(path, monitor)
