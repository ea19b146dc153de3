"""Files and documents: what is read, and the one line that a wrong one gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlruntime.errors import ConfigError
from rlruntime.spec.loader import load_documents, load_manifests, parse_manifest
from rlruntime.spec.problems import ManifestError

MANIFEST = """\
apiVersion: rljob.io/v1alpha1
kind: RLJob
metadata:
  name: cartpole
spec:
  training:
    algorithm: PPO
    totalFrames: 1e5
    env:
      id: CartPole-v1
      numEnvs: 16
    ppo:
      learningRate: 1e-3
"""


def _error_of(text: str, folder: Path) -> str:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_manifests(path)
    assert caught.value.exit_code == 78
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{folder}/")


def test_a_manifest_is_read_with_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(MANIFEST, encoding="utf-8")
    [job] = load_manifests(path)
    assert job.metadata.name == "cartpole"
    assert job.spec.training.total_frames == 100_000
    assert job.spec.training.ppo is not None
    assert job.spec.training.ppo.learning_rate == 0.001
    assert [(role.name, role.type, role.replicas, role.gpus) for role in job.spec.roles] == [
        ("trainer", "Trainer", 1, 0)
    ]
    assert job.spec.run_policy.backoff_limit == 3
    assert job.spec.run_policy.disruption_limit == 20
    assert job.spec.run_policy.clean_pod_policy == "Running"
    assert job.spec.run_policy.node_lost_seconds == 60
    assert job.spec.metrics.port == 9400
    assert job.spec.managed_by == "rljob.io/operator"


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (
            "learningRate",
            "learningRat",
            "job.yaml:13: spec.training.ppo.learningRat: there is no such field; did you mean 'learningRate'?",
        ),
        (
            "learningRate",
            "learning_rate",
            "job.yaml:13: spec.training.ppo.learning_rate: there is no such field; did you mean 'learningRate'?",
        ),
        (
            "  training:",
            "  traning:",
            "job.yaml:6: spec.traning: there is no such field; did you mean 'training'? (and 1 more problem)",
        ),
        ("numEnvs: 16", "numEnvs: many", "job.yaml:11: spec.training.env.numEnvs: must be a whole number (got 'many')"),
        ("numEnvs: 16", 'numEnvs: "16"', "job.yaml:11: spec.training.env.numEnvs: must be a whole number (got '16')"),
        ("numEnvs: 16", "numEnvs: 1.5", "job.yaml:11: spec.training.env.numEnvs: must be a whole number (got 1.5)"),
        ("numEnvs: 16", "numEnvs: 0", "job.yaml:11: spec.training.env.numEnvs: must be at least 1 (got 0)"),
        ("1e-3", "0", "job.yaml:13: spec.training.ppo.learningRate: must be above 0 (got 0)"),
        ("1e-3", ".nan", "job.yaml:13: spec.training.ppo.learningRate: must be a finite number (got .nan)"),
        ("1e-3", ".inf", "job.yaml:13: spec.training.ppo.learningRate: must be a finite number (got .inf)"),
        ("1e-3", "1e999", "job.yaml:13: spec.training.ppo.learningRate: must be a number (got '1e999')"),
        (
            "algorithm: PPO",
            "algorithm: PP0",
            "job.yaml:7: spec.training.algorithm: must be one of PPO, SAC, TD3, DQN, Custom (got 'PP0');"
            " did you mean 'PPO'?",
        ),
        ("    totalFrames: 1e5\n", "", "job.yaml:6: spec.training.totalFrames: this field is missing; add it"),
        ("id: CartPole-v1", "id: [Pong]", "job.yaml:10: spec.training.env.id: must be a string (got ['Pong'])"),
        ("      id: CartPole-v1\n", "", "job.yaml:9: spec.training.env: give exactly one of id and factory"),
        ("kind: RLJob", "kind: Job", "job.yaml:2: kind: must be RLJob (got 'Job')"),
        ("kind: RLJob\n", "", "job.yaml:1: kind: this field is missing; add kind: RLJob"),
        ("v1alpha1", "v2", "job.yaml:1: apiVersion: must be rljob.io/v1alpha1 (got 'rljob.io/v2')"),
        (
            "name: cartpole",
            "name: 1.a.b",
            "job.yaml:4: metadata.name: must be lower-case letters, digits and '-', starting with a letter and not"
            " ending with '-' (DNS-1035) (got '1.a.b')",
        ),
        (
            "name: cartpole",
            f"name: {'a' * 41}",
            f"job.yaml:4: metadata.name: must have at most 40 characters (got '{'a' * 41}')",
        ),
        ("name: cartpole", "name: 7", "job.yaml:4: metadata.name: must be a string (got 7)"),
        (
            "  name: cartpole",
            "  nam: cartpole",
            "job.yaml:4: metadata.nam: there is no such field; did you mean 'name'? (and 1 more problem)",
        ),
        (
            "numEnvs: 16",
            "id: Other-v1",
            "job.yaml:11: spec.training.env.id: the key is given twice (first at line 10); remove one",
        ),
        ("    ppo:", "   ppo:", "job.yaml:12: is not YAML: expected <block end>, but found '<block mapping start>'"),
    ],
)
def test_a_wrong_manifest_gets_one_line_with_place_field_value_and_remedy(
    right: str, wrong: str, message: str, tmp_path: Path
) -> None:
    assert right in MANIFEST
    assert _error_of(MANIFEST.replace(right, wrong), tmp_path) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "job.yaml: holds no manifest: it is empty; see examples/ for one to start with"),
        ("# nothing\n---\n---\n", "job.yaml: holds no manifest: it is empty; see examples/ for one to start with"),
        ("{", "job.yaml:1: is not YAML: expected the node content, but found '<stream end>'"),
        ("- a\n", "job.yaml:1: a manifest must be a mapping (got ['a']); see examples/"),
        ("hello\n", "job.yaml:1: a manifest must be a mapping (got 'hello'); see examples/"),
        ("a: *b\n", "job.yaml:1: is not YAML: found undefined alias 'b'"),
        ("a: &a [*a]\n", "job.yaml:1: a[0]: an anchor contains itself"),
        (
            "a: &x {b: 1}\nc:\n  b: 2\n  <<: *x\n",
            "job.yaml:4: c: this merge would replace 'b', given before it; put << first",
        ),
        ("[" * 1200, "job.yaml: is nested too deeply"),
    ],
)
def test_what_is_no_manifest_at_all_is_said_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    assert _error_of(text, tmp_path) == message


def test_aliases_that_expand_without_end_are_refused() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    with pytest.raises(ConfigError, match="its aliases expand to more than 200000 values"):
        load_documents(text, "job.yaml")


def test_two_documents_of_one_name_are_refused_and_of_two_names_are_read(tmp_path: Path) -> None:
    message = _error_of(f"{MANIFEST}---\n{MANIFEST}", tmp_path)
    assert message == (
        "job.yaml:18: metadata.name: two documents are called 'cartpole' (the other begins at line 1);"
        " give each job a name of its own"
    )
    path = tmp_path / "two.yaml"
    path.write_text(f"{MANIFEST}---\n{MANIFEST.replace('cartpole', 'other')}", encoding="utf-8")
    assert [job.metadata.name for job in load_manifests(path)] == ["cartpole", "other"]


def test_several_problems_are_all_kept_and_the_first_line_counts_the_others(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(MANIFEST.replace("16", "0").replace("1e-3", "-1").replace("1e5", "0"), encoding="utf-8")
    with pytest.raises(ManifestError) as caught:
        load_manifests(path)
    assert str(caught.value) == f"{path}:8: spec.training.totalFrames: must be at least 1 (got 0) (and 2 more problems)"
    assert [problem.field for problem in caught.value.problems] == [
        "spec.training.totalFrames",
        "spec.training.env.numEnvs",
        "spec.training.ppo.learningRate",
    ]


def test_a_file_that_is_absent_names_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(MANIFEST, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_manifests(tmp_path / "jop.yaml")
    assert str(caught.value) == f"{tmp_path}/jop.yaml: there is no such file; did you mean 'job.yaml'?"


def test_a_folder_a_binary_and_a_huge_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder, not a file; name the manifests in it"):
        load_manifests(tmp_path)
    (tmp_path / "binary").write_bytes(b"a: 1\nb: \xff\xfe\n")
    with pytest.raises(ConfigError, match="binary:2: is not YAML: it is not UTF-8 text"):
        load_manifests(tmp_path / "binary")
    (tmp_path / "huge").write_bytes(b"#" * (3 * 1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="is larger than 3 MiB, which no API server takes"):
        load_manifests(tmp_path / "huge")


def test_a_document_from_elsewhere_is_parsed_under_the_name_it_is_given() -> None:
    [document] = load_documents(MANIFEST, "x")
    assert parse_manifest(document, "the run's manifest").metadata.name == "cartpole"
    document["spec"]["training"]["seed"] = -1
    with pytest.raises(ManifestError) as caught:
        parse_manifest(document, "the run's manifest")
    assert str(caught.value) == "the run's manifest: spec.training.seed: must be at least 0 (got -1)"
    with pytest.raises(ManifestError) as caught:
        parse_manifest([1], "the run's manifest")
    assert str(caught.value) == "the run's manifest: a manifest must be a mapping (got [1])"


def test_what_the_api_server_adds_to_an_object_is_tolerated() -> None:
    [document] = load_documents(MANIFEST, "x")
    document["metadata"].update(
        {
            "namespace": "default",
            "uid": "6d3f",
            "resourceVersion": "12",
            "generation": 2,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": None,
            "labels": {"team": "a"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
            "finalizers": ["a/b"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}],
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
        }
    )
    document["status"] = {
        "phase": "Running",
        "fieldOfANewerOperator": 1,
        "conditions": [{"type": "A", "status": "True"}],
    }
    job = parse_manifest(document, "x")
    assert job.status is not None
    assert job.status.phase == "Running"
    assert job.status.conditions[0].type == "A"
