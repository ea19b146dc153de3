"""What a trainer says of itself: the answer of /status, and the numbers in its last message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlruntime.spec.contract import TerminationMessage, TrainerReport, progress_percent
from rlruntime.spec.status import CheckpointStatus, ProgressStatus

REPORT = TrainerReport(
    uid="1b4e28ba",
    attempt=2,
    round=3,
    phase="Training",
    frames=1250,
    total_frames=5000,
    resumed_frames=400,
    reward=123.5,
    best_reward=200.0,
    frames_per_second=1000.0,
    remaining_seconds=4,
    checkpoint=CheckpointStatus(
        frames=1200, path="ppo-1/attempts/2/checkpoints/step-1200", time="2026-01-02T03:04:05Z"
    ),
)
DOCUMENT = {
    "uid": "1b4e28ba",
    "attempt": 2,
    "round": 3,
    "phase": "Training",
    "frames": 1250,
    "totalFrames": 5000,
    "resumedFrames": 400,
    "reward": 123.5,
    "bestReward": 200.0,
    "framesPerSecond": 1000.0,
    "remainingSeconds": 4,
    "checkpoint": {"frames": 1200, "path": "ppo-1/attempts/2/checkpoints/step-1200", "time": "2026-01-02T03:04:05Z"},
}


def test_report_is_written_with_the_names_of_the_status_and_read_back() -> None:
    assert REPORT.to_document() == DOCUMENT
    assert TrainerReport.from_text(json.dumps(DOCUMENT)) == REPORT


def test_fields_of_a_newer_trainer_are_left_out() -> None:
    newer = {**DOCUMENT, "gradientNoise": 3, "checkpoint": {**DOCUMENT["checkpoint"], "sizeBytes": 5}}  # type: ignore[dict-item]
    assert TrainerReport.from_text(json.dumps(newer).encode()) == REPORT


def test_report_of_a_trainer_that_has_nothing_to_say_yet() -> None:
    report = TrainerReport(uid="u", attempt=0)
    assert report.to_document() == {"uid": "u", "attempt": 0, "round": 0, "phase": "Starting"}


@pytest.mark.parametrize(
    "text",
    [
        "", "ok", "[]", "{}", '{"uid": "u"}', '{"uid": "u", "attempt": -1}',
        '{"uid": "u", "attempt": 0, "reward": NaN}',
        '{"uid": "u", "attempt": 0, "phase": "' + "x" * 20_000 + '"}', "[" * 5000,
    ],
)  # fmt: skip
def test_answer_that_is_no_report_is_none(text: str) -> None:
    assert TrainerReport.from_text(text) is None


def test_progress_of_the_status_is_made_of_it() -> None:
    assert REPORT.to_progress("2026-01-02T03:04:06Z") == ProgressStatus(
        frames=1250, total_frames=5000, percent=25, reward=123.5, best_reward=200.0, frames_per_second=1000.0,
        remaining_seconds=4, update_time="2026-01-02T03:04:06Z",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("frames", "total", "percent"),
    [(0, 100, 0), (99, 100, 99), (999, 1000, 99), (100, 100, 100), (120, 100, 100), (None, 100, None), (5, None, None)],
)
def test_percent_is_whole_and_says_100_only_at_the_end(frames: Any, total: Any, percent: Any) -> None:
    assert progress_percent(frames, total) == percent


def test_last_message_carries_the_report() -> None:
    text = TerminationMessage("Succeeded", "done", REPORT).to_text()
    assert json.loads(text) == {"reason": "Succeeded", "message": "done", "report": DOCUMENT}
    assert TerminationMessage.from_text(text) == TerminationMessage("Succeeded", "done", REPORT)


def test_last_message_of_an_older_trainer_and_one_with_a_broken_report_are_read_without_it() -> None:
    assert TerminationMessage.from_text('{"reason": "a", "message": "b"}') == TerminationMessage("a", "b")
    assert TerminationMessage.from_text('{"reason": "a", "message": "b", "report": 3}') == TerminationMessage("a", "b")


def test_long_message_is_cut_so_that_the_report_has_room() -> None:
    text = TerminationMessage("RLJobError", "\u00e9" * 5000, REPORT).to_text()
    assert 4080 < len(text.encode()) <= 4096
    read = TerminationMessage.from_text(text)
    assert read is not None
    assert read.report == REPORT


def test_report_that_takes_too_much_room_is_left_out() -> None:
    long = TrainerReport(uid="u", attempt=0, checkpoint=CheckpointStatus(path="\u00e9" * 1024))
    read = TerminationMessage.from_text(TerminationMessage("a", "b", long).to_text())
    assert read == TerminationMessage("a", "b")
