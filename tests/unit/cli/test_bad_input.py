"""What a user gets for input that can't work: one line with field, value and remedy, exit code 78, and nothing lost."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_jobs import records, small_document

from rlruntime.cli.main import main

CONSTANT = "trainer_envs:constant"


@pytest.fixture(autouse=True)
def _own_folder_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def write(**training: Any) -> str:
    Path("job.yaml").write_text(yaml.safe_dump(small_document(**training), sort_keys=False))
    return "job.yaml"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run ``rljob``, see that it ends with 78 and one line, and return the line."""
    capsys.readouterr()
    assert main(arguments) == 78
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("rljob: error: ")
    return lines[0].removeprefix("rljob: error: ")


@pytest.mark.parametrize(
    ("training", "line"),
    [
        pytest.param(
            {"totalFrame": 5},
            "job.yaml:29: spec.training.totalFrame: there is no such field; did you mean 'totalFrames'?",
            id="misspelt field",
        ),
        pytest.param(
            {"totalFrames": "many"},
            "job.yaml:10: spec.training.totalFrames: must be a whole number (got 'many')",
            id="wrong type",
        ),
        pytest.param(
            {"env": {"id": "CartPole-v9"}},
            "spec.training.env.id: no such environment is registered (got 'CartPole-v9'); did you mean CartPole-v1?",
            id="unknown environment",
        ),
        pytest.param(
            {"env": {"id": "ALE/Pong-v5"}},
            "spec.training.env.id: no such environment is registered (got 'ALE/Pong-v5'); "
            "pip install ale-py and put ale_py in spec.training.env.import",
            id="environment of a package that is missing",
        ),
        pytest.param(
            {"env": {"id": "CartPole-v1", "import": ["no_such_module"]}},
            "spec.training.env.import: there is no module 'no_such_module' (got 'no_such_module'); "
            "install its package, or put the file beside the manifest",
            id="module that is missing",
        ),
        pytest.param(
            {"env": {"factory": "trainer_envs:TextAction"}},
            "spec.training.env.factory: the action space Text(1, 10, charset=",
            id="actions that can't be taken",
        ),
        pytest.param(
            {"env": {"factory": "trainer_envs:TextObservation"}},
            "spec.training.env.factory: observation is Text(1, 10, charset=",
            id="observations that can't be seen",
        ),
        pytest.param(
            {"env": {"factory": CONSTANT, "numEnvs": 2, "kwargs": {"bad_step": 7}}},
            "environment copy 0 (step ",
            id="NaN observation",
        ),
        pytest.param(
            {"env": {"factory": CONSTANT, "numEnvs": 2, "kwargs": {"bad_reward_step": 8}}},
            "environment copy 0 (step 3 of its episode, 9 in total): reward is not finite: inf",
            id="infinite reward",
        ),
        pytest.param(
            {"network": {"type": "CNN"}},
            "spec.training.network.type: the observation has no image, a Box with three dimensions (got 'CNN'); "
            "use type: MLP",
            id="network that doesn't fit",
        ),
        pytest.param(
            {"network": {"type": "MPL"}},
            "spec.training.network.type: there is no network of this name (got 'MPL'); did you mean 'MLP'?",
            id="unknown network",
        ),
        pytest.param(
            {"device": "cuda:7"},
            "spec.training.device: there is no such device on this machine (got 'cuda:7'); use Auto or cpu",
            id="device that isn't there",
        ),
    ],
)
def test_a_manifest_that_cannot_work_is_one_line(
    training: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = small_document()
    if "totalFrame" in training:
        document["spec"]["training"].update(training)
        Path("job.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    else:
        write(**training)
    said = refused(capsys, "run", "job.yaml", "--quiet")
    assert line in said


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("", "job.yaml: holds no manifest: it is empty", id="empty"),
        pytest.param("a: [1\nb: 2", "job.yaml:2: is not YAML:", id="not YAML"),
        pytest.param("- 1\n- 2", "job.yaml:1: a manifest must be a mapping", id="a list"),
    ],
)
def test_a_file_that_is_no_manifest_is_one_line(text: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text(text)
    assert line in refused(capsys, "run", "job.yaml")


def test_two_documents_of_one_name_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = yaml.safe_dump(small_document())
    Path("job.yaml").write_text(f"{text}---\n{text}")
    assert "metadata.name: two documents are called 'small' (the other begins at line 1)" in refused(
        capsys, "validate", "job.yaml"
    )


def test_a_wrong_override_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "run", write(), "-o", "training.ppo.learninRate=1")
    assert "spec.training.ppo.learninRate: there is no such field; did you mean 'learningRate'?" in said


@pytest.fixture
def finished_run() -> Path:
    """Return the folder of a short run of `write`'s manifest."""
    assert main(["run", write(totalFrames=100, evaluation={}), "--quiet", "--out", "run"]) == 0
    return Path("run")


def _checkpoint(run: Path) -> Path:
    return run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()


def test_a_resume_with_another_network_is_one_line_and_loses_nothing(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = records(finished_run), (finished_run / "result.json").read_bytes()
    override = "training.network.config.hiddenSizes=[8]"
    said = refused(capsys, "run", "job.yaml", "--resume", "--out", "run", "-o", override)
    assert 'was written with network MLP {"hiddenSizes": [16]}, this run has MLP {"hiddenSizes": [8]}' in said
    assert "resume with the manifest that wrote it, or train into a new folder" in said
    assert (records(finished_run), (finished_run / "result.json").read_bytes()) == before


def test_a_checkpoint_with_a_wrong_hash_is_one_line(finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _checkpoint(finished_run) / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    said = refused(capsys, "run", "job.yaml", "--resume", "--out", "run")
    assert "tensors.safetensors" in said
    assert "SHA-256" in said


def test_a_checkpoint_of_a_newer_format_is_one_line(finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _checkpoint(finished_run) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "formatVersion": 99}))
    said = refused(capsys, "run", "job.yaml", "--resume", "--out", "run")
    assert "has format 99, written by rljob 0.1.0; this version reads formats up to 1; upgrade rljob" in said


def test_a_run_to_resume_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no run of 'small' in runs to resume" in refused(capsys, "run", write(), "--resume")
    assert "holds no run to resume" in refused(capsys, "run", write(), "--resume", "--out", "nowhere")


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_file_or_a_folder_of_modules_that_is_none_is_one_line(
    command: str, finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, command, str(finished_run), "--code", "nofolder") == (
        "--code: there is no such folder (got 'nofolder'); give that of your modules"
    )


def test_a_manifest_in_place_of_a_run_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "evaluate", write()) == (
        "job.yaml is a file, not a run folder; give the folder that rljob run wrote"
    )


@pytest.mark.parametrize(
    ("field", "words"),
    [("env", "must be a mapping"), ("evaluation", "must be a mapping"), ("seed", "must be a whole number")],
)
def test_null_where_something_must_be_is_one_line(field: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "run", write(), "-o", f"training.{field}=null")
    assert line.endswith(f"spec.training.{field}: {words} (got null); leave it out where the default will do")


def test_a_policy_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("evaluate", "export"):
        assert "does not exist" in refused(capsys, command, "nowhere")
