"""Lines of a pod's log as `rljob logs` shows them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from rlruntime.cli.cluster.log_lines import EVALUATION, FRAMES, RATE, REWARD, readable
from rlruntime.cli.cluster.log_streams import LogLine, parse
from rlruntime.metrics import names

WRITTEN = (names.FRAMES, names.TIME_FRAMES_PER_SECOND, names.EPISODE_REWARD_MEAN, names.EVALUATION_REWARD_MEAN)
FIELDS = {"job": "ppo", "namespace": "team-a", "role": "trainer", "index": 0, "attempt": 1}


def line(**fields: object) -> str:
    return json.dumps({**FIELDS, **fields})


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain text", "plain text"),
        ("", ""),
        ('{"level": "info", "msg": "the user\'s own"}', '{"level": "info", "msg": "the user\'s own"}'),
        ('{"event": "message", "message": "of nobody"}', '{"event": "message", "message": "of nobody"}'),
        ('{"job": "cut off', '{"job": "cut off'),
        ("{" * 5000, "{" * 5000),
        (line(event="message", message="resumed at 2,048 frames"), "resumed at 2,048 frames"),
        (line(event="message", message="a\ntrainer-1 | b\x1b[2Jc"), "a trainer-1 | b [2Jc"),
        (line(event="end", message="reached 475", frames=40204), "ended: reached 475; 40,204 frames"),
        (line(event="end", message="", frames=None), "ended"),
        (line(event="later", message="?"), line(event="later", message="?")),
        (
            line(
                event="iteration",
                frames=40448,
                **{
                    "time/frames_per_second": 11216.2, "time/collect_s": 0.27, "time/collect/env_s": 0.2,
                    "time/learn_s": 0.6, "time/evaluate_s": 0.13, "time/sync_s": 0.0001, "time/elapsed_s": 4.0,
                    "train/episode_reward_mean": 288.1, "evaluation/reward_mean": 500.0, "loss/policy": None,
                },
            ),
            "40,448 / 100,000 frames (40%)  11.2k frames/s  reward 288.1  evaluation 500.0"
            "  collect 27% · learn 60% · evaluate 13%",
        ),
        (
            line(event="iteration", frames=20294, **{"evaluation/reward_mean": 442.6, "time/evaluate_s": 0.5}),
            "20,294 / 100,000 frames (20%)  evaluation 442.6",
        ),
        (line(event="iteration", frames="many"), ""),
    ],
)  # fmt: skip
def test_lines_of_the_runtime_become_words_and_others_stay(written: str, shown: str) -> None:
    assert readable(written, 100_000) == shown


def test_fields_are_read_as_they_are_written() -> None:
    assert (FRAMES, RATE, REWARD, EVALUATION) == WRITTEN


def test_frames_stand_alone_where_their_end_is_not_known() -> None:
    assert readable(line(event="iteration", frames=2048)) == "2,048 frames"


@pytest.mark.parametrize(
    ("raw", "parsed"),
    [
        (
            b"2026-05-04T14:02:11.123456789Z hello  there",
            LogLine(datetime(2026, 5, 4, 14, 2, 11, 123456, UTC), "2026-05-04T14:02:11.123456789Z", "hello  there"),
        ),
        (
            b"2026-05-04T16:02:11+02:00 \xff\r",
            LogLine(datetime(2026, 5, 4, 14, 2, 11, tzinfo=UTC), "2026-05-04T16:02:11+02:00", "\ufffd"),
        ),
    ],
)
def test_a_line_begins_with_its_time_in_whatever_zone_the_node_is(raw: bytes, parsed: LogLine) -> None:
    assert parse(raw) == parsed


def test_the_rest_of_a_line_that_was_cut_has_no_time_and_keeps_its_words() -> None:
    found = parse(b"and so on")
    assert (found.stamp, found.text) == ("", "and so on")
