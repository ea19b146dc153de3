from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rlruntime.errors import CheckpointError, ConfigError, StorageError
from rlruntime.spec.loader import load_documents
from rlruntime.trainers.run_folder import RunFolder, dump_yaml

HOLD = """
import sys, time
from pathlib import Path
from rlruntime.trainers.run_folder import RunFolder
folder = RunFolder.create(Path(sys.argv[1]))
folder.write_manifest({"kind": "RLJob"})
print("ready", flush=True)
time.sleep(60)
"""

FORK = """
import os, signal, sys, time
from pathlib import Path
from rlruntime.trainers.run_folder import RunFolder
run = RunFolder.create(Path(sys.argv[1]), resume=True)
ready, done = os.pipe()
child = os.fork()
if child == 0:
    os.write(done, b"x")
    time.sleep(30)
    os._exit(0)
try:
    os.read(ready, 1)
    run.close()
    RunFolder.create(Path(sys.argv[1]), resume=True).close()
    print("locked again")
finally:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def message_of(kind: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


def new_run(path: Path) -> None:
    with RunFolder.create(path) as run:
        run.write_manifest({"kind": "RLJob"})


def test_new_folder_has_the_paths_of_a_run(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "deep" / "run") as run:
        assert run.path.is_dir()
        relative = [
            str(path.relative_to(run.path))
            for path in (run.manifest, run.metrics, run.curves, run.result, run.checkpoints, run.policy)
        ]
        assert relative == ["manifest.yaml", "metrics.jsonl", "curves.png", "result.json", "checkpoints", "policy"]


def test_folder_that_holds_a_run_is_refused_unless_it_is_resumed(tmp_path: Path) -> None:
    new_run(tmp_path)
    assert message_of(ConfigError, lambda: RunFolder.create(tmp_path)) == (
        f"the folder {tmp_path} already holds a run; add --resume to go on with it, or choose another folder with --out"
    )
    RunFolder.create(tmp_path, resume=True).close()


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json", "checkpoints"])
def test_any_part_of_a_run_keeps_another_from_starting_there(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    assert "already holds a run" in message_of(ConfigError, lambda: RunFolder.create(tmp_path))


def test_folder_with_files_of_other_kinds_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    new_run(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_resume_without_a_run_is_refused_and_makes_no_folder(tmp_path: Path) -> None:
    assert message_of(ConfigError, lambda: RunFolder.create(tmp_path / "run", resume=True)) == (
        f"the folder {tmp_path}/run holds no run to resume; leave --resume out, or give the run's folder with --out"
    )
    assert not (tmp_path / "run").exists()


def test_folder_to_read_must_be_a_run(tmp_path: Path) -> None:
    assert "is not a run folder" in message_of(ConfigError, lambda: RunFolder.open(tmp_path))
    assert "does not exist" in message_of(ConfigError, lambda: RunFolder.open(tmp_path / "absent"))
    new_run(tmp_path)
    assert RunFolder.open(tmp_path).path == tmp_path


def test_second_process_is_refused_with_the_pid_of_the_first_until_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        for resume in (True, False):
            assert message_of(ConfigError, partial(RunFolder.create, path, resume=resume)) == (
                f"another process (pid {holder.pid}) is training into {path}; "
                "wait for it, stop it, or choose another folder with --out"
            )
        RunFolder.open(path)
    finally:
        holder.kill()
        holder.communicate(timeout=10)
    RunFolder.create(path, resume=True).close()


def test_second_use_within_one_process_is_refused_too(tmp_path: Path) -> None:
    new_run(tmp_path)
    with RunFolder.create(tmp_path, resume=True):
        assert "another process" in message_of(ConfigError, lambda: RunFolder.create(tmp_path, resume=True))


def test_forked_child_that_outlives_the_run_does_not_keep_its_lock(tmp_path: Path) -> None:
    new_run(tmp_path)
    command = [sys.executable, "-c", FORK, str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (finished.returncode, finished.stdout) == (0, "locked again\n"), finished.stderr


def test_next_folder_takes_the_number_after_the_highest(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    with RunFolder.create_next(root, "ppo") as first:
        assert first.path == root / "ppo-1"
    (root / "ppo-9").mkdir()
    (root / "ppo-x").mkdir()
    (root / "sac-30").mkdir()
    with RunFolder.create_next(root, "ppo") as next_one:
        assert next_one.path == root / "ppo-10"


def test_file_in_the_way_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    expected = f"cannot make the run folder {tmp_path}/file/run: {os.strerror(errno.ENOTDIR)}; "
    assert message_of(StorageError, lambda: RunFolder.create(tmp_path / "file" / "run")).startswith(expected)


def test_result_is_written_in_one_step_and_read_back(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path) as run:
        assert run.read_result() is None
        run.write_result({"reward": 1.5, "best": float("inf"), "stopped": None})
        assert run.read_result() == {"reward": 1.5, "best": None, "stopped": None}
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "result.json"]
        run.result.write_text("{")
        assert message_of(ConfigError, run.read_result).endswith("; remove it")


def test_metrics_are_cut_to_the_records_that_a_checkpoint_knows(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path) as run:
        run.truncate_metrics(3)
        assert not run.metrics.exists()
        lines = [json.dumps({"iteration": n, "x": n / 7}).encode() + b"\n" for n in range(1, 6)]
        run.metrics.write_bytes(b"".join(lines) + b'{"iteration": 6, "x"')
        run.truncate_metrics(5)
        assert run.metrics.read_bytes() == b"".join(lines)
        run.truncate_metrics(2)
        assert run.metrics.read_bytes() == lines[0] + lines[1]
        assert message_of(CheckpointError, lambda: run.truncate_metrics(3)) == (
            f"{run.metrics} has 2 records, but the checkpoint was written after 3; "
            "remove the file to resume without its history"
        )
        run.truncate_metrics(0)
        assert run.metrics.read_bytes() == b""


MANIFEST = {
    "apiVersion": "rljob.io/v1alpha1",
    "kind": "RLJob",
    "metadata": {
        "name": "ppo-cartpole",
        "labels": {"a": "1e-3", "b": "yes", "c": "0o10", "d": "", "e": "null", "f": "1_0"},
    },
    "spec": {
        "training": {
            "env": {"id": "CartPole-v1", "kwargs": {"text": "two\nlines: #\n", "colon": "a: b", "unicode": "ü ☃"}},
            "ppo": {"learningRate": 1e-3, "adamEpsilon": 1e-05, "gamma": 0.98, "huge": 1e22, "whole": 2.0},
            "network": {"type": "my.module:Net", "config": {"hiddenSizes": [64, 64], "shared": False, "none": None}},
            "empty": {},
            "list": [],
            "nested": [[1, 2], [{"a": 1}]],
        }
    },
}


def test_manifest_reads_back_equal_by_the_projects_loader_and_by_yaml_1_1(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path) as run:
        run.write_manifest(MANIFEST)
        text = run.manifest.read_text()
    assert load_documents(text, "manifest.yaml") == [MANIFEST]
    assert yaml.safe_load(text) == MANIFEST
    assert "  name: ppo-cartpole\n" in text
    assert "        id: CartPole-v1\n" in text or "      id: CartPole-v1\n" in text


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(-1e15, 1e15)  # larger whole ones become integers, as kubectl makes them
    | st.text("aeyn01.-+:#&*!|>%@`'\"{}[], \n\tü☃", max_size=12)
    | st.sampled_from(
        ["1e-3", "1e6", "0o10", "0x1F", "y", "NO", "~", "-", "=", "<<", "2020-01-01", "1:30", ".5", "+1", "!a"]
    )
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text("abcdefgXYZ019._-", min_size=1, max_size=6),
        st.recursive(
            SCALARS, lambda node: st.lists(node, max_size=3) | st.dictionaries(st.text("abyn1.", min_size=1), node)
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_document_reads_back_equal(document: dict[str, Any]) -> None:
    assert load_documents(dump_yaml(document), "x") == [document]


def test_a_manifest_that_no_run_wrote_is_neither_overwritten_nor_resumed(tmp_path: Path) -> None:
    own = tmp_path / "manifest.yaml"
    own.write_text("# mine\n")
    with pytest.raises(ConfigError, match=r"holds a manifest\.yaml that no run wrote; choose another folder"):
        RunFolder.create(tmp_path)
    with pytest.raises(ConfigError, match="holds no run to resume"):
        RunFolder.create(tmp_path, resume=True)
    assert own.read_text() == "# mine\n"
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.yaml"]


def test_a_run_that_never_began_leaves_its_folder_free(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    folder.write_manifest({"kind": "RLJob"})
    folder.checkpoints.mkdir()
    folder.discard()
    folder.close()
    assert not (tmp_path / "run").exists()
    folder = RunFolder.create(tmp_path / "run")
    (folder.checkpoints / "step-0").mkdir(parents=True)
    folder.discard()
    assert (folder.checkpoints / "step-0").is_dir()
    folder.close()
