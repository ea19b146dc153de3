"""The table of `rljob top`, as it stands on terminals of several widths and in a pipe."""

# ruff: noqa: E501 - the table stands here as it is shown

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from rlruntime.cli.cluster.frame import frame, notes_of
from rlruntime.cli.cluster.jobs import JobView, in_order
from rlruntime.cli.cluster.table import counts, plain, table, text_of

NOW = datetime(2026, 5, 4, 14, 2, 11, tzinfo=UTC)


def item(name: str = "ppo", age_s: float = 60, namespace: str = "team-a", **status: Any) -> dict[str, Any]:
    """Return a job as the API server gives it."""
    created = f"{NOW - timedelta(seconds=age_s):%Y-%m-%dT%H:%M:%SZ}"
    about = {"namespace": namespace, "name": name, "uid": name, "creationTimestamp": created}
    return {"metadata": about, "spec": {"training": {}}, "status": status}


def view(*arguments: Any, **status: Any) -> JobView:
    return JobView.of(item(*arguments, **status))


RUNNING = view(
    "ppo-cartpole",
    40,
    phase="Running",
    progress={
        "percent": 40, "frames": 40448, "totalFrames": 100000, "reward": 288.1234567, "framesPerSecond": 11216.2,
        "remainingSeconds": 65, "updateTime": "2026-05-04T14:02:06Z",
    },
)  # fmt: skip
PENDING = view("dqn", 7200, phase="Pending", reason="Unschedulable", message="0/3 nodes are available")
FAILED = view(
    "sac-pendulum-of-a-very-long-name-0001",
    90000,
    "team-with-a-long-name",
    phase="Failed",
    reason="BackoffLimitExceeded",
    progress={"percent": 83, "frames": 16600, "totalFrames": 20000, "reward": -412.7, "framesPerSecond": 99.0},
    restarts={"faults": 4, "disruptions": 1},
)
JOBS = [RUNNING, PENDING, FAILED]


def shown(width: int, jobs: list[JobView] = JOBS, **options: Any) -> list[str]:
    return [text_of(line) for line in table(jobs, NOW, width, **options)]


def test_eighty_columns_hold_what_matters() -> None:
    assert shown(80) == [
        "NAME             PHASE    REASON            PROGRESS     REWARD    FPS  RST  AGE",
        "ppo-cartpole     Running                    ██▍░░░  40%   288.1  11.2k    0  40s",
        "dqn              Pending  Unschedulable                                   0   2h",
        "sac-pen…me-0001  Failed   BackoffLimitExc…  ████▉░  83%  -412.7           5   1d",
    ]


def test_a_wide_terminal_holds_everything() -> None:
    assert shown(160, all_namespaces=True) == [
        "NAMESPACE              NAME                                   PHASE    REASON                PROGRESS                   FRAMES  REWARD    FPS  LEFT  RST  AGE",
        "team-a                 ppo-cartpole                           Running                        ████████░░░░░░░░░░░░  40%   40.4k   288.1  11.2k  1:05    0  40s",
        "team-a                 dqn                                    Pending  Unschedulable                                                                   0   2h",
        "team-with-a-long-name  sac-pendulum-of-a-very-long-name-0001  Failed   BackoffLimitExceeded  ████████████████▌░░░  83%   16.6k  -412.7                 5   1d",
    ]


@pytest.mark.parametrize("width", [1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 79, 80, 81, 100, 132, 200])
@pytest.mark.parametrize("all_namespaces", [False, True])
def test_no_line_is_wider_than_the_terminal(width: int, all_namespaces: bool) -> None:
    wide = view(
        "作業-ジョブ-ﾊﾛｰ-работа", phase="実行中です", reason="理由が長い理由が長い理由", progress={"percent": 7}
    )
    lines = table([*JOBS, wide], NOW, width, all_namespaces=all_namespaces)
    assert [line for line in map(text_of, lines) if cell_len(line) > width] == []
    assert len(lines) == 5


def test_a_narrow_terminal_still_names_jobs_by_both_their_ends() -> None:
    assert shown(40) == [
        "NAME          PHASE    PROGRESS   REWARD",
        "ppo-cartpole  Running  █▌░░  40%   288.1",
        "dqn           Pending",
        "sac-pe…-0001  Failed   ███▎  83%  -412.7",
    ]


def test_characters_two_cells_wide_keep_columns_in_line() -> None:
    jobs = [view("作業", phase="実行", progress={"percent": 7}), view("b", phase="Running", progress={"percent": 100})]
    assert shown(60, jobs) == [
        "NAME  PHASE    PROGRESS                REWARD  FPS  RST  AGE",
        "作業  実行     █▏░░░░░░░░░░░░░░░   7%                 0   1m",
        "b     Running  █████████████████ 100%                 0   1m",
    ]


def test_a_terminal_without_unicode_gets_bars_of_ascii() -> None:
    lines = shown(60, unicode=False)
    assert all(line.isascii() for line in lines)
    assert lines == [
        "NAME          PHASE    REASON         PROGRESS   REWARD  AGE",
        "ppo-cartpole  Running                 #...  40%   288.1  40s",
        "dqn           Pending  Unschedulable                      2h",
        "sac-pe~-0001  Failed   BackoffLimit~  ###.  83%  -412.7   1d",
    ]


def test_a_pipe_gets_every_value_in_full_and_a_dash_for_what_is_not_known() -> None:
    assert plain(JOBS, NOW) == [
        "NAMESPACE               NAME                                    PHASE     REASON                 PERCENT   FRAMES   TOTAL    REWARD    FPS       RESTARTS   AGE",
        "team-a                  ppo-cartpole                            Running   -                      40        40448    100000   288.123   11216.2   0          40s",
        "team-a                  dqn                                     Pending   Unschedulable          -         -        -        -         -         0          2h",
        "team-with-a-long-name   sac-pendulum-of-a-very-long-name-0001   Failed    BackoffLimitExceeded   83        16600    20000    -412.7    -         5          1d",
    ]


def test_a_pipe_gets_the_same_columns_whatever_there_is() -> None:
    assert plain([], NOW) == [
        "NAMESPACE   NAME   PHASE   REASON   PERCENT   FRAMES   TOTAL   REWARD   FPS   RESTARTS   AGE"
    ]
    assert {len(line.split()) for line in plain([*JOBS, view("new")], NOW)} == {11}


def test_what_a_status_says_cannot_move_the_cursor() -> None:
    sly = view("sly", phase="Running\x1b[2J", reason="\x07bell\u202e", progress={"percent": 5})
    for lines in (plain([sly], NOW), shown(120, [sly])):
        assert all(line.isprintable() for line in lines)
    assert (sly.phase, sly.reason) == ("Running?[2J", "?bell?")


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"phase": None, "progress": None, "conditions": None},
        {"progress": {"percent": "much", "reward": True, "updateTime": "yesterday"}, "restarts": []},
        {"conditions": ["?", {}], "checkpoint": 3},
    ],
)
def test_a_status_that_another_version_wrote_is_shown_as_far_as_it_goes(status: dict[str, Any]) -> None:
    assert shown(80, [view("odd", **status)])[1].split() == ["odd", "-", "0", "1m"]


def test_an_ended_job_has_no_rate_and_nothing_left() -> None:
    assert (FAILED.frames_per_second, FAILED.remaining_seconds) == (None, None)


def test_jobs_that_run_come_first_then_those_that_wait_are_suspended_have_ended_the_newest_of_each() -> None:
    old, new = view("old", 500, phase="Restarting"), view("new", 1)
    suspended = view("suspended", 1, phase="Suspended")
    assert [job.name for job in in_order([FAILED, suspended, old, PENDING, new, RUNNING])] == [
        "ppo-cartpole", "old", "new", "dqn", "suspended", "sac-pendulum-of-a-very-long-name-0001",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "first", "last"),
    [
        ("name", "dqn", "sac"),
        ("age", "ppo", "sac"),
        ("phase", "sac", "ppo"),
        ("progress", "sac", "dqn"),
        ("reward", "ppo", "dqn"),
        ("frames", "ppo", "dqn"),
        ("fps", "ppo", "sac"),
        ("restarts", "sac", "ppo"),
    ],
)
def test_sorting_puts_what_is_not_known_last(key: str, first: str, last: str) -> None:
    named = [JobView(**{**vars_of(job), "namespace": "one"}) for job in JOBS]
    ordered = [job.name[:3] for job in in_order(named, key)]
    assert (ordered[0], ordered[-1]) == (first, last)


def vars_of(job: JobView) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__dataclass_fields__}


def test_reversed_numbers_begin_with_the_smallest_and_still_end_with_what_is_not_known() -> None:
    assert [job.name[:3] for job in in_order(JOBS, "reward", reverse=True)] == ["sac", "ppo", "dqn"]


def test_counts_name_phases_in_a_fixed_order() -> None:
    assert counts([PENDING, FAILED, RUNNING, view("new")]) == "4 jobs, 1 Running, 1 Pending, 1 Failed, 1 not seen yet"
    assert counts([RUNNING]) == "1 job, 1 Running"
    assert counts([]) == "no jobs"


def test_a_frame_is_lower_than_the_terminal_and_counts_what_has_no_room() -> None:
    many = [view(f"job-{number:02}", phase="Running") for number in range(30)]
    lines = [text_of(line) for line in frame(many, NOW, 80, 10, place="namespace team-a")]
    assert len(lines) == 9
    assert lines[0] == "namespace team-a, 14:02:11: 30 jobs, 30 Running"
    assert lines[-1] == "and 24 more"


@pytest.mark.parametrize("height", range(4, 12))
@pytest.mark.parametrize("number", [0, 1, 5, 6, 7, 8, 9, 30])
def test_no_frame_scrolls(height: int, number: int) -> None:
    jobs = [view(f"job-{position}", 100) for position in range(number)]
    lines = frame(jobs, NOW, 80, height, place="here", trouble="the API server can't be reached")
    assert len(lines) < height


def test_a_display_that_is_not_up_to_date_says_so() -> None:
    silent = view("silent", phase="Running", progress={"percent": 3, "updateTime": "2026-05-04T13:59:00Z"})
    unseen, young = view("unseen", 31), view("young", 5)
    assert notes_of([RUNNING, PENDING, young], NOW) == []
    assert notes_of([unseen, young, silent], NOW) == [
        "no operator has seen unseen; does one run for this namespace?",
        "no news of silent for 2 minutes; does the operator run?",
    ]
    assert notes_of([silent], NOW, "the API server can't be reached") == [
        "not up to date: the API server can't be reached; trying again"
    ]


def test_the_picture_in_the_docs_is_what_top_shows(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    drawn = tmp_path / "top.svg"
    subprocess.run([sys.executable, root / "tools/draw_top.py", drawn], check=True)
    assert drawn.read_text() == (root / "docs/images/top.svg").read_text(), "draw it anew: make top-picture"
