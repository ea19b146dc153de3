"""Combinations of fields, and what the models keep of a manifest."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from rlruntime.spec.loader import parse_manifest
from rlruntime.spec.manifest import RLJob
from rlruntime.spec.problems import ManifestError
from rlruntime.spec.training.defaults import with_defaults
from rlruntime.spec.training.ppo import PPOConfig

TRAINING: dict[str, Any] = {"algorithm": "PPO", "totalFrames": 1000, "env": {"id": "CartPole-v1"}}
TRAINER = {"name": "trainer", "type": "Trainer"}
COLLECTOR = {"name": "collector", "type": "Collector"}


def _job(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "job"},
        "spec": {"training": TRAINING, **spec},
    }


def _refusal(**spec: Any) -> str:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(_job(**spec), "job.yaml")
    return str(caught.value).removeprefix("job.yaml: spec.")


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ([], "roles: must have at least 1 entry"),
        ([COLLECTOR], "roles: there must be exactly one role of type Trainer, not 0"),
        ([TRAINER, {**TRAINER, "name": "other"}], "roles: there must be exactly one role of type Trainer, not 2"),
        (
            [TRAINER, COLLECTOR, COLLECTOR],
            "roles[2].name: two roles are called 'collector' (the other is number 1); give each role a name of its own",
        ),
        (
            [{"name": "trainer", "type": "Trainr"}],
            "roles[0].type: must be one of Trainer, Collector, Inference, Service (got 'Trainr'); did you mean"
            " 'Trainer'?",
        ),
        (
            [TRAINER, {"name": "reward", "type": "Service"}],
            "roles[1].entrypoint: a Service needs an entrypoint; add entrypoint: package.module:function",
        ),
        (
            [{**TRAINER, "entrypoint": "a.b:c"}],
            "roles[0].entrypoint: an entrypoint belongs to a Service, not to a Trainer (got 'a.b:c'); remove it, or set"
            " type: Service",
        ),
        ([{**TRAINER, "replicas": 0}], "roles[0].replicas: a Trainer needs at least one replica (got 0)"),
        ([{**TRAINER, "hostsPerReplica": 2}], "roles[0].hostsPerReplica: must be at most 1 (got 2)"),
        (
            [{**TRAINER, "resources": {"requests": {"cpu": 0.5}}}],
            "roles[0].resources.requests.cpu: must be a whole number or a string (got 0.5); write it in quotes: '0.5'",
        ),
        (
            [{**TRAINER, "resources": {"limits": {"memory": "1 GB"}}}],
            "roles[0].resources.limits.memory: must be a quantity such as 2, '500m' or '1Gi' (got '1 GB')",
        ),
        (
            [{**TRAINER, "template": {"sepc": {}}}],
            "roles[0].template.sepc: there is no such field; did you mean 'spec'?",
        ),
    ],
)
def test_wrong_roles_are_refused(roles: list[dict[str, Any]], message: str) -> None:
    assert _refusal(roles=roles) == message


def test_every_kind_of_role_is_taken() -> None:
    roles = [
        {**TRAINER, "replicas": 2, "gpus": 1, "gpuResourceName": "amd.com/gpu", "resources": {"requests": {"cpu": 2}}},
        {**COLLECTOR, "processesPerReplica": 4},
        {"name": "engine", "type": "Inference", "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"any": [1]}}},
        {"name": "reward", "type": "Service", "entrypoint": "my.reward:serve", "config": {"port": 1}},
    ]
    job = parse_manifest(_job(roles=roles), "job.yaml")
    assert [role.type for role in job.spec.roles] == ["Trainer", "Collector", "Inference", "Service"]
    assert job.spec.roles[2].template.spec == {"any": [1]}


@pytest.mark.parametrize(
    ("elastic", "message"),
    [
        ({"role": "nobody"}, "elastic.role: names no role (got 'nobody'); the roles are: trainer, collector"),
        (
            {"role": "trainer"},
            "elastic.role: only a Collector or an Inference role is elastic, and 'trainer' is a Trainer",
        ),
        (
            {"role": "collector", "minReplicas": 5, "replicas": 5, "maxReplicas": 4},
            "elastic.minReplicas: must not be above maxReplicas 4 (got 5)",
        ),
        ({"role": "collector", "replicas": 0}, "elastic.replicas: must not be below minReplicas 1 (got 0)"),
        (
            {"role": "collector", "replicas": 9, "maxReplicas": 8},
            "elastic.replicas: must not be above maxReplicas 8 (got 9)",
        ),
    ],
)
def test_a_wrong_elastic_section_is_refused(elastic: dict[str, Any], message: str) -> None:
    assert _refusal(roles=[TRAINER, COLLECTOR], elastic=elastic) == message


def test_the_elastic_role_gives_no_count_of_its_own() -> None:
    roles = [TRAINER, {**COLLECTOR, "replicas": 3}]
    message = _refusal(roles=roles, elastic={"role": "collector", "replicas": 4})
    assert message == (
        "roles[1].replicas: the number of pods of 'collector' is elastic.replicas (got 3); remove it here"
    )


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ({}, "storage: give exactly one of persistentVolumeClaim and volumeClaimTemplate"),
        (
            {"persistentVolumeClaim": {"claimName": "runs"}, "volumeClaimTemplate": {"spec": {}}},
            "storage: give exactly one of persistentVolumeClaim and volumeClaimTemplate",
        ),
        (
            {"persistentVolumeClaim": {"claimName": "runs"}, "retentionPolicy": "Delete"},
            "storage.retentionPolicy: only a claim made for the job can be deleted with it (got 'Delete'); set Retain,"
            " or use volumeClaimTemplate",
        ),
        (
            {"persistentVolumeClaim": {"claimName": "Runs!"}},
            "storage.persistentVolumeClaim.claimName: must be the name of a Kubernetes object: lower-case letters,"
            " digits, '-' and '.' (got 'Runs!')",
        ),
    ],
)
def test_wrong_storage_is_refused(storage: dict[str, Any], message: str) -> None:
    assert _refusal(storage=storage) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"algorithm": "Custom"},
            "training.custom: algorithm Custom needs this section; add custom: {entrypoint: package.module:function}",
        ),
        (
            {"custom": {"entrypoint": "a:b"}},
            "training.custom: this section belongs to algorithm Custom, not to PPO; remove it, or set"
            " algorithm: Custom",
        ),
        (
            {"algorithm": "Custom", "custom": {"entrypoint": "a.b"}},
            "training.custom.entrypoint: must be an import path such as 'package.module:name' (got 'a.b')",
        ),
        ({"env": {"id": "a", "factory": "b:c"}}, "training.env: give exactly one of id and factory"),
        ({"device": "gpu"}, "training.device: must be one of Auto, cpu, cuda, cuda:N and mps (got 'gpu')"),
        (
            {"network": {"type": "my module"}},
            "training.network.type: must be a registered name such as 'MLP', or"
            " 'package.module:Object' (got 'my module')",
        ),
    ],
)
def test_a_wrong_training_section_is_refused(change: dict[str, Any], message: str) -> None:
    assert _refusal(training={**TRAINING, **change}) == message


def test_managed_by_and_image_have_the_form_that_kubernetes_asks_for() -> None:
    assert _refusal(managedBy="some one") == (
        "managedBy: must be a qualified name such as 'nvidia.com/gpu' (got 'some one')"
    )
    assert _refusal(image="a b") == "image: must be a container image such as 'ghcr.io/org/name:tag' (got 'a b')"


def test_python_takes_snake_case_and_whole_floats_and_refuses_what_is_not_finite() -> None:
    assert PPOConfig(num_steps=32, learning_rate=1).num_steps == 32
    assert PPOConfig.model_validate({"numSteps": 1e3}).num_steps == 1000
    for value in (math.nan, math.inf):
        with pytest.raises(ValidationError, match="finite number"):
            PPOConfig(learning_rate=value)


def test_a_job_that_is_written_out_reads_back_as_itself() -> None:
    roles = [TRAINER, COLLECTOR]
    job = parse_manifest(_job(roles=roles, elastic={"role": "collector", "replicas": 2}, image="a:1"), "job.yaml")
    written = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert parse_manifest(written, "written") == job
    assert RLJob.model_validate_json(job.model_dump_json(by_alias=True)) == job


def test_defaults_that_depend_on_another_part_are_written_out() -> None:
    transforms = [{"type": "RewardNorm"}, {"type": "RewardNorm", "config": {"gamma": 0.5}}, {"type": "ObservationNorm"}]
    training = {**TRAINING, "env": {"id": "CartPole-v1", "transforms": transforms}, "ppo": {"gamma": 0.98}}
    effective = with_defaults(parse_manifest(_job(training=training), "job.yaml").spec.training)
    assert [transform.config for transform in effective.env.transforms] == [{"gamma": 0.98}, {"gamma": 0.5}, {}]
    assert with_defaults(parse_manifest(_job(), "job.yaml").spec.training).ppo == PPOConfig()
