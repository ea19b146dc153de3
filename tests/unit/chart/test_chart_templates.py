"""What the chart becomes, value by value."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_harness import products
from helm import CHART, ROOT, Helm, KubeObject, named, one

from rlruntime import __version__
from rlruntime.spec.loader import load_documents

pytestmark = pytest.mark.programs(*products.HELM)

DEFAULT = [
    "ClusterRole rljob-editor",
    "ClusterRole rljob-operator",
    "ClusterRole rljob-viewer",
    "ClusterRoleBinding rljob-operator",
    "CustomResourceDefinition rljobs.rljob.io",
    "Deployment rljob-operator",
    "Pod rljob-smoke",
    "Role rljob-smoke",
    "RoleBinding rljob-smoke",
    "Service rljob-operator",
    "ServiceAccount rljob-operator",
    "ServiceAccount rljob-smoke",
]
RULES = {
    "rljob.io/rljobs": ["get", "list", "watch", "delete"],
    "rljob.io/rljobs/status": ["patch"],
    "/pods": ["get", "list", "watch", "create", "delete"],
    "/configmaps": ["get", "create"],
    "/services": ["get", "create"],
    "/persistentvolumeclaims": ["get", "create"],
    "/secrets": ["create"],
    "/events": ["create", "list"],
    "networking.k8s.io/networkpolicies": ["get", "create"],
}
SCRAPER = {"networkPolicies.scraper.namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))


def rules(role: KubeObject) -> dict[str, list[str]]:
    """Return the verbs of each resource."""
    return {
        f"{group}/{resource}": rule["verbs"]
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def operator_pod(objects: list[KubeObject]) -> dict[str, Any]:
    """Return the spec of the operator's pods."""
    spec: dict[str, Any] = one(objects, "Deployment")["spec"]["template"]["spec"]
    return spec


def arguments(objects: list[KubeObject]) -> list[str]:
    """Return the operator's arguments."""
    found: list[str] = operator_pod(objects)["containers"][0]["args"]
    return found


def copied_chart(folder: Path) -> Path:
    """Return a copy of the chart, to be changed."""
    return shutil.copytree(CHART, folder / "rljob")


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.name)
def test_lint_finds_nothing(helm: Helm, values: Path) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", CHART, "--values", values)


def test_the_version_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_what_is_packaged_holds_the_files_and_no_values_of_ours(helm: Helm, tmp_path: Path) -> None:
    helm.run("package", CHART, "--destination", tmp_path)
    with tarfile.open(tmp_path / f"rljob-{__version__}.tgz") as archive:
        names = set(archive.getnames())
    assert {"rljob/files/crd.yaml", "rljob/files/smoke.py", "rljob/values.schema.json"} <= names
    assert not [name for name in names if name.startswith("rljob/ci")]


def test_defaults_make_these_objects_and_no_others(rendered: list[KubeObject]) -> None:
    assert named(rendered) == DEFAULT


@pytest.mark.parametrize(
    ("values", "more", "less"),
    [
        ({"crds.install": False}, [], ["CustomResourceDefinition rljobs.rljob.io"]),
        ({"rbac.create": False}, [], ["ClusterRole rljob-operator", "ClusterRoleBinding rljob-operator"]),
        ({"rbac.userRoles.create": False}, [], ["ClusterRole rljob-editor", "ClusterRole rljob-viewer"]),
        ({"serviceAccount": {"create": False, "name": "ours"}}, [], ["ServiceAccount rljob-operator"]),
        ({"metrics.service.enabled": False}, [], ["Service rljob-operator"]),
        (
            {"smokeTest.enabled": False},
            [],
            ["Pod rljob-smoke", "Role rljob-smoke", "RoleBinding rljob-smoke", "ServiceAccount rljob-smoke"],
        ),
        (
            {"replicaCount": 2},
            [
                "Lease rljob-operator",
                "PodDisruptionBudget rljob-operator",
                "Role rljob-operator-lease",
                "RoleBinding rljob-operator-lease",
            ],
            [],
        ),
        (
            {"replicaCount": 2, "podDisruptionBudget.enabled": False},
            ["Lease rljob-operator", "Role rljob-operator-lease", "RoleBinding rljob-operator-lease"],
            [],
        ),
        (
            {"watch.namespaces": ["team-a", "team-b"]},
            [
                "Role team-a/rljob-operator",
                "Role team-a/rljob-smoke",
                "Role team-b/rljob-operator",
                "RoleBinding team-a/rljob-operator",
                "RoleBinding team-a/rljob-smoke",
                "RoleBinding team-b/rljob-operator",
            ],
            [
                "ClusterRole rljob-operator",
                "ClusterRoleBinding rljob-operator",
                "Role rljob-smoke",
                "RoleBinding rljob-smoke",
            ],
        ),
        ({"networkPolicies.operator.enabled": True}, ["NetworkPolicy rljob-operator"], []),
        ({"metrics.serviceMonitor.enabled": True}, ["ServiceMonitor rljob-operator"], []),
        ({"metrics.podMonitor.enabled": True, **SCRAPER}, ["PodMonitor rljob-jobs"], []),
        ({"prometheusRule.enabled": True}, ["PrometheusRule rljob"], []),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_toggle_adds_and_takes_away_these_objects(
    helm: Helm, values: dict[str, Any], more: list[str], less: list[str]
) -> None:
    objects = helm.template(values)
    assert named(objects) == sorted({*DEFAULT, *more} - set(less))


def test_the_definition_is_the_generated_one_and_is_kept(helm: Helm) -> None:
    (wanted,) = load_documents((ROOT / "crds" / "rljob.io_rljobs.yaml").read_text(), "crds")
    (found,) = load_documents(helm.run("template", "rljob", CHART, "--show-only", "templates/crd.yaml"), "chart")
    assert found["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
    assert found["metadata"].pop("labels")["app.kubernetes.io/managed-by"] == "Helm"
    assert found == wanted


def test_the_definition_goes_with_the_release_only_where_that_was_asked_for(helm: Helm) -> None:
    found = one(helm.template({"crds.keep": False}), "CustomResourceDefinition")
    assert found["metadata"]["annotations"] == {"rljob.io/version": __version__}


def test_braces_in_a_description_are_no_template(helm: Helm, tmp_path: Path) -> None:
    chart = copied_chart(tmp_path)
    file = chart / "files" / "crd.yaml"
    text = "Written as {{ .Values.nothing | fail }} or {{ ."
    changed = yaml.safe_load(file.read_text())
    changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = text
    file.write_text(yaml.safe_dump(changed))
    found = one(helm.template(chart=chart), "CustomResourceDefinition")
    assert found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] == text


def test_rights_are_this_list_for_the_whole_cluster_and_for_namespaces(helm: Helm, rendered: list[KubeObject]) -> None:
    assert rules(one(rendered, "ClusterRole", "rljob-operator")) == RULES
    namespaced = helm.template({"watch.namespaces": ["team-a", "team-b"], "networkPolicies.jobs.enabled": False})
    without = {key: verbs for key, verbs in RULES.items() if not key.startswith("networking")}
    roles = [item for item in namespaced if item["kind"] == "Role" and item["metadata"]["name"] == "rljob-operator"]
    assert [rules(role) for role in roles] == [without, without]


def test_two_operators_share_one_lease_and_may_change_no_other(helm: Helm) -> None:
    role = one(helm.template({"replicaCount": 2}), "Role", "rljob-operator-lease")
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    assert role["rules"] == [
        {**lease, "verbs": ["create"]},
        {**lease, "resourceNames": ["rljob-operator"], "verbs": ["get", "update"]},
    ]


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.name)
def test_no_right_holds_a_wildcard(helm: Helm, values: Path) -> None:
    roles = [item for item in helm.template(files=[values]) if item["kind"] in ("Role", "ClusterRole")]
    words = {
        word
        for role in roles
        for rule in role["rules"]
        for field in ("apiGroups", "resources", "verbs")
        for word in rule[field]
    }
    assert len(words) > 10
    assert not [word for word in words if "*" in word]


def test_people_get_their_roles_through_those_of_the_cluster(helm: Helm, rendered: list[KubeObject]) -> None:
    editor, viewer = (one(rendered, "ClusterRole", f"rljob-{name}") for name in ("editor", "viewer"))
    aggregation = "rbac.authorization.k8s.io/aggregate-to-"

    def targets(role: KubeObject) -> set[str]:
        labels = role["metadata"]["labels"]
        return {key.removeprefix(aggregation) for key in labels if key.startswith(aggregation)}

    assert (targets(editor), targets(viewer)) == ({"edit", "admin"}, {"view"})
    assert "run any image" in editor["metadata"]["annotations"]["rljob.io/note"]
    assert {verb for verbs in rules(viewer).values() for verb in verbs} == {"get", "list", "watch"}
    apart = helm.template({"rbac.userRoles.aggregate": False})
    assert targets(one(apart, "ClusterRole", "rljob-editor")) == set()


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.name)
def test_every_pod_meets_the_restricted_standard_and_can_write_nowhere_else_than_tmp(helm: Helm, values: Path) -> None:
    objects = helm.template(files=[values])
    for spec in (operator_pod(objects), one(objects, "Pod")["spec"]):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert operator_pod(objects)["volumes"] == [{"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}]


def test_a_namespace_whose_name_looks_like_another_type_stays_a_name(helm: Helm) -> None:
    objects = helm.template({"watch.namespaces": ["123"]})
    assert all(isinstance(item["metadata"].get("namespace", ""), str) for item in objects)
    pod = one(objects, "Pod")
    assert {"name": "JOB_NAMESPACE", "value": "123"} in pod["spec"]["containers"][0]["env"]


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.name)
def test_names_that_look_like_another_type_stay_names(helm: Helm, values: Path) -> None:
    named = {"nameOverride": "46", "fullnameOverride": "on", "serviceAccount.name": "48", "priorityClassName": "1e3"}
    objects = helm.template(named, files=[values], release="49", namespace="50")
    rest = [item for item in objects if item["kind"] != "CustomResourceDefinition"]
    found = {f"{item['kind']} {path}": value for item in rest for path, value in named_values(item)}
    assert len(found) > 50
    assert {path: value for path, value in found.items() if not isinstance(value, str)} == {}
    assert {"46", "48", "49", "50"} <= set(found.values())


def named_values(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each name and label of an object."""
    if isinstance(node, list):
        for number, item in enumerate(node):
            yield from named_values(item, f"{path}[{number}]")
    elif isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, dict | list):
                yield from named_values(value, f"{path}.{key}")
            elif path.endswith(("abels", ".matchLabels")) or key.lower().endswith(("name", "namespace")):
                yield f"{path}.{key}", value


def test_the_operator_is_told_its_namespaces_images_and_policies(rendered: list[KubeObject]) -> None:
    assert arguments(rendered) == [
        "run",
        "--all-namespaces",
        f"--image=rljob-runtime:{__version__}",
        "--log-format=json",
        "--metrics-port=9401",
        "--workers=16",
        "--job-network-policies",
        "--operator-namespace-labels=kubernetes.io/metadata.name=rljob-system",
        "--operator-pod-labels=app.kubernetes.io/component=operator,app.kubernetes.io/instance=rljob,app.kubernetes.io/name=rljob",
    ]
    (container,) = operator_pod(rendered)["containers"]
    assert container["image"] == f"rljob-operator:{__version__}"
    assert {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe")} == {"/healthz"}
    assert container["readinessProbe"] == {
        "httpGet": {"path": "/readyz", "port": "metrics"},
        "periodSeconds": 5,
        "timeoutSeconds": 5,
    }


def test_the_operator_is_told_all_else_that_values_say(helm: Helm) -> None:
    objects = helm.template(
        {
            "watch.namespaces": ["team-a", "team-b"],
            "runtimeImage": {"repository": "registry.example:5000/rl", "digest": "sha256:" + "a" * 64},
            "operator": {"workers": 32, "logFormat": "text", "extraArgs": ["--dry-run"]},
            "metrics.port": 9500,
            "replicaCount": 2,
            "leaderElection.leaseSeconds": 30,
            "networkPolicies.scraper": {
                "namespaceSelector": {"matchLabels": {"b": "2", "a": "1"}},
                "podSelector": {"matchLabels": {"app": "prometheus"}},
            },
        }
    )
    assert [word for word in arguments(objects) if not word.startswith("--operator-")] == [
        "run",
        "--namespace=team-a",
        "--namespace=team-b",
        "--image=registry.example:5000/rl@sha256:" + "a" * 64,
        "--log-format=text",
        "--metrics-port=9500",
        "--workers=32",
        "--lease=rljob-system/rljob-operator",
        "--lease-seconds=30",
        "--job-network-policies",
        "--scraper-namespace-labels=a=1,b=2",
        "--scraper-pod-labels=app=prometheus",
        "--dry-run",
    ]
    assert operator_pod(objects)["containers"][0]["ports"] == [
        {"name": "metrics", "containerPort": 9500, "protocol": "TCP"}
    ]


def test_without_policies_for_jobs_nothing_is_said_of_them(helm: Helm) -> None:
    words = " ".join(arguments(helm.template({"networkPolicies.jobs.enabled": False, **SCRAPER})))
    assert "labels" not in words
    assert "policies" not in words


def test_one_operator_is_replaced_and_two_take_turns(helm: Helm, rendered: list[KubeObject]) -> None:
    alone, both = (one(objects, "Deployment")["spec"] for objects in (rendered, helm.template({"replicaCount": 2})))
    assert (alone["replicas"], alone["strategy"]) == (1, {"type": "Recreate"})
    assert "affinity" not in alone["template"]["spec"]
    assert (both["replicas"], both["strategy"]["type"]) == (2, "RollingUpdate")
    terms = both["template"]["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert terms[0]["podAffinityTerm"]["labelSelector"]["matchLabels"] == both["selector"]["matchLabels"]


def test_what_concerns_the_pod_goes_into_the_pod(helm: Helm) -> None:
    given = {
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1}],
        "priorityClassName": "system-cluster-critical",
    }
    changed = {
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}],
        "operator.extraEnv": [{"name": "SSL_CERT_FILE", "value": "/etc/ca/ca.crt"}],
        "podLabels": {"team": "platform", "app.kubernetes.io/name": "other"},
        "podAnnotations": {"note": "n"},
        "commonLabels": {"cost": "c"},
        "image": {"repository": "registry.example/op", "tag": "2", "pullPolicy": "Always"},
    }
    objects = helm.template({**given, **changed})
    template = one(objects, "Deployment")["spec"]["template"]
    spec, (container,) = template["spec"], template["spec"]["containers"]
    assert {key: spec[key] for key in given} == given
    assert spec["volumes"][1:] == changed["extraVolumes"]
    assert container["volumeMounts"][1:] == changed["extraVolumeMounts"]
    assert container["env"] == changed["operator.extraEnv"]
    assert (container["image"], container["imagePullPolicy"]) == ("registry.example/op:2", "Always")
    assert template["metadata"]["annotations"] == {"note": "n"}
    labels = template["metadata"]["labels"]
    assert (labels["team"], labels["cost"], labels["app.kubernetes.io/name"]) == ("platform", "c", "rljob")
    assert all(item["metadata"]["labels"]["cost"] == "c" for item in objects)


@pytest.mark.parametrize(
    ("release", "values", "name"),
    [
        ("rljob", {}, "rljob-operator"),
        ("rljob-prod", {}, "rljob-prod-operator"),
        ("prod", {}, "prod-rljob-operator"),
        ("prod", {"nameOverride": "rl"}, "prod-rl-operator"),
        ("prod", {"fullnameOverride": "rl"}, "rl-operator"),
        ("r" * 53, {}, "r" * 46 + "-operator"),
    ],
)
def test_names_come_from_the_release(helm: Helm, release: str, values: dict[str, str], name: str) -> None:
    objects = helm.template(values, release=release)
    assert one(objects, "Deployment")["metadata"]["name"] == name
    job = next(
        item["value"] for item in one(objects, "Pod")["spec"]["containers"][0]["env"] if item["name"] == "JOB_NAME"
    )
    assert len(job) <= 40
    assert all(len(item["metadata"]["name"]) <= 63 for item in objects)


def test_two_releases_of_one_name_share_the_roles_for_people_and_the_definition_alone(helm: Helm) -> None:
    def made(namespace: str, values: dict[str, Any]) -> set[str]:
        given = {
            "watch.namespaces": [f"{namespace}-jobs"],
            "replicaCount": 2,
            "networkPolicies.operator.enabled": True,
            "networkPolicies.scraper.namespaceSelector": {"matchLabels": {"a": "b"}},
            "metrics.serviceMonitor.enabled": True,
            "metrics.podMonitor.enabled": True,
            "prometheusRule.enabled": True,
            "dashboards.enabled": True,
        }
        objects = helm.template({**given, **values}, namespace=namespace)
        return {f"{item['kind']} {item['metadata'].get('namespace')}/{item['metadata']['name']}" for item in objects}

    first = made("one", {})
    assert first & made("two", {}) == {
        "ClusterRole None/rljob-editor",
        "ClusterRole None/rljob-viewer",
        "CustomResourceDefinition None/rljobs.rljob.io",
    }
    assert first & made("two", {"crds.install": False, "rbac.userRoles.create": False}) == set()
    assert first & made("two", {"crds.install": False, "fullnameOverride": "other"}) == set()


def test_an_account_that_is_there_is_used(helm: Helm) -> None:
    objects = helm.template({"serviceAccount": {"create": False, "name": "given"}})
    assert operator_pod(objects)["serviceAccountName"] == "given"
    assert one(objects, "ClusterRoleBinding")["subjects"] == [
        {"kind": "ServiceAccount", "name": "given", "namespace": "rljob-system"}
    ]


def test_the_operators_policy_lets_in_the_scraper_and_out_what_it_needs(helm: Helm) -> None:
    values = {"networkPolicies.operator": {"enabled": True, "apiServer": {"cidrs": ["10.0.0.1/32"], "ports": [6443]}}}
    closed = one(helm.template(values), "NetworkPolicy")["spec"]
    assert closed["ingress"] == []
    assert closed["policyTypes"] == ["Ingress", "Egress"]
    assert closed["egress"][0] == {
        "ports": [{"protocol": "TCP", "port": 6443}],
        "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
    }
    assert closed["egress"][2] == {
        "to": [
            {
                "namespaceSelector": {},
                "podSelector": {"matchExpressions": [{"key": "rljob.io/job-uid", "operator": "Exists"}]},
            }
        ]
    }
    pods = {"networkPolicies.scraper.podSelector": {"matchLabels": {"app": "prometheus"}}}
    scraped = one(helm.template({**values, **SCRAPER, **pods}), "NetworkPolicy")["spec"]
    assert scraped["ingress"] == [
        {
            "from": [
                {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
                    "podSelector": {"matchLabels": {"app": "prometheus"}},
                }
            ],
            "ports": [{"protocol": "TCP", "port": "metrics"}],
        }
    ]


def test_monitors_find_the_operator_and_the_pods_of_jobs(helm: Helm) -> None:
    monitor = {"enabled": True, "labels": {"release": "prometheus"}, "interval": "15s", "scrapeTimeout": "5s"}
    keep = [{"action": "keep"}]
    values = {
        "metrics.serviceMonitor": monitor,
        "metrics.podMonitor": {**monitor, "relabelings": keep, "metricRelabelings": keep},
        **SCRAPER,
    }
    everywhere, somewhere = (helm.template({**values, "watch.namespaces": where}) for where in ([], ["team-a"]))
    service, pods = one(everywhere, "ServiceMonitor"), one(everywhere, "PodMonitor")
    assert service["metadata"]["labels"]["release"] == pods["metadata"]["labels"]["release"] == "prometheus"
    assert service["spec"]["endpoints"][0]["honorLabels"] is True  # a job's series bear the namespace of the job
    assert service["spec"]["selector"]["matchLabels"] == one(everywhere, "Service")["spec"]["selector"]
    (endpoint,) = pods["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["interval"], endpoint["scrapeTimeout"]) == ("metrics", "15s", "5s")
    assert endpoint["relabelings"][-1:] == endpoint["metricRelabelings"] == keep
    shipped = yaml.safe_load((CHART / "files" / "podmonitor-relabelings.yaml").read_text())
    assert endpoint["relabelings"][:-1] == shipped
    assert pods["spec"]["selector"] == {"matchExpressions": [{"key": "rljob.io/job-name", "operator": "Exists"}]}
    assert pods["spec"]["namespaceSelector"] == {"any": True}
    assert one(somewhere, "PodMonitor")["spec"]["namespaceSelector"] == {"matchNames": ["team-a"]}


def test_dashboards_and_alerts_are_the_files_word_for_word(helm: Helm, tmp_path: Path) -> None:
    chart = copied_chart(tmp_path)
    shutil.rmtree(chart / "files" / "dashboards", ignore_errors=True)
    (chart / "files" / "dashboards").mkdir()
    dashboard = json.dumps({"title": "One job", "legend": "{{ pod }} {{- range }}", "html": "<b>&</b>"}, indent=2)
    (chart / "files" / "dashboards" / "one-job.json").write_text(dashboard)
    summary = "{{ $labels.rljob_job }} has waited for {{ $value | humanizeDuration }}"
    texts = {"s": summary, "r": "docs/alerts.md#a"}
    groups = {"groups": [{"name": "rljob", "rules": [{"alert": "A", "expr": "1 > 0", "annotations": texts}]}]}
    (chart / "files" / "alerts.yaml").write_text(f"# Generated.\n{yaml.safe_dump(groups)}")
    values = {
        "dashboards": {"enabled": True, "label": "d", "labelValue": "yes", "annotations": {"folder": "RL"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    }
    objects = helm.template(values, chart=chart)
    board, rule = one(objects, "ConfigMap"), one(objects, "PrometheusRule")
    assert board["metadata"]["name"] == "rljob-dashboard-one-job"
    assert board["metadata"]["labels"]["d"] == "yes"
    assert board["metadata"]["annotations"] == {"folder": "RL"}
    assert board["data"]["one-job.json"].strip() == dashboard
    assert rule["spec"] == groups
    elsewhere = one(
        helm.template({**values, "prometheusRule.runbookUrl": "https://wiki.example/rl"}, chart=chart), "PrometheusRule"
    )
    assert elsewhere["spec"]["groups"][0]["rules"][0]["annotations"]["r"] == "https://wiki.example/rl#a"
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_helm_test_may_handle_one_job_and_nothing_else(helm: Helm, rendered: list[KubeObject]) -> None:
    jobs = {"apiGroups": ["rljob.io"], "resources": ["rljobs"]}
    assert one(rendered, "Role")["rules"] == [
        {**jobs, "verbs": ["create"]},
        {**jobs, "resourceNames": ["rljob-smoke"], "verbs": ["get", "delete"]},
    ]
    hooks = [item for item in rendered if "helm.sh/hook" in item["metadata"].get("annotations", {})]
    assert {item["metadata"]["annotations"]["helm.sh/hook"] for item in hooks} == {"test"}
    assert named(hooks) == [
        "Pod rljob-smoke",
        "Role rljob-smoke",
        "RoleBinding rljob-smoke",
        "ServiceAccount rljob-smoke",
    ]


def test_the_job_of_helm_test_takes_fields_from_values(helm: Helm) -> None:
    values = {"smokeTest": {"namespace": "team-b", "timeoutSeconds": 60, "spec": {"image": "localhost/one:1"}}}
    pod = one(helm.template({**values, "watch.namespaces": ["team-a", "team-b"]}), "Pod")
    variables = {item["name"]: item["value"] for item in pod["spec"]["containers"][0]["env"]}
    spec = json.loads(variables.pop("JOB_SPEC"))
    assert variables == {"JOB_NAME": "rljob-smoke", "JOB_NAMESPACE": "team-b", "TIMEOUT_SECONDS": "60"}
    assert spec["image"] == "localhost/one:1"
    assert spec["training"]["totalFrames"] == 1000
