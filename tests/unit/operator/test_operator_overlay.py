"""A role's template over the generated pod: what merges, what replaces, what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from rljob_operator.builders.overlay import with_template
from rljob_operator.builders.owner import KubeObject, Owner
from rljob_operator.builders.pods import Place, pod

from rlruntime.errors import ConfigError
from rlruntime.spec.manifest import RLJobSpec

MakeSpec = Callable[..., RLJobSpec]
PATH = ("spec", "roles", 0, "template", "spec")
BASE: KubeObject = {
    "restartPolicy": "Never",
    "securityContext": {"runAsUser": 10001, "runAsNonRoot": True},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "containers": [
        {
            "name": "rljob",
            "image": "a:1",
            "command": ["rljob"],
            "env": [{"name": "RLJOB_UID", "value": "u"}, {"name": "HOME", "value": "/tmp"}],
            "ports": [{"name": "metrics", "containerPort": 9400, "protocol": "TCP"}],
            "volumeMounts": [
                {"name": "rljob-token", "mountPath": "/etc/rljob/token"},
                {"name": "rljob-tmp", "mountPath": "/tmp"},
            ],
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": 9400}, "periodSeconds": 30},
        }
    ],
    "volumes": [
        {"name": "rljob-token", "secret": {"secretName": "s"}},
        {"name": "rljob-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
    ],
}


def _merge(template: dict[str, Any], *, has_code: bool = False) -> KubeObject:
    return with_template(BASE, template, PATH, has_code=has_code)


def _main(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "rljob", **fields}]}


def _changed(**fields: Any) -> KubeObject:
    return {**BASE, **fields}


def _changed_main(**fields: Any) -> KubeObject:
    return _changed(containers=[{**BASE["containers"][0], **fields}])


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        pytest.param({}, BASE, id="empty template changes nothing"),
        pytest.param({"nodeSelector": {"a": "b"}}, _changed(nodeSelector={"a": "b"}), id="new field is added"),
        pytest.param(
            {"securityContext": {"runAsUser": 5}},
            _changed(securityContext={"runAsUser": 5, "runAsNonRoot": True}),
            id="mappings merge",
        ),
        pytest.param(
            {"securityContext": {"runAsUser": None}},
            _changed(securityContext={"runAsNonRoot": True}),
            id="null takes a field away",
        ),
        pytest.param(
            {"securityContext": None},
            {name: value for name, value in BASE.items() if name != "securityContext"},
            id="null takes a mapping away",
        ),
        pytest.param(
            {"affinity": {"nodeAffinity": {"x": None, "y": 1}}},
            _changed(affinity={"nodeAffinity": {"y": 1}}),
            id="null in a new mapping is dropped",
        ),
        pytest.param(
            {"tolerations": [{"key": "spot"}, {"key": "nvidia.com/gpu", "operator": "Exists"}]},
            _changed(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}, {"key": "spot"}]),
            id="tolerations are added once",
        ),
        pytest.param(
            {"topologySpreadConstraints": [{"topologyKey": "zone"}, {"topologyKey": "zone", "maxSkew": 2}]},
            _changed(topologySpreadConstraints=[{"topologyKey": "zone"}, {"topologyKey": "zone", "maxSkew": 2}]),
            id="a list of which nothing is generated is taken as it is",
        ),
        pytest.param(
            {"containers": [{"name": "proxy", "image": "p:1"}]},
            _changed(containers=[*BASE["containers"], {"name": "proxy", "image": "p:1"}]),
            id="container of another name is added after ours",
        ),
        pytest.param(_main(image="b:2"), _changed_main(image="b:2"), id="main container merges by name"),
        pytest.param(
            _main(command=["nsys", "profile", "rljob"]),
            _changed_main(command=["nsys", "profile", "rljob"]),
            id="command is replaced whole",
        ),
        pytest.param(
            _main(env=[{"name": "HOME", "value": "/data/u"}, {"name": "LR", "value": "1"}]),
            _changed_main(
                env=[
                    {"name": "RLJOB_UID", "value": "u"},
                    {"name": "HOME", "value": "/data/u"},
                    {"name": "LR", "value": "1"},
                ]
            ),
            id="variables merge by name, in place",
        ),
        pytest.param(
            _main(env=[{"name": "HOME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
            _changed_main(
                env=[
                    {"name": "RLJOB_UID", "value": "u"},
                    {"name": "HOME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ]
            ),
            id="valueFrom takes the place of value",
        ),
        pytest.param(
            _main(env=[{"name": "PYTHONPATH", "value": "/x"}]),
            _changed_main(env=[*BASE["containers"][0]["env"], {"name": "PYTHONPATH", "value": "/x"}]),
            id="PYTHONPATH is free without code",
        ),
        pytest.param(
            _main(ports=[{"containerPort": 9400, "protocol": "UDP"}, {"containerPort": 9400, "hostPort": 9400}]),
            _changed_main(
                ports=[
                    {"name": "metrics", "containerPort": 9400, "protocol": "TCP", "hostPort": 9400},
                    {"containerPort": 9400, "protocol": "UDP"},
                ]
            ),
            id="ports merge by number and protocol",
        ),
        pytest.param(
            _main(volumeMounts=[{"name": "data", "mountPath": "/data"}, {"name": "scratch", "mountPath": "/tmp/"}]),
            _changed_main(
                volumeMounts=[
                    {"name": "rljob-token", "mountPath": "/etc/rljob/token"},
                    {"name": "scratch", "mountPath": "/tmp/"},
                    {"name": "data", "mountPath": "/data"},
                ]
            ),
            id="mounts merge by path, however it is written",
        ),
        pytest.param(
            _main(livenessProbe={"periodSeconds": 60}),
            _changed_main(livenessProbe={"httpGet": {"path": "/healthz", "port": 9400}, "periodSeconds": 60}),
            id="probe's timing changes alone",
        ),
        pytest.param(
            _main(livenessProbe={"exec": {"command": ["true"]}}),
            _changed_main(livenessProbe={"exec": {"command": ["true"]}, "periodSeconds": 30}),
            id="another probe takes the place of the request",
        ),
        pytest.param(
            _main(livenessProbe=None),
            _changed(containers=[{k: v for k, v in BASE["containers"][0].items() if k != "livenessProbe"}]),
            id="null takes a probe away",
        ),
        pytest.param(
            {"volumes": [{"name": "rljob-shm", "emptyDir": {"sizeLimit": "1Gi"}}]},
            _changed(
                volumes=[
                    BASE["volumes"][0],
                    {"name": "rljob-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
                ]
            ),
            id="volume merges by name",
        ),
        pytest.param(
            {"volumes": [{"name": "rljob-shm", "hostPath": {"path": "/dev/shm"}}, {"name": "data", "nfs": {}}]},
            _changed(
                volumes=[
                    BASE["volumes"][0],
                    {"name": "rljob-shm", "hostPath": {"path": "/dev/shm"}},
                    {"name": "data", "nfs": {}},
                ]
            ),
            id="another source takes the place of the volume's",
        ),
        pytest.param(
            {"initContainers": [{"name": "rljob", "restartPolicy": "Always", "env": [{"name": "RLJOB_X"}]}]},
            _changed(initContainers=[{"name": "rljob", "restartPolicy": "Always", "env": [{"name": "RLJOB_X"}]}]),
            id="init containers are the user's own",
        ),
    ],
)
def test_template_merges(template: dict[str, Any], expected: KubeObject) -> None:
    base, given = copy.deepcopy(BASE), copy.deepcopy(template)
    assert _merge(template) == expected
    assert base == BASE
    assert given == template


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"restartPolicy": "Always"}, "restartPolicy: is set by the operator; remove it"),
        ({"restartPolicy": None}, "restartPolicy: is set by the operator; remove it"),
        ({"hostname": "x"}, "hostname: is set by the operator; remove it"),
        ({"hostnameOverride": "x"}, "hostnameOverride: is set by the operator; remove it"),
        ({"subdomain": "x"}, "subdomain: is set by the operator; remove it"),
        (_main(restartPolicy="Always"), "containers[0].restartPolicy: is set by the operator; remove it"),
        (
            {"containers": [{"name": "a"}, {"name": "rljob", "restartPolicyRules": []}]},
            "containers[1].restartPolicyRules: is set by the operator; remove it",
        ),
        (
            _main(env=[{"name": "A"}, {"name": "RLJOB_UID", "value": "x"}]),
            "containers[0].env[1].name: is set by the operator (got 'RLJOB_UID'); remove it",
        ),
        (
            _main(env=[{"name": "RLJOB_OTHER", "value": "x"}]),
            "containers[0].env[0].name: is set by the operator (got 'RLJOB_OTHER'); remove it",
        ),
        (
            {"volumes": [{"name": "rljob-token", "emptyDir": {}}]},
            "volumes[0].name: is set by the operator (got 'rljob-token'); remove it",
        ),
        (
            {"volumes": [{"name": "rljob-spec", "configMap": {"name": "x"}}]},
            "volumes[0].name: is set by the operator (got 'rljob-spec'); remove it",
        ),
        (
            _main(volumeMounts=[{"name": "x", "mountPath": "/etc/rljob/token"}]),
            "containers[0].volumeMounts[0].mountPath: is set by the operator (got '/etc/rljob/token');"
            " mount it elsewhere",
        ),
        (
            _main(volumeMounts=[{"name": "x", "mountPath": "//etc/./rljob/token/"}]),
            "containers[0].volumeMounts[0].mountPath: is set by the operator (got '//etc/./rljob/token/');"
            " mount it elsewhere",
        ),
        (
            _main(volumeMounts=[{"name": "x", "mountPath": "/etc/rljob/token/token"}]),
            "containers[0].volumeMounts[0].mountPath: is set by the operator (got '/etc/rljob/token/token');"
            " mount it elsewhere",
        ),
        (
            {"$patch": "replace"},
            "$patch: directives of a strategic merge are not supported; name the fields that should differ",
        ),
        (
            _main(env=[{"$patch": "delete", "name": "HOME"}]),
            "containers[0].env[0].$patch: directives of a strategic merge are not supported; name the fields that"
            " should differ",
        ),
        (
            {"$setElementOrder/containers": []},
            "$setElementOrder/containers: directives of a strategic merge are not supported; name the fields that"
            " should differ",
        ),
        ({"containers": None}, "containers: must be a list (got null)"),
        ({"volumes": {"name": "x"}}, "volumes: must be a list (got {'name': 'x'})"),
        ({"tolerations": None}, "tolerations: must be a list (got null)"),
        ({"containers": ["rljob"]}, "containers[0]: must be a mapping (got 'rljob')"),
        ({"containers": [{"image": "x"}]}, "containers[0].name: this field is missing; add it"),
        (_main(env=[{"value": "x"}]), "containers[0].env[0].name: this field is missing; add it"),
        (_main(ports=[{"name": "x"}]), "containers[0].ports[0].containerPort: this field is missing; add it"),
        (_main(volumeMounts=[{"name": "x"}]), "containers[0].volumeMounts[0].mountPath: this field is missing; add it"),
        (
            {"containers": [{"name": "rljob"}, {"name": "rljob"}]},
            "containers[1]: is the same as number 0; remove one",
        ),
        (
            _main(volumeMounts=[{"name": "x", "mountPath": "/a"}, {"name": "y", "mountPath": "/a/"}]),
            "containers[0].volumeMounts[1]: is the same as number 0; remove one",
        ),
    ],
)
def test_template_is_refused(template: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _merge(template)
    assert str(caught.value) == f"spec.roles[0].template.spec.{message}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            _main(env=[{"name": "PYTHONPATH", "value": "/x"}]),
            "containers[0].env[0].name: is set by the operator (got 'PYTHONPATH'); put the modules into the"
            " ConfigMap of spec.code, or into the image",
        ),
        (
            _main(volumeMounts=[{"name": "x", "mountPath": "/opt/rljob/code"}]),
            "containers[0].volumeMounts[0].mountPath: is set by the operator (got '/opt/rljob/code');"
            " mount it elsewhere",
        ),
    ],
)
def test_template_may_not_hide_the_jobs_code(template: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _merge(template, has_code=True)
    assert str(caught.value) == f"spec.roles[0].template.spec.{message}"


def test_mounts_beside_the_protected_folder_are_free() -> None:
    mounts = [{"name": "x", "mountPath": "/etc/rljob-other"}, {"name": "x", "mountPath": "/opt/rljob/code"}]
    merged = _merge(_main(volumeMounts=mounts))
    assert merged["containers"][0]["volumeMounts"][-2:] == mounts


def test_labels_and_annotations_are_added(owner: Owner, make_spec: MakeSpec) -> None:
    template = {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}}
    spec = make_spec(roles=[{"name": "t", "type": "Trainer", "template": template}])
    metadata = pod(owner, spec, Place(0, 0), image="i", secret="s")["metadata"]
    assert metadata["labels"]["team"] == "a"
    assert metadata["labels"]["rljob.io/role"] == "t"
    assert metadata["annotations"] == {"note": "b"}


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"labels": {"rljob.io/role": "x"}}, "labels.rljob.io/role"),
        ({"labels": {"app.kubernetes.io/managed-by": "x"}}, "labels.app.kubernetes.io/managed-by"),
        ({"annotations": {"rljob.io/x": "y"}}, "annotations.rljob.io/x"),
    ],
)
def test_own_labels_and_annotations_are_refused(
    owner: Owner, make_spec: MakeSpec, metadata: dict[str, Any], field: str
) -> None:
    roles = [{"name": "c", "type": "Collector", "template": {"metadata": metadata}}, {"name": "t", "type": "Trainer"}]
    with pytest.raises(ConfigError) as caught:
        pod(owner, make_spec(roles=roles), Place(0, 0), image="i", secret="s")
    assert str(caught.value) == f"spec.roles[0].template.metadata.{field}: is set by the operator; remove it"
