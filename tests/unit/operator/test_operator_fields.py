"""Every field of every object exists in Kubernetes' own API: its official models read each object back whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiClient
from rljob_operator.builders.children import children
from rljob_operator.builders.owner import KubeObject, Owner
from rljob_operator.preview import preview

from rlruntime.spec.loader import load_manifests
from rlruntime.spec.manifest import RLJobSpec

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.yaml"))
MODELS = {
    "ConfigMap": "V1ConfigMap",
    "PersistentVolumeClaim": "V1PersistentVolumeClaim",
    "Pod": "V1Pod",
    "Secret": "V1Secret",
    "Service": "V1Service",
}
MakeSpec = Callable[..., RLJobSpec]

EVERYTHING: dict[str, Any] = {
    "image": "a:1",
    "code": {"configMap": {"name": "my-code"}},
    "storage": {
        "volumeClaimTemplate": {
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        }
    },
    "scheduling": {"priorityClassName": "low"},
    "elastic": {"role": "collector", "replicas": 2},
    "roles": [
        {"name": "trainer", "type": "Trainer", "replicas": 2, "gpus": 1, "resources": {"limits": {"memory": "4Gi"}}},
        {
            "name": "collector",
            "type": "Collector",
            "template": {
                "metadata": {"annotations": {"a": "b"}},
                "spec": {
                    "nodeSelector": {"pool": "cpu"},
                    "containers": [
                        {"name": "rljob", "livenessProbe": {"exec": {"command": ["true"]}}},
                        {"name": "side", "image": "s:1"},
                    ],
                },
            },
        },
        {"name": "reward", "type": "Service", "entrypoint": "a.b:c", "config": {"x": 1}},
    ],
}


def _read_back(item: KubeObject) -> Any:
    client = ApiClient()
    model = client.deserialize(json.dumps(item), MODELS[item["kind"]], "application/json")
    return client.sanitize_for_serialization(model)  # type: ignore[no-untyped-call]


def test_every_field_of_every_object_is_known(owner: Owner, make_spec: MakeSpec) -> None:
    objects = children(owner, make_spec(**EVERYTHING), token="t", image="i", nonce="a1b2c")
    assert {item["kind"] for item in objects} == set(MODELS)
    for item in objects:
        assert _read_back(item) == item


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_objects_of_the_examples_are_known(path: Path) -> None:
    for job in load_manifests(path):
        for item in preview(job, image="i").objects:
            assert _read_back(item) == item


def test_a_misspelt_field_would_be_noticed(owner: Owner, make_spec: MakeSpec) -> None:
    built = children(owner, make_spec(), token="t", image="i", nonce="a1b2c")[-1]
    built["spec"]["terminationGracePeriodSecond"] = built["spec"].pop("terminationGracePeriodSeconds")
    assert _read_back(built) != built
