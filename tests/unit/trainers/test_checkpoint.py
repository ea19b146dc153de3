from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import rlruntime
from rlruntime.errors import CheckpointError, StorageError
from rlruntime.trainers.checkpoint import (
    CheckpointInfo,
    CheckpointStore,
    ComponentRecord,
    find_checkpoint,
    fingerprint_differences,
    latest_checkpoint,
    list_checkpoints,
    migrate,
    read_checkpoint,
    read_info,
    require_same_components,
)

KILL_PROGRAM = Path(__file__).parent / "programs" / "write_until_killed.py"
FORMAT_1 = Path(__file__).parents[2] / "fixtures" / "checkpoints" / "format-1" / "step-2048"
STATE = {"policy": {"weight": torch.arange(6.0).reshape(2, 3)}, "environments": [b"one", b"two"], "iteration": 4}
MLP = ComponentRecord("MLP", "torch.nn:Linear", {"hiddenSizes": [64, 64]})


def info(frames: int, **overrides: Any) -> CheckpointInfo:
    values: dict[str, Any] = {"iteration": frames // 512, "resume_class": "exact", **overrides}
    return CheckpointInfo(frames, **values)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def message_of(kind: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A checkpoint to damage."""
    return CheckpointStore(tmp_path).write(STATE, info(1024))


def test_checkpoint_comes_back_whole_with_what_it_says_of_itself(tmp_path: Path) -> None:
    about = info(2048, components={"policy.network": MLP}, fingerprint={"torch": "2.13.0", "threads": 1})
    path = CheckpointStore(tmp_path).write(STATE, about)
    assert path == tmp_path / "step-2048"
    checkpoint = read_checkpoint(path)
    assert checkpoint.info == about
    assert checkpoint.info.created_by == f"rljob {rlruntime.__version__}"
    assert checkpoint.state["policy"]["weight"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert checkpoint.state["environments"] == [b"one", b"two"]
    assert read_info(path) == about
    assert names(path) == ["environments.bin", "manifest.json", "state.json", "tensors.safetensors"]


def test_opaque_environment_snapshots_of_another_run_are_not_read(written: Path) -> None:
    (written / "environments.bin").unlink()
    assert read_checkpoint(written, own_run=False).state["environments"] == [None, None]


def test_oldest_checkpoints_go_and_latest_names_the_newest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for frames in (512, 1024, 8, 20_000):
        store.write(STATE, info(frames))
    assert names(tmp_path) == ["latest", "step-1024", "step-20000"]
    assert (tmp_path / "latest").read_text() == "step-20000\n"
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-1024", "step-20000"]
    assert store.latest() == tmp_path / "step-20000"


def test_latest_is_kept_though_older_runs_left_ones_with_more_frames(tmp_path: Path) -> None:
    CheckpointStore(tmp_path, keep=3).write(STATE, info(9000))
    CheckpointStore(tmp_path, keep=1).write(STATE, info(100))
    assert latest_checkpoint(tmp_path) == tmp_path / "step-100"


def test_rewind_makes_an_older_checkpoint_the_latest_and_removes_the_later_ones(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=9)
    for frames in (100, 200, 300):
        store.write(STATE, info(frames))
    store.rewind(tmp_path / "step-200")
    assert names(tmp_path) == ["latest", "step-100", "step-200"]
    assert store.latest() == tmp_path / "step-200"


def test_same_frames_again_replace_the_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.write({"a": 1}, info(100))
    assert read_checkpoint(store.write({"a": 2}, info(100))).state == {"a": 2}
    assert names(tmp_path) == ["latest", "step-100"]


def test_newest_complete_folder_is_the_latest_when_the_pointer_is_lost(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for frames in (100, 2000):
        store.write(STATE, info(frames))
    (tmp_path / "latest").write_text("step-777\n")
    assert latest_checkpoint(tmp_path) == tmp_path / "step-2000"
    (tmp_path / "latest").unlink()
    assert latest_checkpoint(tmp_path) == tmp_path / "step-2000"
    assert latest_checkpoint(tmp_path / "absent") is None


def test_opening_a_store_removes_what_killed_writers_left_and_brings_back_what_stepped_aside(tmp_path: Path) -> None:
    CheckpointStore(tmp_path).write(STATE, info(100))
    (tmp_path / "step-100").rename(tmp_path / ".replaced-step-100")
    for leftover in (".writing-step-200", ".trash-step-50"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "state.json").write_text("{")
    CheckpointStore(tmp_path)
    assert names(tmp_path) == ["latest", "step-100"]
    assert read_checkpoint(tmp_path / "step-100").state["iteration"] == 4


def test_checkpoint_is_found_from_a_run_folder_a_checkpoint_folder_and_itself(tmp_path: Path) -> None:
    path = CheckpointStore(tmp_path / "checkpoints").write(STATE, info(100))
    assert find_checkpoint(tmp_path) == find_checkpoint(tmp_path / "checkpoints") == find_checkpoint(path) == path
    assert "holds no checkpoint" in message_of(CheckpointError, lambda: find_checkpoint(path.parents[2]))
    assert "does not exist" in message_of(CheckpointError, lambda: find_checkpoint(tmp_path / "absent"))


@pytest.mark.parametrize("mode", ["fresh", "same"])
def test_sigkill_at_random_moments_never_costs_the_previous_checkpoint(mode: str, tmp_path: Path) -> None:
    command = [sys.executable, str(KILL_PROGRAM), str(tmp_path / "checkpoints"), "14", "1", mode]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)
    assert finished.returncode == 0, finished.stderr
    summary = json.loads(finished.stdout)
    assert summary["commits"] > 0
    assert summary["rounds_with_leftovers"] > 0, "no kill hit a writer at work"
    assert summary["hidden_at_the_end"] == []


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """Every write beyond the size fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write anywhere; nobody may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_full_disk_is_one_line_and_the_previous_checkpoint_stays(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.write(STATE, info(100))
    with files_of_at_most(20_000):
        message = message_of(StorageError, lambda: store.write({"big": torch.zeros(10_000)}, info(200)))
    assert message == (
        f"cannot write the checkpoint {tmp_path}/step-200: {os.strerror(errno.EFBIG)}; "
        "free space there, or choose another folder"
    )
    assert names(tmp_path) == ["latest", "step-100"]
    assert read_checkpoint(tmp_path / "step-100").state["iteration"] == 4
    store.write(STATE, info(200))
    assert store.latest() == tmp_path / "step-200"


def test_folder_without_permission_is_one_line() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        store = CheckpointStore(folder)
        folder.chmod(0o555)
        with without_privileges():
            message = message_of(StorageError, lambda: store.write(STATE, info(1)))
        assert message.startswith(f"cannot write the checkpoint {folder}/step-1: Permission denied; ")
        assert message.endswith("; choose a folder that you may write")
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_file_in_the_way_of_the_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("not a folder")
    message = message_of(StorageError, lambda: CheckpointStore(tmp_path / "checkpoints"))
    assert message.endswith("remove what stands in its way, or choose another folder")


def test_second_thread_waits_for_the_first_and_no_longer_than_it_is_told(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    began, go_on = threading.Event(), threading.Event()

    class Slow(dict[str, Any]):
        def items(self) -> Any:
            began.set()
            assert go_on.wait(20)
            return super().items()

    writer = threading.Thread(target=store.write, args=(Slow(a=1), info(100)))
    writer.start()
    assert began.wait(20)
    assert "another one is being written" in message_of(StorageError, lambda: store.write({}, info(200), wait_s=0.05))
    go_on.set()
    writer.join(20)
    store.write({"a": 2}, info(200), wait_s=0.05)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-100", "step-200"]


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors", "environments.bin"])
def test_changed_byte_is_named_with_its_file_and_a_remedy(written: Path, name: str) -> None:
    content = bytearray((written / name).read_bytes())
    content[-2] ^= 1
    (written / name).write_bytes(content)
    assert message_of(CheckpointError, lambda: read_checkpoint(written)) == (
        f"the checkpoint {written} is damaged: {name} does not have the SHA-256 that manifest.json says; "
        "use another checkpoint, or train anew in another folder"
    )


def test_where_a_damaged_checkpoint_has_another_beside_it_the_remedy_is_how_to_go_on_from_that(written: Path) -> None:
    for name in ("step-90", "step-95"):
        shutil.copytree(written, written.parent / name)
    (written / "tensors.safetensors").unlink()
    assert message_of(CheckpointError, lambda: read_checkpoint(written)) == (
        f"the checkpoint {written} is damaged: tensors.safetensors is missing; go on from another one in a new folder: "
        f"--out NEW -o training.checkpoint.resumeFrom={written.parent}/step-95"
    )


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors", "environments.bin"])
def test_file_cut_short_and_file_missing_are_named(written: Path, name: str) -> None:
    content = (written / name).read_bytes()
    (written / name).write_bytes(content[:-3])
    expected = f"is damaged: {name} has {len(content) - 3} bytes instead of {len(content)}"
    assert expected in message_of(CheckpointError, lambda: read_checkpoint(written))
    (written / name).unlink()
    assert f"is damaged: {name} is missing" in message_of(CheckpointError, lambda: read_checkpoint(written))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"\xff", b'{"formatVersion": true}', b'{"formatVersion": 1}']
)
def test_manifest_that_is_not_whole_is_refused(written: Path, content: bytes) -> None:
    (written / "manifest.json").write_bytes(content)
    assert "is damaged: manifest.json " in message_of(CheckpointError, lambda: read_checkpoint(written))


def test_folder_without_a_manifest_is_no_checkpoint(written: Path) -> None:
    (written / "manifest.json").unlink()
    assert "is no checkpoint: it has no manifest.json" in message_of(CheckpointError, lambda: read_checkpoint(written))


def edit_manifest(path: Path, **changes: Any) -> None:
    document = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**document, **changes}))


def test_newer_format_says_who_wrote_it_and_to_upgrade(written: Path) -> None:
    edit_manifest(written, formatVersion=2, createdBy="rljob 9.1.0")
    expected = (
        f"the checkpoint {written} has format 2, written by rljob 9.1.0; "
        "this version reads formats up to 1; upgrade rljob"
    )
    assert message_of(CheckpointError, lambda: read_checkpoint(written)) == expected
    assert message_of(CheckpointError, lambda: read_info(written)) == expected


def test_unknown_class_of_a_resume_and_a_file_outside_the_folder_are_refused(written: Path) -> None:
    edit_manifest(written, resumeClass="perhaps")
    assert "resumeClass 'perhaps'" in message_of(CheckpointError, lambda: read_info(written))
    edit_manifest(written, files={"../../secret": {"sha256": "", "sizeBytes": 0}})
    assert "names the file '../../secret'" in message_of(CheckpointError, lambda: read_checkpoint(written))


def test_class_of_a_component_is_recorded_as_module_and_name() -> None:
    assert ComponentRecord.of("Linear", torch.nn.Linear(1, 1)).class_path == "torch.nn.modules.linear:Linear"
    assert ComponentRecord.of("b", Path).class_path == "pathlib:Path"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"policy.network": ComponentRecord("CNN", "torch.nn:Conv2d")}, "with policy.network MLP, this run has CNN;"),
        (
            {"policy.network": ComponentRecord("MLP", "torch.nn:Linear", {"hiddenSizes": [32]})},
            'with policy.network MLP {"hiddenSizes": [64, 64]}, this run has MLP {"hiddenSizes": [32]};',
        ),
        (
            {"policy.network": ComponentRecord("MLP", "mine:MLP", MLP.config)},
            "with policy.network MLP (torch.nn:Linear), this run has MLP (mine:MLP);",
        ),
        ({}, "with policy.network MLP, this run has none;"),
        ({"policy.network": MLP, "transforms[0]": MLP}, "with transforms[0] none, this run has MLP;"),
    ],
)
def test_other_components_are_named_with_both_sides(
    other: dict[str, ComponentRecord], words: str, tmp_path: Path
) -> None:
    path = CheckpointStore(tmp_path).write({}, info(1, components={"policy.network": MLP}))
    checkpoint = read_checkpoint(path)
    require_same_components(checkpoint, {"policy.network": MLP})
    message = message_of(CheckpointError, lambda: require_same_components(checkpoint, other))
    assert words in message
    assert message.endswith("resume with the manifest that wrote it, or train into a new folder")


def test_fingerprint_differences_are_listed() -> None:
    old, new = {"torch": "2.12", "threads": 1}, {"torch": "2.13", "threads": 1, "device": "cpu"}
    assert fingerprint_differences(old, new) == ["device: unset -> cpu", "torch: 2.12 -> 2.13"]
    assert fingerprint_differences(new, new) == []


def test_older_formats_migrate_one_version_at_a_time_and_unknown_ones_are_refused() -> None:
    table = {
        1: lambda manifest, state: ({**manifest, "resumeClass": "exact"}, {"b": state["a"]}),
        2: lambda manifest, state: (manifest, {"c": state["b"] + 1}),
    }
    assert migrate({"formatVersion": 1}, {"a": 1}, to=3, table=table) == (
        {"formatVersion": 3, "resumeClass": "exact"},
        {"c": 2},
    )
    message = message_of(CheckpointError, lambda: migrate({"formatVersion": 1}, {}, to=3, table={2: table[2]}))
    assert (
        message == "the checkpoint has format 1, which can't be read any more; use the version of rljob that wrote it"
    )


def test_frozen_checkpoint_of_format_1_is_read() -> None:
    checkpoint = read_checkpoint(FORMAT_1)
    assert checkpoint.info == CheckpointInfo(
        frames=2048,
        iteration=4,
        resume_class="exact",
        components={"policy.network": ComponentRecord("MLP", "torch.nn.modules.linear:Linear", {"hiddenSizes": [2]})},
        fingerprint={"device": "cpu", "threads": 1, "torch": "2.13.0"},
        created_by="rljob 0.1.0",
        format_version=1,
    )
    state = checkpoint.state
    assert state["policy"]["weight"].dtype == torch.float32
    assert state["policy"]["weight"].tolist() == [[0.5, -1.25], [3.0, 2.0**-100]]
    assert state["policy"]["steps"].tolist() == 7
    assert state["policy"]["half"].dtype == torch.bfloat16
    assert state["optimizer"][0]["seen"].tolist() == [True, False]
    assert state["random"]["state"]["state"] == 323726261719206589602543583274561722519
    assert state["moments"].dtype == "float64"
    assert state["moments"].tolist() == [1.0, 2.5]
    assert state["best"] == float("-inf")
    assert state["environments"] == [b"first", b"\x00\xff"]
    assert state["shape"] == (2, None, "x")
