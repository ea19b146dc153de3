from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from rlruntime.attempts import find_run
from rlruntime.errors import CheckpointError, StorageError
from rlruntime.trainers.checkpoint import CheckpointInfo, CheckpointStore, read_checkpoint
from rlruntime.trainers.fence import Attempt, Fenced, Takeover, find_completed, read_end

PROGRAM = Path(__file__).parent / "programs" / "attempts_until_killed.py"


def save(attempt: Attempt, frames: int, keep: int = 3) -> Path:
    """Write a checkpoint as the trainer of an attempt does."""
    store = CheckpointStore(attempt.folder / "checkpoints", keep, require_writable=attempt.require_held)
    state = {"weights": torch.full((4,), float(frames)), "writer": attempt.number}
    return store.write(state, CheckpointInfo(frames, iteration=frames // 10, resume_class="exact"))


def begun(job: Path, number: int) -> Attempt:
    """Return an attempt that has taken over."""
    attempt = Attempt(job, number)
    attempt.take_over()
    return attempt


def writer_of(found: Takeover) -> tuple[str, int]:
    """Return the name of what was taken over, and who wrote it."""
    assert found.checkpoint is not None
    return found.checkpoint.name, read_checkpoint(found.checkpoint).state["writer"]


def test_first_attempt_finds_nothing_and_its_folder_becomes_the_run(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path / "job", 0, owner={"pod": "trainer-0"})
    assert find_run(tmp_path / "job") == tmp_path / "job"
    assert attempt.take_over() == Takeover()
    assert find_run(tmp_path / "job") == tmp_path / "job/attempts/0"
    assert json.loads((attempt.folder / "owner.json").read_text())["pod"] == "trainer-0"


def test_successor_goes_on_from_a_copy_of_the_newest_checkpoint_with_what_lies_beside_it(tmp_path: Path) -> None:
    first = begun(tmp_path, 0)
    for frames in (100, 200):
        save(first, frames)
    (first.folder / "metrics.jsonl").write_text('{"frames": 100}\n')
    (first.folder / "tensorboard").mkdir()
    (first.folder / "tensorboard/events").write_bytes(b"events")
    (first.folder / "result.json").write_text("{}")
    second = Attempt(tmp_path, 1)
    found = second.take_over()
    assert found.checkpoint == tmp_path / "attempts/1/checkpoints/step-200"
    assert writer_of(found) == ("step-200", 0)
    assert sorted(path.name for path in second.folder.iterdir()) == [
        "checkpoints", "metrics.jsonl", "owner.json", "takeover.json", "tensorboard",
    ]  # fmt: skip
    assert (second.folder / "tensorboard/events").read_bytes() == b"events"
    assert find_run(tmp_path) == second.folder


def test_what_the_old_attempt_does_after_the_takeover_never_counts(tmp_path: Path) -> None:
    old = begun(tmp_path, 0)
    save(old, 100)
    new = begun(tmp_path, 1)
    with pytest.raises(Fenced, match=r"^attempt 0 was ended by attempt 1; it writes nothing more$"):
        save(old, 200)
    # It passed its check just before the takeover, and commits only now.
    store = CheckpointStore(old.folder / "checkpoints")
    store.write({"writer": 0}, CheckpointInfo(300, iteration=30, resume_class="exact"))
    with pytest.raises(Fenced):
        old.complete({"result": "old"})
    (old.folder / "metrics.jsonl").write_text("late\n")
    assert not (new.folder / "metrics.jsonl").exists()
    third = Attempt(tmp_path, 2)
    assert writer_of(third.take_over()) == ("step-100", 0)
    assert find_completed(tmp_path, 2) is None


def test_late_commit_does_not_count_either_where_the_taker_died_before_it_had_taken_over(tmp_path: Path) -> None:
    old = begun(tmp_path, 0)
    save(old, 100)
    died = begun(tmp_path, 1)
    (died.folder / "takeover.json").unlink()  # as if it had been killed before its last step
    CheckpointStore(old.folder / "checkpoints").write(
        {"writer": 0}, CheckpointInfo(300, iteration=30, resume_class="exact")
    )
    assert writer_of(Attempt(tmp_path, 2).take_over()) == ("step-100", 0)


def test_checkpoint_is_found_where_the_old_attempt_has_pruned_it_meanwhile(tmp_path: Path) -> None:
    old = begun(tmp_path, 0)
    save(old, 100)
    died = begun(tmp_path, 1)
    (died.folder / "takeover.json").unlink()
    store = CheckpointStore(old.folder / "checkpoints", keep=1)
    store.write({"writer": 0}, CheckpointInfo(300, iteration=30, resume_class="exact"))
    assert not (old.folder / "checkpoints/step-100").exists()
    assert writer_of(Attempt(tmp_path, 2).take_over()) == ("step-100", 0)


def test_attempts_that_die_one_after_the_other_before_their_first_checkpoint_lose_nothing(tmp_path: Path) -> None:
    save(begun(tmp_path, 0), 100)
    for number in (1, 2, 3):
        begun(tmp_path, number)
    Attempt(tmp_path, 4)  # this one dies before it takes over
    found = Attempt(tmp_path, 5).take_over()
    assert writer_of(found) == ("step-100", 0)
    assert found.source == 3


def test_successor_of_one_that_had_saved_nothing_begins_anew(tmp_path: Path) -> None:
    begun(tmp_path, 0)
    assert Attempt(tmp_path, 1).take_over() == Takeover()


def test_attempt_that_finishes_its_takeover_too_late_hides_nothing(tmp_path: Path) -> None:
    save(begun(tmp_path, 0), 100)
    slow = Attempt(tmp_path, 1)
    Attempt(tmp_path, 2).take_over()
    (tmp_path / "attempts/2/takeover.json").unlink()  # killed before its last step
    (slow.folder / "takeover.json").write_text("{}")  # its check was before it was ended, its last step after
    assert writer_of(Attempt(tmp_path, 3).take_over()) == ("step-100", 0)


def test_each_number_is_used_once(tmp_path: Path) -> None:
    Attempt(tmp_path, 3)
    with pytest.raises(Fenced, match=r"^attempt 3 has begun before, in .*attempts/3; each number is used once$"):
        Attempt(tmp_path, 3)


def test_attempt_that_starts_after_a_newer_one_is_refused(tmp_path: Path) -> None:
    begun(tmp_path, 2)
    with pytest.raises(Fenced, match=r"^attempt 1 was ended by attempt 2; it writes nothing more$"):
        Attempt(tmp_path, 1)


def test_newest_checkpoint_that_is_whole_is_taken(tmp_path: Path) -> None:
    first = begun(tmp_path, 0)
    for frames in (100, 200, 300):
        save(first, frames)
    (first.folder / "checkpoints/step-300/tensors.safetensors").write_bytes(b"cut")
    (first.folder / "checkpoints/step-200/tensors.safetensors").unlink()
    second = Attempt(tmp_path, 1)
    assert writer_of(second.take_over()) == ("step-100", 0)
    assert sorted(path.name for path in (second.folder / "checkpoints").iterdir()) == ["latest", "step-100"]


def test_damage_of_every_checkpoint_is_said_and_ends_nobody(tmp_path: Path) -> None:
    first = begun(tmp_path, 0)
    save(first, 100)
    (first.folder / "checkpoints/step-100/manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"step-100 is damaged: manifest\.json is not JSON"):
        Attempt(tmp_path, 1).take_over()
    assert read_end(tmp_path, 0) is None


def test_finished_job_is_reported_to_every_later_attempt(tmp_path: Path) -> None:
    begun(tmp_path, 0)
    begun(tmp_path, 1).complete({"result": {"frames": 5}})
    for up_to in (1, 2, 9):
        end = find_completed(tmp_path, up_to)
        assert end is not None
        assert (end.attempt, end.record) == (1, {"result": {"frames": 5}})
    assert find_completed(tmp_path, 0) is None


def test_job_that_is_finished_during_the_takeover_is_finished(tmp_path: Path) -> None:
    old = begun(tmp_path, 0)
    new = Attempt(tmp_path, 1)
    old.complete({"result": 1})
    found = new.take_over()
    assert found.completed is not None
    assert found.completed.record == {"result": 1}
    assert find_run(tmp_path) == old.folder


def test_older_checkpoints_go_once_the_newest_attempt_has_its_own(tmp_path: Path) -> None:
    first = begun(tmp_path, 0)
    save(first, 100)
    (first.folder / "policy").mkdir()
    (first.folder / "result.json").write_text("{}")
    second = begun(tmp_path, 1)
    save(second, 200)
    second.remove_superseded()
    assert sorted(path.name for path in first.folder.iterdir()) == ["owner.json", "result.json", "takeover.json"]
    assert read_checkpoint(second.folder / "checkpoints/step-100").state["writer"] == 0  # the copy is whole


def test_look_that_is_young_enough_is_not_repeated(tmp_path: Path) -> None:
    now_s = 100.0
    attempt = Attempt(tmp_path, 0, clock=lambda: now_s)
    attempt.take_over()
    begun(tmp_path, 1)
    attempt.require_held(max_age_s=1.0)
    now_s = 101.5
    with pytest.raises(Fenced):
        attempt.require_held(max_age_s=1.0)
    now_s = 101.6
    with pytest.raises(Fenced):
        attempt.require_held(max_age_s=1.0)


def test_of_attempts_that_take_over_at_once_exactly_the_newest_goes_on(tmp_path: Path) -> None:
    save(begun(tmp_path, 0), 100)
    barrier = threading.Barrier(6)
    outcomes: dict[int, Takeover | Fenced] = {}

    def take(number: int) -> None:
        barrier.wait(30)
        try:
            attempt = Attempt(tmp_path, number)
            outcomes[number] = attempt.take_over()
            attempt.require_held()
        except Fenced as fenced:
            outcomes[number] = fenced

    threads = [threading.Thread(target=take, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    newest = outcomes[6]
    assert isinstance(newest, Takeover)
    assert writer_of(newest) == ("step-100", 0)
    for number in range(1, 6):
        with pytest.raises(Fenced):
            Attempt(tmp_path, number)
    assert writer_of(Attempt(tmp_path, 7).take_over()) == ("step-100", 0)


def test_record_that_can_not_be_read_is_said_with_its_path(tmp_path: Path) -> None:
    begun(tmp_path, 0)
    (tmp_path / "fence/0").mkdir()
    (tmp_path / "fence/0/end.json").write_text("{")
    with pytest.raises(StorageError, match=r"fence/0/end\.json is damaged; remove the job's folder to begin anew$"):
        Attempt(tmp_path, 1).take_over()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_storage_that_can_not_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match=r"^cannot make the job's folder .*: Permission denied; "):
        Attempt(tmp_path / "job", 0)


def test_storage_root_that_is_a_file_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"^cannot make the job's folder .*file/job: Not a directory; "):
        Attempt(tmp_path / "file/job", 0)


def test_attempts_killed_at_any_moment_lose_no_checkpoint_that_was_committed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path / "job"), "40"],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("40 attempts, ")
