"""Values that are refused, with words that say which and why; and the reference that is made from them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_harness import products
from helm import CHART, ROOT, Helm, one, options, read, tool

TOOL = tool("chart_values")


@pytest.mark.programs(*products.HELM)
@pytest.mark.parametrize(
    ("values", "place", "words"),
    [
        ({"replicas": 2}, "at ''", "additional properties 'replicas' not allowed"),
        ({"replicaCount": 3}, "/replicaCount", "maximum: got 3, want 2"),
        ({"replicaCount": "2"}, "/replicaCount", "got string, want integer"),
        ({"crds.kept": True}, "/crds", "additional properties 'kept' not allowed"),
        ({"watch.namespaces": "team-a"}, "/watch/namespaces", "got string, want array"),
        ({"watch.namespaces": ["Team_A"]}, "/watch/namespaces/0", "does not match pattern"),
        ({"image": "rljob-operator:1"}, "/image", "got string, want object"),
        ({"image.pullPolicy": "Sometimes"}, "/image/pullPolicy", "must be one of 'Always', 'IfNotPresent', 'Never'"),
        ({"image.digest": "sha256:1"}, "/image/digest", "does not match pattern"),
        ({"operator.logFormat": "xml"}, "/operator/logFormat", "must be one of 'json', 'text'"),
        ({"operator.workers": 0}, "/operator/workers", "minimum: got 0, want 1"),
        ({"operator.extraEnv": [{"value": "x"}]}, "/operator/extraEnv/0", "missing property 'name'"),
        ({"metrics.port": 80}, "/metrics/port", "minimum: got 80, want 1,024"),
        ({"metrics.podMonitor.interval": "often"}, "/metrics/podMonitor/interval", "does not match pattern"),
        ({"networkPolicies.scraper.podSelector": {"app": "p"}}, "/podSelector", "properties 'app' not allowed"),
        ({"networkPolicies.scraper.namespaceSelector.matchLabels": {}}, "/matchLabels", "minProperties: got 0, want 1"),
        ({"networkPolicies.scraper.podSelector.matchLabels": {"a": ""}}, "/matchLabels/a", "does not match pattern"),
        ({"networkPolicies.operator.apiServer.cidrs": ["all"]}, "/cidrs/0", "does not match pattern"),
        ({"leaderElection.leaseSeconds": 1}, "/leaderElection/leaseSeconds", "minimum: got 1, want 5"),
        ({"probes.liveness.httpGet": {}}, "/probes/liveness", "additional properties 'httpGet' not allowed"),
    ],
)
def test_a_value_that_can_not_be_is_refused_with_its_place(
    helm: Helm, values: dict[str, Any], place: str, words: str
) -> None:
    refusal = helm.refusal(values)
    assert place in refusal
    assert words in refusal


@pytest.mark.programs(*products.HELM)
@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"metrics.podMonitor.enabled": True},
            "networkPolicies.jobs.enabled keeps it out: set networkPolicies.scraper.namespaceSelector",
        ),
        (
            {"metrics.serviceMonitor.enabled": True, "networkPolicies.operator.enabled": True},
            "networkPolicies.operator.enabled keeps it out: set networkPolicies.scraper.namespaceSelector",
        ),
        (
            {"networkPolicies.scraper.podSelector": {"matchLabels": {"app": "p"}}},
            "podSelector needs networkPolicies.scraper.namespaceSelector",
        ),
        (
            {"metrics.serviceMonitor.enabled": True, "metrics.service.enabled": False},
            "metrics.serviceMonitor.enabled needs metrics.service.enabled",
        ),
        (
            {"smokeTest.namespace": "team-b", "watch.namespaces": ["team-a"]},
            "smokeTest.namespace team-b is none of watch.namespaces",
        ),
        (
            {"serviceAccount.create": False},
            "serviceAccount.create is false and serviceAccount.name is empty: name the operator's account",
        ),
        (
            {"serviceAccount.create": False, "rbac.create": False},
            "serviceAccount.create is false and serviceAccount.name is empty: name the operator's account",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused_with_a_way_out(
    helm: Helm, values: dict[str, Any], words: str
) -> None:
    assert words in helm.refusal(values)


@pytest.mark.programs(*products.HELM)
def test_names_that_no_service_and_no_job_can_have_are_refused_with_a_way_out(helm: Helm) -> None:
    words = "names would begin with 9-rljob, and a Service's and an RLJob's begin with a letter: set fullnameOverride"
    assert words in helm.run("template", "9", CHART, check=False)
    assert "/fullnameOverride" in helm.refusal({"fullnameOverride": "9abc"})
    named = helm.template({"fullnameOverride": "nine"}, release="9")
    assert {item["metadata"]["name"] for item in named if item["kind"] == "Service"} == {"nine-operator"}


def value_paths(values: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the dotted path of every value that the chart has."""
    for key, value in values.items():
        yield f"{path}{key}"
        if isinstance(value, dict):
            yield from value_paths(value, f"{path}{key}.")


def nulls(node: Any) -> bool:
    """Whether an object holds a null."""
    if isinstance(node, dict):
        return any(map(nulls, node.values()))
    return any(map(nulls, node)) if isinstance(node, list) else node is None


@pytest.mark.programs(*products.HELM)
def test_null_leaves_a_value_out_or_is_refused_with_its_place(helm: Helm) -> None:
    refused = []
    for path in value_paths(yaml.safe_load((CHART / "values.yaml").read_text())):
        printed = helm.run("template", "rljob", CHART, "--set", f"{path}=null", check=None)
        if "missing property" in printed:
            *parents, key = path.split(".")
            assert f"- at '{''.join(f'/{part}' for part in parents)}': missing property '{key}'" in printed
            refused.append(path)
        else:
            objects = [item for item in read(printed) if item["kind"] != "CustomResourceDefinition"]
            assert len(objects) > 5, printed
            assert not nulls(objects), path
    assert {"image", "replicaCount", "metrics.port", "serviceAccount.create"} <= set(refused)
    left_out = {
        "resources",
        "securityContext",
        "podSecurityContext",
        "probes.startup",
        "commonLabels",
        "smokeTest.spec",
    }
    assert not left_out & set(refused)


@pytest.mark.programs(*products.HELM)
def test_a_probe_or_a_context_that_is_null_is_gone_from_the_pod(helm: Helm) -> None:
    names = {
        "probes.startup": "startupProbe",
        "probes.liveness": "livenessProbe",
        "probes.readiness": "readinessProbe",
        "securityContext": "securityContext",
        "resources": "resources",
    }
    for path, name in names.items():
        pod = one(helm.template({path: None}), "Deployment")["spec"]["template"]["spec"]
        assert {*names.values()} - pod["containers"][0].keys() == {name}


class _NoRepetition(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, as YAML does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(set(keys)) == len(keys), f"twice: {sorted(keys)}"
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


@pytest.mark.programs(*products.HELM)
@pytest.mark.parametrize("values", [None, *sorted((CHART / "ci").glob("*-values.yaml"))], ids=str)
def test_no_label_of_a_user_stands_beside_the_charts_own(helm: Helm, values: Path | None) -> None:
    own = ("name", "instance", "version", "managed-by", "part-of", "component")
    labels = {**{f"app.kubernetes.io/{name}": "theirs" for name in own}, "helm.sh/chart": "theirs", "team": "theirs"}
    given = options({"commonLabels": labels, "podLabels": labels}, [] if values is None else [values])
    text = helm.run("template", "rljob", CHART, *given)
    for item in yaml.load_all(text, _NoRepetition):
        if item is not None and item["kind"] in ("Deployment", "Service"):
            found = item["metadata"]["labels"]
            assert (found["app.kubernetes.io/component"], found["app.kubernetes.io/name"]) == ("operator", "rljob")
            assert found["team"] == "theirs"


@pytest.mark.programs(*products.HELM)
def test_values_of_a_chart_around_this_one_are_taken(helm: Helm) -> None:
    assert helm.template({"global": {"anything": 1}})


def test_the_files_in_the_repository_are_the_generated_ones() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "chart_values.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_structure_of_ours_is_closed() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    open_ones = [name for name, node in schema["properties"].items() if _is_open(node)]
    assert schema["additionalProperties"] is False
    assert open_ones == ["global", "resources", "affinity", "podSecurityContext", "securityContext"]


def _is_open(node: dict[str, Any]) -> bool:
    return node.get("type") == "object" and node.get("additionalProperties") is None


VALUES = """\
# How many.
replicas: 1
# All of it.
image:
  # Where it is.
  name: x
  tag: ""
"""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "replicas": {"type": "integer", "minimum": 1, "maximum": 2},
        "image": {"type": "object", "properties": {"name": {"type": "string"}, "tag": {"type": "string"}}},
    },
}


def test_comments_become_rows_and_descriptions() -> None:
    values = TOOL.read_values(VALUES)
    assert TOOL.page(values, SCHEMA).splitlines()[-3:] == [
        "| `replicas` | integer, 1 to 2 | `1` | How many. |",
        "| **`image`** | | | All of it. |",
        '| `image.name` | string | `"x"` | Where it is. |',
    ]
    described = TOOL.with_descriptions(SCHEMA, values)
    assert described["properties"]["image"]["properties"]["name"] == {"description": "Where it is.", "type": "string"}


def test_a_value_without_a_comment_is_refused() -> None:
    with pytest.raises(TOOL.ChartError, match=r"values.yaml: more has no comment above it"):
        TOOL.read_values(f"{VALUES}more: 1\n")


def test_a_value_that_the_schema_lacks_is_refused() -> None:
    with pytest.raises(TOOL.ChartError, match=r"values.schema.json: more is missing"):
        TOOL.with_descriptions(SCHEMA, TOOL.read_values(f"{VALUES}# More.\nmore: 1\n"))


def test_a_value_that_only_the_schema_has_is_refused() -> None:
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "old": {"type": "string", "description": "It was."}}}
    with pytest.raises(TOOL.ChartError, match=r"values.schema.json: old is not in values.yaml"):
        TOOL.with_descriptions(schema, TOOL.read_values(VALUES))
