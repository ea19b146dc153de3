"""Pods, whole: what a job's places become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rljob_operator.builders.owner import KubeObject, Owner
from rljob_operator.builders.pods import Place, pod

from rlruntime.errors import ConfigError
from rlruntime.spec.manifest import RLJobSpec

MakeSpec = Callable[..., RLJobSpec]
UID = "1b4e28ba-2fa1-4a6b-8c3d-0123456789ab"

LOST_NODE: list[KubeObject] = [
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
]
TRAINER_POD: KubeObject = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "ppo-trainer-0-0",
        "namespace": "team-a",
        "labels": {
            "app.kubernetes.io/managed-by": "rljob-operator",
            "rljob.io/job-name": "ppo",
            "rljob.io/job-uid": UID,
            "rljob.io/role": "trainer",
            "rljob.io/role-type": "Trainer",
            "rljob.io/index": "0",
            "rljob.io/attempt": "0",
        },
        "ownerReferences": [
            {
                "apiVersion": "rljob.io/v1alpha1",
                "kind": "RLJob",
                "name": "ppo",
                "uid": UID,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    },
    "spec": {
        "restartPolicy": "Never",
        "hostname": "trainer-0",
        "subdomain": "ppo-1b4e28ba",
        "terminationGracePeriodSeconds": 120,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "fsGroup": 10001,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": LOST_NODE,
        "containers": [
            {
                "name": "rljob",
                "image": "runtime:1",
                "command": ["rljob"],
                "args": ["role", "trainer"],
                "env": [
                    {"name": "RLJOB_NAME", "value": "ppo"},
                    {"name": "RLJOB_NAMESPACE", "value": "team-a"},
                    {"name": "RLJOB_UID", "value": UID},
                    {"name": "RLJOB_ROLE", "value": "trainer"},
                    {"name": "RLJOB_INDEX", "value": "0"},
                    {"name": "RLJOB_ATTEMPT", "value": "0"},
                    {"name": "RLJOB_ROUND", "value": "0"},
                    {"name": "RLJOB_SERVICE", "value": "ppo-1b4e28ba"},
                    {"name": "RLJOB_PROCESSES", "value": "1"},
                    {"name": "HOME", "value": "/tmp"},
                    {"name": "USER", "value": "rljob"},
                ],
                "ports": [{"name": "metrics", "containerPort": 9400, "protocol": "TCP"}],
                "volumeMounts": [
                    {"name": "rljob-spec", "mountPath": "/etc/rljob/spec", "readOnly": True},
                    {"name": "rljob-token", "mountPath": "/etc/rljob/token", "readOnly": True},
                    {"name": "rljob-tmp", "mountPath": "/tmp"},
                    {"name": "rljob-shm", "mountPath": "/dev/shm"},
                    {"name": "rljob-storage", "mountPath": "/var/lib/rljob"},
                ],
                "startupProbe": {
                    "httpGet": {"path": "/healthz", "port": 9400},
                    "periodSeconds": 1,
                    "timeoutSeconds": 2,
                    "failureThreshold": 600,
                },
                "livenessProbe": {
                    "httpGet": {"path": "/healthz", "port": 9400},
                    "periodSeconds": 30,
                    "timeoutSeconds": 10,
                    "failureThreshold": 10,
                },
                "readinessProbe": {
                    "httpGet": {"path": "/readyz", "port": 9400},
                    "periodSeconds": 1,
                    "timeoutSeconds": 5,
                    "failureThreshold": 10,
                },
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                },
            }
        ],
        "volumes": [
            {"name": "rljob-spec", "configMap": {"name": "ppo-1b4e28ba-spec"}},
            {"name": "rljob-token", "secret": {"secretName": "ppo-1b4e28ba-token-a1b2c", "defaultMode": 288}},
            {"name": "rljob-tmp", "emptyDir": {}},
            {"name": "rljob-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
            {"name": "rljob-storage", "emptyDir": {}},
        ],
    },
}


def _main(built: KubeObject) -> Any:
    return built["spec"]["containers"][0]


def _named(items: list[KubeObject]) -> dict[str, KubeObject]:
    return {item["name"]: item for item in items}


def test_pod_of_a_job_with_one_trainer(owner: Owner, make_spec: MakeSpec) -> None:
    assert (
        pod(owner, make_spec(), Place(role=0, index=0), image="runtime:1", secret="ppo-1b4e28ba-token-a1b2c")
        == TRAINER_POD
    )


def test_building_twice_gives_the_same_pod_and_shares_nothing_with_the_manifest(
    owner: Owner, make_spec: MakeSpec
) -> None:
    template = {"spec": {"nodeSelector": {"a": "b"}, "readinessGates": [{"conditionType": "c"}]}}
    spec = make_spec(roles=[{"name": "t", "type": "Trainer", "template": template}])
    first = pod(owner, spec, Place(0, 0), image="i", secret="s")
    second = pod(owner, spec, Place(0, 0), image="i", secret="s")
    assert first == second
    first["spec"]["nodeSelector"]["a"] = "changed"
    first["spec"]["readinessGates"][0]["conditionType"] = "changed"
    assert pod(owner, spec, Place(0, 0), image="i", secret="s") == second


def test_later_attempt_keeps_its_hostname_and_has_a_name_of_its_own(owner: Owner, make_spec: MakeSpec) -> None:
    built = pod(
        owner,
        make_spec(),
        Place(role=0, index=0, attempt=3, round=5),
        image="runtime:1",
        secret="ppo-1b4e28ba-token-a1b2c",
    )
    assert built["metadata"]["name"] == "ppo-trainer-0-3"
    assert built["metadata"]["labels"]["rljob.io/attempt"] == "3"
    assert built["spec"]["hostname"] == "trainer-0"
    variables = _named(_main(built)["env"])
    assert variables["RLJOB_ATTEMPT"]["value"] == "3"
    assert variables["RLJOB_ROUND"]["value"] == "5"


def test_gpus_become_limit_toleration_and_shared_memory_of_the_pods_size(owner: Owner, make_spec: MakeSpec) -> None:
    role = {
        "name": "engine",
        "type": "Inference",
        "gpus": 2,
        "gpuResourceName": "amd.com/gpu",
        "resources": {"requests": {"cpu": 4, "memory": "16Gi"}, "limits": {"memory": "64Gi"}},
    }
    spec = make_spec(roles=[{"name": "trainer", "type": "Trainer"}, role])
    built = pod(owner, spec, Place(role=1, index=7), image="runtime:1", secret="ppo-1b4e28ba-token-a1b2c")
    assert _main(built)["resources"] == {
        "requests": {"cpu": "4", "memory": "16Gi"},
        "limits": {"memory": "64Gi", "amd.com/gpu": "2"},
    }
    assert built["spec"]["tolerations"] == [
        *LOST_NODE,
        {"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    ]
    volumes = _named(built["spec"]["volumes"])
    assert volumes["rljob-shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert "rljob-storage" not in volumes
    assert built["metadata"]["name"] == "ppo-engine-7-0"
    assert built["spec"]["terminationGracePeriodSeconds"] == 30
    assert _main(built)["args"] == ["role", "inference"]


def test_shared_memory_follows_the_limit_in_the_template(owner: Owner, make_spec: MakeSpec) -> None:
    template = {"spec": {"containers": [{"name": "rljob", "resources": {"limits": {"memory": "3Gi"}}}]}}
    role = {"name": "t", "type": "Trainer", "resources": {"limits": {"memory": "1Gi"}}, "template": template}
    built = pod(owner, make_spec(roles=[role]), Place(0, 0), image="i", secret="s")
    assert _named(built["spec"]["volumes"])["rljob-shm"]["emptyDir"]["sizeLimit"] == "3Gi"
    assert _main(built)["resources"] == {"limits": {"memory": "3Gi"}}


@pytest.mark.parametrize("section", ["requests", "limits"])
def test_gpus_named_twice_are_refused(owner: Owner, make_spec: MakeSpec, section: str) -> None:
    role = {"name": "t", "type": "Trainer", "gpus": 1, "resources": {section: {"nvidia.com/gpu": 1}}}
    with pytest.raises(ConfigError) as caught:
        pod(owner, make_spec(roles=[role]), Place(0, 0), image="i", secret="s")
    assert str(caught.value) == (
        f"spec.roles[0].resources.{section}.nvidia.com/gpu: is what gpus asks for; remove it, or remove gpus"
    )


def test_gpu_in_resources_alone_is_passed_on_as_it_is(owner: Owner, make_spec: MakeSpec) -> None:
    role = {"name": "t", "type": "Trainer", "resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}
    built = pod(owner, make_spec(roles=[role]), Place(0, 0), image="i", secret="s")
    assert _main(built)["resources"] == {"limits": {"nvidia.com/mig-1g.5gb": "1"}}
    assert built["spec"]["tolerations"] == LOST_NODE


def test_pod_tolerates_the_loss_of_its_node_as_long_as_the_manifest_says(owner: Owner, make_spec: MakeSpec) -> None:
    spec = make_spec(runPolicy={"nodeLostSeconds": 5})
    tolerations = pod(owner, spec, Place(0, 0), image="i", secret="s")["spec"]["tolerations"]
    assert [(item["key"], item["tolerationSeconds"]) for item in tolerations] == [
        ("node.kubernetes.io/not-ready", 5),
        ("node.kubernetes.io/unreachable", 5),
    ]


@pytest.mark.parametrize(
    ("of_role", "of_job", "expected"), [("r:1", "j:1", "r:1"), (None, "j:1", "j:1"), (None, None, "default:1")]
)
def test_image_is_the_roles_then_the_jobs_then_the_operators(
    owner: Owner, make_spec: MakeSpec, of_role: str | None, of_job: str | None, expected: str
) -> None:
    role = {"name": "t", "type": "Trainer", "image": of_role}
    built = pod(owner, make_spec(image=of_job, roles=[role]), Place(0, 0), image="default:1", secret="s")
    assert _main(built)["image"] == expected


def test_code_is_mounted_and_on_the_python_path(owner: Owner, make_spec: MakeSpec) -> None:
    built = pod(owner, make_spec(code={"configMap": {"name": "my-code"}}), Place(0, 0), image="i", secret="s")
    assert {"name": "rljob-code", "configMap": {"name": "my-code"}} in built["spec"]["volumes"]
    assert {"name": "rljob-code", "mountPath": "/opt/rljob/code", "readOnly": True} in _main(built)["volumeMounts"]
    assert {"name": "PYTHONPATH", "value": "/opt/rljob/code"} in _main(built)["env"]


@pytest.mark.parametrize(
    ("storage", "claim"),
    [
        ({"persistentVolumeClaim": {"claimName": "runs"}}, "runs"),
        ({"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}, "ppo-1b4e28ba-storage"),
    ],
)
def test_storage_is_mounted_by_trainers_alone(
    owner: Owner, make_spec: MakeSpec, storage: dict[str, Any], claim: str
) -> None:
    spec = make_spec(
        storage=storage, roles=[{"name": "t", "type": "Trainer"}, {"name": "collector", "type": "Collector"}]
    )
    trainer, collector = (pod(owner, spec, Place(role, 0), image="i", secret="s") for role in (0, 1))
    assert _named(trainer["spec"]["volumes"])["rljob-storage"] == {
        "name": "rljob-storage",
        "persistentVolumeClaim": {"claimName": claim},
    }
    assert "rljob-storage" not in _named(collector["spec"]["volumes"])
    assert "rljob-storage" not in _named(_main(collector)["volumeMounts"])


def test_service_gets_entrypoint_and_config_with_dollars_that_kubernetes_leaves_alone(
    owner: Owner, make_spec: MakeSpec
) -> None:
    service = {
        "name": "reward",
        "type": "Service",
        "processesPerReplica": 3,
        "entrypoint": "my.rewards:serve",
        "config": {"prompt": "cost: $5 or $(HOME)"},
    }
    spec = make_spec(roles=[{"name": "t", "type": "Trainer"}, service])
    main = _main(pod(owner, spec, Place(1, 0), image="i", secret="s"))
    variables = {name: item["value"] for name, item in _named(main["env"]).items()}
    assert main["args"] == ["role", "service"]
    assert variables["RLJOB_ENTRYPOINT"] == "my.rewards:serve"
    assert variables["RLJOB_CONFIG"] == '{"prompt": "cost: $$5 or $$(HOME)"}'
    assert variables["RLJOB_PROCESSES"] == "3"


def test_config_too_large_for_a_variable_is_refused(owner: Owner, make_spec: MakeSpec) -> None:
    service = {"name": "reward", "type": "Service", "entrypoint": "a:b", "config": {"prompt": "x" * 100_000}}
    spec = make_spec(roles=[{"name": "t", "type": "Trainer"}, service])
    with pytest.raises(ConfigError) as caught:
        pod(owner, spec, Place(1, 0), image="i", secret="s")
    assert str(caught.value) == (
        "spec.roles[1].config: is longer than 100,000 bytes, too long for the variable RLJOB_CONFIG;"
        " put it into a file of the image"
    )


def test_port_and_priority_class_are_the_manifests(owner: Owner, make_spec: MakeSpec) -> None:
    spec = make_spec(metrics={"port": 8080}, scheduling={"priorityClassName": "low"})
    built = pod(owner, spec, Place(0, 0), image="i", secret="s")
    main = _main(built)
    assert main["ports"][0]["containerPort"] == 8080
    assert {main[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")} == {8080}
    assert built["spec"]["priorityClassName"] == "low"


def test_pod_meets_the_restricted_pod_security_standard(owner: Owner, make_spec: MakeSpec) -> None:
    spec = pod(owner, make_spec(), Place(0, 0), image="i", secret="s")["spec"]
    security = spec["containers"][0]["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    allowed = {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}
    assert {key for volume in spec["volumes"] for key in volume if key != "name"} <= allowed
