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

from rlruntime import __version__

TOOL = tool("chart_values")
EVERYTHING: dict[str, Any] = {
    "replicaCount": 2,
    "watch": {"namespaces": ["team-a"]},
    "networkPolicies": {
        "operator": {"enabled": True},
        "scraper": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    },
    "metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
}
"""All that can be made is made."""


@pytest.mark.programs(*products.HELM)
def test_everything_makes_an_object_of_each_template(helm: Helm, tmp_path: Path) -> None:
    text = helm.run("template", "rljob", CHART, "--values", written(tmp_path, EVERYTHING))
    made = {line.removeprefix("# Source: rljob/") for line in text.splitlines() if line.startswith("# Source: ")}
    assert made == {str(path.relative_to(CHART)) for path in (CHART / "templates").rglob("*.yaml")}


def written(folder: Path, values: dict[str, Any]) -> Path:
    """Return a file of values."""
    file = folder / "given.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


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
        (
            {"serviceAccount": {"create": False, "name": None}},
            "serviceAccount.create is false and serviceAccount.name is empty: name the operator's account",
        ),
        (
            {"dashboards": {"enabled": True, "label": "app.kubernetes.io/name"}},
            "dashboards.label app.kubernetes.io/name is a label that the chart sets itself: give the key that",
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


@pytest.mark.programs(*products.HELM)
def test_a_release_with_a_dot_in_its_name_is_refused_with_a_way_out(helm: Helm) -> None:
    words = "names would begin with a.rljob, and a Service's and an RLJob's hold no dot: set fullnameOverride"
    assert words in helm.run("template", "a.rljob", CHART, check=False)
    named = helm.template({"fullnameOverride": "a-rljob"}, release="a.rljob")
    assert one(named, "Service")["metadata"]["name"] == "a-rljob-operator"


@pytest.mark.programs(*products.HELM)
def test_an_account_that_is_named_default_is_taken(helm: Helm) -> None:
    objects = helm.template({"serviceAccount": {"create": False, "name": "default"}})
    assert one(objects, "ClusterRoleBinding")["subjects"] == [
        {"kind": "ServiceAccount", "name": "default", "namespace": "rljob-system"}
    ]


@pytest.mark.programs(*products.HELM)
@pytest.mark.parametrize(("fullname", "rule"), [("r" * 44 + "--rr", "r" * 44), ("r" * 38 + "--r", "r" * 38 + "--r")])
def test_names_that_are_cut_at_dashes_end_with_a_letter(helm: Helm, fullname: str, rule: str) -> None:
    objects = helm.template({"fullnameOverride": fullname, "prometheusRule.enabled": True})
    assert one(objects, "PrometheusRule")["metadata"]["name"] == rule
    variables = one(objects, "Pod")["spec"]["containers"][0]["env"]
    job = next(item["value"] for item in variables if item["name"] == "JOB_NAME")
    assert job == rule.rstrip("-")[:40].rstrip("-")


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
@pytest.mark.parametrize("given", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_null_leaves_a_value_out_or_is_refused_with_its_place(
    helm: Helm, tmp_path: Path, given: dict[str, Any]
) -> None:
    refused = []
    file = written(tmp_path, given)
    closed_to = "keeps it out: set networkPolicies.scraper.namespaceSelector to the labels of its namespace"
    for path in value_paths(yaml.safe_load((CHART / "values.yaml").read_text())):
        printed = helm.run("template", "rljob", CHART, "--values", file, "--set", f"{path}=null", check=None)
        if "missing property" in printed:
            *parents, key = path.split(".")
            assert f"- at '{''.join(f'/{part}' for part in parents)}': missing property '{key}'" in printed
            refused.append(path)
        elif given and path == "networkPolicies.scraper.namespaceSelector":
            assert closed_to in printed
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
        "metrics.serviceMonitor.labels",
        "metrics.podMonitor.labels",
        "prometheusRule.labels",
        "dashboards.annotations",
        "networkPolicies.scraper.podSelector",
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


OPEN = {
    "commonLabels": {"kept": "a", "gone": None},
    "podLabels": {"kept": "a", "gone": None},
    "podAnnotations": {"kept": "a", "gone": None},
    "nodeSelector": {"kept": "a", "gone": None},
    "serviceAccount": {"annotations": {"kept": "a", "gone": None}},
    "resources": {"limits": {"cpu": None}, "claims": None},
    "podSecurityContext": {"supplementalGroups": None, "seccompProfile": {"localhostProfile": None}},
    "securityContext": {"privileged": None, "capabilities": {"add": None}},
    "probes": {name: {"initialDelaySeconds": None} for name in ("startup", "liveness", "readiness")},
    "affinity": {"nodeAffinity": {"kept": [{"weight": 1, "gone": None}]}, "podAffinity": None},
    "tolerations": [{"key": "a", "tolerationSeconds": None}],
    "topologySpreadConstraints": [{"maxSkew": 1, "minDomains": None}],
    "extraVolumes": [{"name": "a", "emptyDir": {"sizeLimit": None}}],
    "extraVolumeMounts": [{"name": "a", "mountPath": "/a", "subPath": None}],
    "operator": {"extraEnv": [{"name": "A", "valueFrom": None}]},
    "metrics": {
        "service": {"annotations": {"kept": "a", "gone": None}},
        "serviceMonitor": {"labels": {"kept": "a", "gone": None}, "relabelings": [{"action": "keep", "regex": None}]},
        "podMonitor": {"labels": {"kept": "a", "gone": None}, "metricRelabelings": [{"action": "keep", "regex": None}]},
    },
    "prometheusRule": {"labels": {"kept": "a", "gone": None}},
    "dashboards": {"annotations": {"kept": "a", "gone": None}},
    "smokeTest": {"spec": {"image": None, "runPolicy": {"ttlSecondsAfterFinished": None, "backoffLimit": 2}}},
}


@pytest.mark.programs(*products.HELM)
def test_a_null_within_a_value_leaves_its_key_out(helm: Helm, tmp_path: Path) -> None:
    everything = tmp_path / "everything.yaml"
    everything.write_text(yaml.safe_dump(EVERYTHING))
    objects = helm.template(files=[everything, written(tmp_path, OPEN)])
    for item in objects:
        assert item["kind"] == "CustomResourceDefinition" or not nulls(item), item["kind"]
        labels = item["metadata"]["labels"]
        assert (labels["kept"], "gone" in labels) == ("a", False)
    spec = one(objects, "Deployment")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["nodeSelector"] == {"kept": "a"}
    assert spec["affinity"] == {"nodeAffinity": {"kept": [{"weight": 1}]}}
    assert spec["tolerations"] == [{"key": "a"}]
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
    assert container["startupProbe"] == {
        "httpGet": {"path": "/healthz", "port": "metrics"},
        "periodSeconds": 2,
        "failureThreshold": 30,
    }
    variables = {item["name"]: item["value"] for item in one(objects, "Pod")["spec"]["containers"][0]["env"]}
    job = json.loads(variables["JOB_SPEC"])
    assert "image" not in job
    assert job["runPolicy"] == {"backoffLimit": 2, "cleanPodPolicy": "None"}


@pytest.mark.programs(*products.HELM)
def test_a_probe_whose_times_are_all_null_keeps_those_of_the_kubelet(helm: Helm) -> None:
    objects = helm.template({"probes.startup": {"periodSeconds": None, "failureThreshold": None}})
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["startupProbe"] == {"httpGet": {"path": "/healthz", "port": "metrics"}}


class _NoRepetition(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, as YAML does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(set(keys)) == len(keys), f"twice: {sorted(keys)}"
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


OWN = {
    "app.kubernetes.io/name": "rljob",
    "app.kubernetes.io/instance": "rljob",
    "app.kubernetes.io/version": __version__,
    "app.kubernetes.io/managed-by": "Helm",
    "app.kubernetes.io/part-of": "rljob",
    "helm.sh/chart": f"rljob-{__version__}",
}
OF_SOME = {
    "Deployment rljob-operator": {"app.kubernetes.io/component": "operator"},
    "Service rljob-operator": {"app.kubernetes.io/component": "operator"},
    "Pod rljob-smoke": {"app.kubernetes.io/component": "smoke-test"},
    "ClusterRole rljob-editor": {
        "rbac.authorization.k8s.io/aggregate-to-edit": "true",
        "rbac.authorization.k8s.io/aggregate-to-admin": "true",
    },
    "ClusterRole rljob-viewer": {"rbac.authorization.k8s.io/aggregate-to-view": "true"},
    "ConfigMap rljob-dashboard-rljob-job": {"grafana_dashboard": "1"},
    "ConfigMap rljob-dashboard-rljob-operator": {"grafana_dashboard": "1"},
    "ConfigMap rljob-dashboard-rljob-overview": {"grafana_dashboard": "1"},
}


@pytest.mark.programs(*products.HELM)
@pytest.mark.parametrize(
    "values",
    [{}, EVERYTHING, *(yaml.safe_load(path.read_text()) for path in sorted((CHART / "ci").glob("*-values.yaml")))],
    ids=["defaults", "everything", *(path.name for path in sorted((CHART / "ci").glob("*-values.yaml")))],
)
def test_no_label_of_a_user_stands_beside_the_charts_own(helm: Helm, tmp_path: Path, values: dict[str, Any]) -> None:
    keys = {*OWN, *(key for labels in OF_SOME.values() for key in labels), "team"}
    labels = dict.fromkeys(sorted(keys), "theirs")
    given = ["--values", str(written(tmp_path, values)), *options({"commonLabels": labels, "podLabels": labels})]
    for path in ("metrics.serviceMonitor", "metrics.podMonitor", "prometheusRule"):
        given += options({f"{path}.labels": {**labels, "release": "prometheus"}})
    text = helm.run("template", "rljob", CHART, "--namespace", "rljob-system", *given)
    objects = [item for item in yaml.load_all(text, _NoRepetition) if item is not None]
    assert len(objects) > 10
    for item in objects:
        found, name = item["metadata"]["labels"], f"{item['kind']} {item['metadata']['name']}"
        own = {**OWN, **OF_SOME.get(name, {})}
        if values.get("rbac", {}).get("userRoles", {}).get("aggregate") is False and item["kind"] == "ClusterRole":
            own = OWN
        assert {key: found[key] for key in own} == own, name
        assert {found[key] for key in keys - own.keys()} == {"theirs"}, name
        assert (found.get("release") == "prometheus") is (item["kind"] in MONITORING), name
    pod = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selector = one(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    assert {key: pod[key] for key in selector} == selector
    assert pod["team"] == "theirs"


MONITORING = ("ServiceMonitor", "PodMonitor", "PrometheusRule")


@pytest.mark.programs(*products.HELM)
def test_a_label_of_one_object_goes_before_the_same_label_of_all(helm: Helm, tmp_path: Path) -> None:
    label = {"labels": {"release": "prometheus"}}
    given = {"commonLabels": {"release": "all"}, "metrics": {"serviceMonitor": label, "podMonitor": label}}
    everything = tmp_path / "everything.yaml"
    everything.write_text(yaml.safe_dump(EVERYTHING))
    objects = helm.template(files=[everything, written(tmp_path, {**given, "prometheusRule": label})])
    for item in objects:
        wanted = "prometheus" if item["kind"] in MONITORING else "all"
        assert item["metadata"]["labels"]["release"] == wanted


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
