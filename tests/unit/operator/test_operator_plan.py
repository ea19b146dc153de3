"""The command: what it prints, what it notes, what it refuses."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rljob_operator.cli import main
from rljob_operator.documents import to_yaml

from rlruntime.spec.loader import load_documents

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.yaml"))
UID = "1b4e28ba-2fa1-4a6b-8c3d-0123456789ab"
MANIFEST = """\
apiVersion: rljob.io/v1alpha1
kind: RLJob
metadata: {name: tiny}
spec:
  training:
    algorithm: PPO
    totalFrames: 1000
    env: {id: CartPole-v1}
"""


def _write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def _objects(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["plan", *arguments, "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    items: list[dict[str, Any]] = listed["items"]
    return items


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_plan_of_an_example_is_the_same_in_yaml_and_json_and_every_time(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = _objects(capsys, str(path))
    texts = []
    for _ in range(2):
        assert main(["plan", str(path)]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        texts.append(captured.out)
    assert texts[0] == texts[1]
    assert load_documents(texts[0], "plan") == objects  # read by the API server's rules for scalars
    assert list(yaml.safe_load_all(texts[0])) == objects  # and by YAML's own
    assert [item["kind"] for item in objects] == ["ConfigMap", "Secret", "Service", "Pod"]


def test_uid_namespace_and_image_are_the_given_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _write(tmp_path / "job.yaml", MANIFEST)
    objects = _objects(capsys, file, "--uid", UID.upper(), "--namespace", "team-a", "--image", "registry/a:2")
    assert {item["metadata"]["namespace"] for item in objects} == {"team-a"}
    assert {item["metadata"]["labels"]["rljob.io/job-uid"] for item in objects} == {UID}
    assert objects[2]["metadata"]["name"] == "tiny-1b4e28ba"
    assert objects[3]["spec"]["containers"][0]["image"] == "registry/a:2"


def test_uid_and_namespace_of_a_stored_job_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = MANIFEST.replace("{name: tiny}", f"{{name: tiny, namespace: team-b, uid: {UID}}}")
    objects = _objects(capsys, _write(tmp_path / "job.yaml", stored))
    assert {item["metadata"]["namespace"] for item in objects} == {"team-b"}
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in objects} == {UID}


def test_unset_uid_namespace_and_image_have_placeholders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod = _objects(capsys, _write(tmp_path / "job.yaml", MANIFEST))[3]
    assert pod["metadata"]["namespace"] == "default"
    assert pod["metadata"]["labels"]["rljob.io/job-uid"] == "00000000-0000-0000-0000-000000000000"
    assert pod["spec"]["containers"][0]["image"] == "rljob-runtime:0.1.0"


def test_plan_shows_no_usable_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = _objects(capsys, _write(tmp_path / "job.yaml", MANIFEST))[1]
    assert secret["stringData"] == {"token": "drawn at random when the job is created"}


def test_several_jobs_and_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"{MANIFEST}---\n{MANIFEST.replace('tiny', 'other')}"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    objects = _objects(capsys, "-")
    assert [item["metadata"]["name"] for item in objects if item["kind"] == "Pod"] == [
        "tiny-trainer-0-0",
        "other-trainer-0-0",
    ]


@pytest.mark.parametrize(
    ("extra", "kinds", "note"),
    [
        (
            "  runPolicy: {suspend: true}\n",
            4,
            "spec.runPolicy.suspend: a suspended job has no pods; these are made once it is resumed",
        ),
        (
            "  scheduling: {gang: Volcano}\n",
            4,
            "spec.scheduling.gang: Volcano: this operator places pods one by one and fails the job; set None",
        ),
        (
            "  scheduling: {queueName: q}\n",
            4,
            "spec.scheduling.queueName: q: this operator places pods one by one and fails the job; leave it out",
        ),
        (
            "  managedBy: example.com/other\n",
            0,
            "spec.managedBy: example.com/other acts on this job; the operator leaves it alone",
        ),
    ],
)
def test_what_a_plan_does_not_show_is_noted(
    extra: str, kinds: int, note: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", _write(tmp_path / "job.yaml", MANIFEST + extra), "--format", "json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == f"rljob-operator: note: tiny: {note}\n"
    assert len(json.loads(captured.out)["items"]) == kinds


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        (
            MANIFEST.replace("totalFrames", "totalFrame"),
            [
                "job.yaml:7: spec.training.totalFrame: there is no such field; did you mean 'totalFrames'?",
                "job.yaml:5: spec.training.totalFrames: this field is missing; add it",
            ],
        ),
        (
            MANIFEST + "    network: {type: MLP, config: {hiddenSize: [1]}}\n",
            [
                "job.yaml:9: spec.training.network.config.hiddenSize: there is no such field; did you mean"
                " 'hiddenSizes'?"
            ],
        ),
        (
            MANIFEST + "  roles:\n  - name: t\n    type: Trainer\n    template:\n      spec:\n        hostname: x\n",
            ["job.yaml:14: spec.roles[0].template.spec.hostname: is set by the operator; remove it"],
        ),
        (
            f"{MANIFEST}---\n{MANIFEST}",
            [
                "job.yaml:12: metadata.name: two documents are called 'tiny' (the other begins at line 1); give each"
                " job a name of its own"
            ],
        ),
        (
            MANIFEST.replace("{name: tiny}", "{name: tiny, uid: x}"),
            ["job.yaml:3: metadata.uid: must be a uid (got 'x'); remove it"],
        ),
        ("", ["job.yaml: holds no manifest: it is empty; see examples/ for one to start with"]),
    ],
)
def test_wrong_manifest_is_refused_and_nothing_printed(
    text: str, errors: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", _write(Path("job.yaml"), text)]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [f"rljob-operator: error: {error}" for error in errors]


def test_namespace_that_contradicts_the_manifest_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _write(Path("job.yaml"), MANIFEST.replace("{name: tiny}", "{name: tiny, namespace: a}"))
    assert main(["plan", "job.yaml", "--namespace", "b"]) == 78
    assert capsys.readouterr().err == (
        "rljob-operator: error: job.yaml:3: metadata.namespace: the manifest is for another namespace than 'b'"
        " (got 'a'); give the same, or leave one out\n"
    )


@pytest.mark.parametrize("option", [["--uid", "x"], ["--namespace", "A"], ["--image", "a b"], ["--format", "xml"]])
def test_wrong_option_is_refused(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["plan", "job.yaml", *option])
    assert caught.value.code == 2
    assert f"argument {option[0]}: " in capsys.readouterr().err


def test_words_that_yaml_takes_for_more_are_quoted() -> None:
    words = ["y", "n", "on", "null", "~", "1e-3", "0o10", "1_000", "0x1F", "", " a", "a: b", "#", "2024-01-01", "1:30"]
    item = {"words": words, "text": "a\nb\n", "number": 3, "flag": True}
    text = to_yaml([item])
    assert load_documents(text, "x") == [item]
    assert list(yaml.safe_load_all(text)) == [item]
    assert "text: |\n  a\n  b\n" in text


def test_installed_command_prints_versions() -> None:
    command = Path(sys.executable).with_name("rljob-operator")
    done = subprocess.run([command, "version"], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == "rljob-operator 0.1.0"


def test_closed_pipe_ends_the_command_without_a_traceback(tmp_path: Path) -> None:
    file = _write(tmp_path / "job.yaml", MANIFEST)
    command = f"set -o pipefail; {sys.executable} -m rljob_operator.cli plan {file} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1)
