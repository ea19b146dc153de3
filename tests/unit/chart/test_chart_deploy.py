"""deploy/, for clusters without Helm, is what the chart becomes."""

from __future__ import annotations

import pytest
import yaml
from cluster_harness import products
from helm import ROOT, Helm, named, one, tool

DEPLOY = ROOT / "deploy"

pytestmark = pytest.mark.programs(*products.HELM)


def test_the_files_in_the_repository_are_the_generated_ones(helm: Helm) -> None:
    files = tool("render_deploy").rendered(lambda arguments: helm.run(*arguments))
    assert files == {path.name: path.read_text() for path in DEPLOY.glob("*.yaml")}


def test_the_plain_manifests_make_what_the_chart_makes_with_its_defaults(helm: Helm) -> None:
    objects = [
        item for name in ("rbac", "operator") for item in yaml.safe_load_all((DEPLOY / f"{name}.yaml").read_text())
    ]
    assert named(objects) == [
        "ClusterRole rljob-operator",
        "ClusterRoleBinding rljob-operator",
        "Deployment rljob-operator",
        "Namespace rljob-system",
        "ServiceAccount rljob-operator",
    ]
    ours, charts = (one(found, "Deployment")["spec"] for found in (objects, helm.template()))
    for spec in (ours, charts):
        spec["template"]["metadata"].pop("labels")
    assert ours == charts


def test_rights_for_one_namespace_name_none(helm: Helm) -> None:
    objects = list(yaml.safe_load_all((DEPLOY / "rbac-namespaced.yaml").read_text()))
    assert [item["metadata"].get("namespace") for item in objects] == [None, None]
    everywhere = yaml.safe_load_all((DEPLOY / "rbac.yaml").read_text())
    assert one(objects, "Role")["rules"] == one(list(everywhere), "ClusterRole")["rules"]
