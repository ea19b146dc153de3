"""What surrounds the pods: spec, token, Service, claim; and all objects of a job together."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from rljob_operator.builders.children import children
from rljob_operator.builders.claims import claim_of, storage_claim
from rljob_operator.builders.config import spec_config_map
from rljob_operator.builders.owner import KubeObject, Owner
from rljob_operator.builders.secret import draw_token, token_secret
from rljob_operator.builders.services import headless_service

from rlruntime.errors import ConfigError
from rlruntime.spec.contract import SharedSpec
from rlruntime.spec.manifest import RLJobSpec

MakeSpec = Callable[..., RLJobSpec]
UID = "1b4e28ba-2fa1-4a6b-8c3d-0123456789ab"
LABELS = {
    "app.kubernetes.io/managed-by": "rljob-operator",
    "rljob.io/job-name": "ppo",
    "rljob.io/job-uid": UID,
}
OWNERS = [
    {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "name": "ppo",
        "uid": UID,
        "controller": True,
        "blockOwnerDeletion": False,
    }
]


def _metadata(name: str) -> dict[str, Any]:
    return {"name": name, "namespace": "team-a", "labels": LABELS, "ownerReferences": OWNERS}


def _kinds_and_names(objects: list[KubeObject]) -> list[tuple[str, str]]:
    return [(item["kind"], item["metadata"]["name"]) for item in objects]


def test_service_is_headless_and_publishes_pods_that_are_not_ready(owner: Owner, make_spec: MakeSpec) -> None:
    assert headless_service(owner, make_spec(metrics={"port": 8000})) == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata("ppo-1b4e28ba"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"rljob.io/job-uid": UID},
            "ports": [{"name": "metrics", "port": 8000, "targetPort": 8000, "protocol": "TCP"}],
        },
    }


def test_config_map_holds_the_spec_that_pods_read(owner: Owner, make_spec: MakeSpec) -> None:
    spec = make_spec()
    built = spec_config_map(owner, spec)
    text = built["data"].pop("spec.json")
    assert built == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata("ppo-1b4e28ba-spec"),
        "immutable": True,
        "data": {},
    }
    assert SharedSpec.from_text(text) == SharedSpec.of(spec)
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


def test_spec_too_large_for_a_config_map_is_refused(owner: Owner, make_spec: MakeSpec) -> None:
    training = {
        "algorithm": "PPO",
        "totalFrames": 1,
        "env": {"id": "a"},
        "network": {"type": "m:N", "config": {"x": "y" * 2**20}},
    }
    with pytest.raises(ConfigError) as caught:
        spec_config_map(owner, make_spec(training=training))
    assert str(caught.value) == (
        "spec.training: is larger than 1 MiB, which no ConfigMap holds; move large settings into a file of the image"
    )


def test_token_is_drawn_from_the_given_source(owner: Owner) -> None:
    asked = []

    def source(count: int) -> bytes:
        asked.append(count)
        return bytes(range(count))

    token = draw_token(source)
    assert asked == [32]
    assert token == "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
    assert token_secret(owner, "ppo-1b4e28ba-token-a1b2c", token) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata("ppo-1b4e28ba-token-a1b2c"),
        "type": "Opaque",
        "immutable": True,
        "stringData": {"token": token},
    }


def test_claim_that_is_retained_has_no_owner(owner: Owner, make_spec: MakeSpec) -> None:
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}},
    }
    storage = make_spec(storage={"volumeClaimTemplate": template}).storage
    assert storage_claim(owner, storage) == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "ppo-1b4e28ba-storage",
            "namespace": "team-a",
            "labels": {"team": "a", **LABELS},
            "annotations": {"note": "b"},
        },
        "spec": template["spec"],
    }
    assert claim_of(owner, storage) == "ppo-1b4e28ba-storage"


def test_claim_that_is_deleted_with_its_job_belongs_to_it(owner: Owner, make_spec: MakeSpec) -> None:
    storage = make_spec(storage={"volumeClaimTemplate": {"spec": {}}, "retentionPolicy": "Delete"}).storage
    claim = storage_claim(owner, storage)
    assert claim is not None
    assert claim["metadata"] == _metadata("ppo-1b4e28ba-storage")


def test_no_claim_is_made_where_one_exists_or_none_is_wanted(owner: Owner, make_spec: MakeSpec) -> None:
    existing = make_spec(storage={"persistentVolumeClaim": {"claimName": "runs"}}).storage
    assert storage_claim(owner, existing) is None
    assert claim_of(owner, existing) == "runs"
    assert storage_claim(owner, None) is None
    assert claim_of(owner, None) is None


def test_claim_with_an_own_label_is_refused(owner: Owner, make_spec: MakeSpec) -> None:
    template = {"metadata": {"labels": {"rljob.io/role": "x"}}, "spec": {}}
    with pytest.raises(ConfigError) as caught:
        storage_claim(owner, make_spec(storage={"volumeClaimTemplate": template}).storage)
    assert str(caught.value) == (
        "spec.storage.volumeClaimTemplate.metadata.labels.rljob.io/role: is set by the operator; remove it"
    )


def test_all_objects_of_a_job_with_what_pods_mount_first(owner: Owner, make_spec: MakeSpec) -> None:
    spec = make_spec(
        storage={"volumeClaimTemplate": {"spec": {}}},
        elastic={"role": "collector", "replicas": 3, "maxReplicas": 8},
        roles=[
            {"name": "trainer", "type": "Trainer", "replicas": 2},
            {"name": "engine", "type": "Inference", "replicas": 0},
            {"name": "collector", "type": "Collector"},
        ],
    )
    built = children(owner, spec, token="t", image="i", nonce="a1b2c")
    assert _kinds_and_names(built) == [
        ("ConfigMap", "ppo-1b4e28ba-spec"),
        ("Secret", "ppo-1b4e28ba-token-a1b2c"),
        ("Service", "ppo-1b4e28ba"),
        ("PersistentVolumeClaim", "ppo-1b4e28ba-storage"),
        ("Pod", "ppo-trainer-0-0"),
        ("Pod", "ppo-trainer-1-0"),
        ("Pod", "ppo-collector-0-0"),
        ("Pod", "ppo-collector-1-0"),
        ("Pod", "ppo-collector-2-0"),
    ]
    pods = [item for item in built if item["kind"] == "Pod"]
    for item in pods:
        sources = {volume["name"]: volume for volume in item["spec"]["volumes"]}
        assert sources["rljob-spec"]["configMap"]["name"] == built[0]["metadata"]["name"]
        assert sources["rljob-token"]["secret"]["secretName"] == built[1]["metadata"]["name"]
        assert item["spec"]["subdomain"] == built[2]["metadata"]["name"]
        selector = built[2]["spec"]["selector"]
        assert selector.items() <= item["metadata"]["labels"].items()


def test_token_is_in_the_secret_and_nowhere_else(owner: Owner, make_spec: MakeSpec) -> None:
    token = "5eed" * 16
    holding = [
        item["kind"] for item in children(owner, make_spec(), token=token, image="i", nonce="a") if token in str(item)
    ]
    assert holding == ["Secret"]
