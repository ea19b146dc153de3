"""What a user meets who applies manifests with kubectl: texts, columns, refusals that name field and remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_harness.cluster import CRDS, Cluster
from cluster_harness.control_plane import ControlPlane

ROOT = Path(__file__).resolve().parents[2]
FIRST_EXAMPLE = ROOT / "examples" / "01-ppo-cartpole.yaml"
FROZEN_CRD = ROOT / "tests" / "fixtures" / "crds" / "rljobs-2026-11.yaml"

Job = dict[str, Any]
TRAINER, COLLECTOR = {"name": "trainer", "type": "Trainer"}, {"name": "collector", "type": "Collector"}
ELASTIC = {"role": "collector", "replicas": 2, "minReplicas": 1, "maxReplicas": 3}


def job(**spec: Any) -> Job:
    """Return a small job with these fields of its spec in place of the usual ones."""
    training = {"algorithm": "PPO", "totalFrames": 1000, "env": {"id": "CartPole-v1"}, "seed": 1}
    return {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "one"},
        "spec": {"training": training, **spec},
    }


def apply(cluster: Cluster, namespace: str, document: Job) -> str:
    """Apply a job and return kubectl's words: empty when it was taken."""
    done = cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(document), check=False)
    return "" if done.returncode == 0 else done.stderr.strip()


def patch(cluster: Cluster, namespace: str, *operations: dict[str, Any]) -> str:
    """Change the stored job by JSON patch and return kubectl's words: empty when the change was taken."""
    words = ["patch", "rlj", "one", "-n", namespace, "--type=json", "-p", json.dumps(operations)]
    done = cluster.kubectl(*words, check=False)
    return "" if done.returncode == 0 else done.stderr.strip()


def test_definition_is_applied_by_plain_kubectl_twice_without_a_change(cluster: Cluster) -> None:
    assert cluster.apply(CRDS) == "customresourcedefinition.apiextensions.k8s.io/rljobs.rljob.io unchanged\n"


def test_explain_shows_the_texts_of_the_fields(cluster: Cluster) -> None:
    shown = cluster.kubectl("explain", "rljob.spec.training.ppo").stdout
    assert "gaeLambda\t<number>\n    Lambda of generalised advantage estimation." in shown
    assert "enum: Constant, Linear, Cosine\n    How the learning rate falls." in shown


def test_every_example_is_taken(cluster: Cluster, namespace: str) -> None:
    examples = sorted((ROOT / "examples").glob("*.yaml"))
    assert FIRST_EXAMPLE in examples
    for example in examples:
        assert "created" in cluster.apply(example, namespace=namespace)


def test_columns_show_phase_progress_and_reward(cluster: Cluster, namespace: str) -> None:
    cluster.apply(FIRST_EXAMPLE, namespace=namespace)
    status = {"phase": "Running", "ready": "1/1", "progress": {"percent": 40, "reward": 312.5}}
    path = f"/apis/rljob.io/v1alpha1/namespaces/{namespace}/rljobs/ppo-cartpole/status"
    cluster.api.patch(path, {"status": status})
    heads, row = (line.split() for line in cluster.kubectl("get", "rlj", "-n", namespace).stdout.splitlines())
    assert heads == ["NAME", "PHASE", "REASON", "READY", "PROGRESS", "REWARD", "AGE"]
    assert row[:-1] == ["ppo-cartpole", "Running", "1/1", "40", "312.5"]


def test_one_category_lists_jobs_with_everything_else(cluster: Cluster, namespace: str) -> None:
    cluster.apply(FIRST_EXAMPLE, namespace=namespace)
    assert "rljob.rljob.io/ppo-cartpole" in cluster.kubectl("get", "all,rl", "-n", namespace, "-o", "name").stdout


def _typo(document: Job) -> None:
    document["spec"]["training"]["totalframes"] = 5


def _long_name(document: Job) -> None:
    document["metadata"]["name"] = "a" * 41


def _dotted_name(document: Job) -> None:
    document["metadata"]["name"] = "a.b"


def _two_trainers(document: Job) -> None:
    document["spec"]["roles"] = [{"name": "a", "type": "Trainer"}, {"name": "b", "type": "Trainer"}]


def _no_trainer(document: Job) -> None:
    document["spec"]["roles"] = [COLLECTOR]


def _min_above_max(document: Job) -> None:
    document["spec"] |= {"roles": [TRAINER, COLLECTOR], "elastic": {**ELASTIC, "minReplicas": 5, "replicas": 5}}


def _section_of_another_algorithm(document: Job) -> None:
    document["spec"]["training"] |= {"algorithm": "Custom", "custom": {"entrypoint": "m:f"}, "ppo": {}}


def _no_section(document: Job) -> None:
    document["spec"]["training"]["algorithm"] = "Custom"


def _two_sources_of_storage(document: Job) -> None:
    document["spec"]["storage"] = {"persistentVolumeClaim": {"claimName": "c"}, "volumeClaimTemplate": {"spec": {}}}


def _fraction_of_a_frame(document: Job) -> None:
    document["spec"]["training"]["totalFrames"] = 10.5


@pytest.mark.parametrize(
    ("spoil", "field", "words"),
    [
        (_typo, 'unknown field "spec.training.totalframes"', ""),
        (_long_name, "metadata.name", "must be at most 40 lower-case letters, digits and '-'"),
        (_dotted_name, "metadata.name", "must be at most 40 lower-case letters, digits and '-'"),
        (_two_trainers, "spec.roles", "there must be exactly one role of type Trainer"),
        (_no_trainer, "spec.roles", "there must be exactly one role of type Trainer"),
        (_min_above_max, "spec.elastic", "minReplicas must not be above maxReplicas"),
        (_section_of_another_algorithm, "spec.training", "the section ppo belongs to algorithm PPO"),
        (_no_section, "spec.training", "algorithm Custom, and no other, needs the section custom"),
        (_two_sources_of_storage, "spec.storage", "give exactly one of persistentVolumeClaim and volumeClaimTemplate"),
        (_fraction_of_a_frame, "spec.training.totalFrames", "integer"),
    ],
)
def test_bad_manifest_is_refused_with_the_field_and_what_to_do(
    cluster: Cluster, namespace: str, spoil: Callable[[Job], None], field: str, words: str
) -> None:
    document = job()
    spoil(document)
    answer = apply(cluster, namespace, document)
    assert field in answer
    assert words in answer
    assert cluster.kubectl("get", "rlj", "-n", namespace, "-o", "name").stdout == ""


def _replace(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}  # of a member that exists, it is a replacement


def _remove(path: str) -> dict[str, Any]:
    return {"op": "remove", "path": path}


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (_replace("/spec/training/seed", 2), "spec.training", "training can't change; make a new job"),
        (_remove("/spec/training/seed"), "spec.training", "training can't change; make a new job"),
        (_replace("/spec/metrics/port", 9500), "spec.metrics", "metrics can't change; make a new job"),
        (_replace("/spec/managedBy", "example.org/other"), "spec.managedBy", "managedBy can't change; make a new job"),
        (_replace("/spec/roles/0", {**TRAINER, "name": "other"}), "spec.roles", "can't be added, removed or renamed"),
        (_replace("/spec/roles/0", {**TRAINER, "replicas": 2}), "spec.roles", "the number of trainers can't change"),
        (_replace("/spec/roles/1", {**COLLECTOR, "type": "Inference"}), "spec.roles", "nor change their type"),
        (_remove("/spec/roles/1"), "spec.roles", "can't be added, removed or renamed"),
        (_replace("/spec/roles/-", {**COLLECTOR, "name": "more"}), "spec.roles", "can't be added, removed or renamed"),
        (_replace("/spec/roles/0/gpus", 1), "spec", "may change only while the job is suspended and stays so"),
        (_remove("/spec/image"), "spec", "may change only while the job is suspended and stays so"),
        (_remove("/spec/elastic"), "spec", "elastic.role can't change; make a new job"),
        (_remove("/spec/storage"), "spec", "storage can't change; make a new job"),
        (
            _replace("/spec/storage/persistentVolumeClaim/claimName", "d"),
            "spec",
            "storage can't change; make a new job",
        ),
        (_remove("/spec/code"), "spec", "code can't change; make a new job"),
    ],
)
def test_immutable_field_can_be_changed_by_no_route(
    cluster: Cluster, namespace: str, change: dict[str, Any], field: str, words: str
) -> None:
    document = job(
        image="localhost/one:1",
        roles=[TRAINER, COLLECTOR],
        elastic=ELASTIC,
        code={"configMap": {"name": "code"}},
        storage={"persistentVolumeClaim": {"claimName": "c"}},
    )
    assert apply(cluster, namespace, document) == ""
    before = cluster.job(namespace, "one")
    answer = patch(cluster, namespace, change)
    assert field in answer
    assert words in answer
    assert cluster.job(namespace, "one") == before


def test_optional_immutable_field_can_not_be_added_later(cluster: Cluster, namespace: str) -> None:
    assert apply(cluster, namespace, job()) == ""
    answer = patch(cluster, namespace, _replace("/spec/storage", {"persistentVolumeClaim": {"claimName": "c"}}))
    assert "storage can't change; make a new job" in answer


def test_what_pods_are_made_of_may_change_while_the_job_is_suspended(cluster: Cluster, namespace: str) -> None:
    assert apply(cluster, namespace, job(image="localhost/one:1", runPolicy={"suspend": True})) == ""
    assert patch(cluster, namespace, _replace("/spec/image", "localhost/two:2")) == ""
    both = [_replace("/spec/image", "localhost/three:3"), _replace("/spec/runPolicy/suspend", False)]
    assert "may change only while the job is suspended and stays so" in patch(cluster, namespace, *both)


def test_kubectl_scale_moves_the_elastic_role_within_its_limits(cluster: Cluster, namespace: str) -> None:
    assert apply(cluster, namespace, job(roles=[TRAINER, COLLECTOR], elastic=ELASTIC)) == ""
    cluster.kubectl("scale", "rlj/one", "-n", namespace, "--replicas=3")
    stored = cluster.job(namespace, "one")
    assert stored is not None
    assert stored["spec"]["elastic"]["replicas"] == 3
    refused = cluster.kubectl("scale", "rlj/one", "-n", namespace, "--replicas=4", check=False)
    assert "replicas must not be above maxReplicas" in refused.stderr
    assert cluster.job(namespace, "one") == stored


def differing(old: Any, new: Any, path: str = "spec") -> list[str]:
    """Return the paths of what is no longer as it was; what was added is left out."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [found for key in old for found in differing(old[key], new.get(key), f"{path}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [found for index, (one, other) in pairs for found in differing(one, other, f"{path}[{index}]")]
    return [] if old == new else [path]


def test_stored_job_still_reads_after_fields_were_added_to_the_definition(api_server_programs: None) -> None:
    with ControlPlane() as plane:
        plane.install_crds(FROZEN_CRD)
        namespace = plane.create_namespace()
        document = job(
            roles=[TRAINER, COLLECTOR], elastic=ELASTIC, storage={"persistentVolumeClaim": {"claimName": "c"}}
        )
        assert apply(plane, namespace, document) == ""
        stored = plane.job(namespace, "one")
        assert stored is not None
        plane.install_crds()
        newer = yaml.safe_load((CRDS / "rljob.io_rljobs.yaml").read_text())
        spec = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        spec["addedLater"] = {
            "type": "object",
            "default": {},
            "properties": {"depth": {"type": "integer", "default": 7}},
        }
        spec["training"]["properties"]["addedUnset"] = {"type": "string"}
        plane.apply(newer)
        plane.restart_apiserver()
        read = plane.job(namespace, "one")
        assert read is not None
        assert read["spec"].pop("addedLater") == {"depth": 7}
        assert read["metadata"]["uid"] == stored["metadata"]["uid"]
        assert differing(stored["spec"], read["spec"]) == []
        assert patch(plane, namespace, _replace("/spec/runPolicy/suspend", True)) == ""
        status = {"phase": "Suspended", "reason": "Asked"}
        plane.api.patch(f"/apis/rljob.io/v1alpha1/namespaces/{namespace}/rljobs/one/status", {"status": status})
