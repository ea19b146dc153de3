from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlruntime.cli.progress import Reporter, make_reporter
from rlruntime.cli.run_observer import RunObserver
from rlruntime.spec.loader import load_manifests
from rlruntime.trainers.progress import Progress

ROOT = Path(__file__).parents[3]


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now_s


def piped(clock: Clock, **overrides: Any) -> tuple[Reporter, io.StringIO]:
    stream = io.StringIO()
    arguments: dict[str, Any] = {"quiet": False, "log_format": "text", "stream": stream, "clock": clock, **overrides}
    return make_reporter(arguments.pop("total_frames", 100_000), **arguments), stream


def run(reporter: Reporter, clock: Clock, num_iterations: int, seconds_each: float = 0.5) -> None:
    for iteration in range(1, num_iterations + 1):
        clock.now_s += seconds_each
        record = {
            "iteration": iteration,
            "frames": 1000 * iteration,
            "train/episode_reward_mean": 20.0 + iteration,
            "time/collect_s": 0.1,
            "time/learn_s": 0.3,
            "time/elapsed_s": clock.now_s,
        }
        reporter.iteration(record)


def test_pipe_gets_a_first_line_soon_then_one_every_five_seconds_and_the_end() -> None:
    clock = Clock()
    reporter, stream = piped(clock)
    run(reporter, clock, 25)
    reporter.close("done: runs/ppo-1")
    assert stream.getvalue().splitlines() == [
        "2,000 / 100,000 frames (2%)  2.00k frames/s  left 0:49  reward 22.0  collect 25% · learn 75%",
        "12,000 / 100,000 frames (12%)  2.00k frames/s  left 0:44  reward 32.0  collect 25% · learn 75%",
        "22,000 / 100,000 frames (22%)  2.00k frames/s  left 0:39  reward 42.0  collect 25% · learn 75%",
        "25,000 / 100,000 frames (25%)  2.00k frames/s  left 0:38  reward 45.0  collect 25% · learn 75%",
        "done: runs/ppo-1",
    ]


def test_evaluation_is_shown_at_once_and_stays_on_later_lines() -> None:
    clock = Clock()
    reporter, stream = piped(clock)
    clock.now_s += 0.1
    reporter.iteration({"frames": 1000, "evaluation/reward_mean": 475.25, "time/evaluate_s": 0.5})
    clock.now_s += 6
    reporter.iteration({"frames": 5000})
    lines = stream.getvalue().splitlines()
    assert (
        lines[0] == "1,000 / 100,000 frames (1%)  10.0k frames/s  left 0:10  evaluation 475.2 at 1.00k  evaluate 100%"
    )
    assert "evaluation 475.2 at 1.00k" in lines[1]


def test_resumed_run_counts_its_rate_from_where_it_began() -> None:
    clock = Clock()
    reporter, stream = piped(clock, start_frames=90_000)
    clock.now_s += 2
    reporter.iteration({"frames": 92_000})
    assert stream.getvalue() == "92,000 / 100,000 frames (92%)  1.00k frames/s  left 0:08\n"


def test_quiet_shows_nothing() -> None:
    clock = Clock()
    reporter, stream = piped(clock, quiet=True)
    run(reporter, clock, 20)
    reporter.message("hello")
    reporter.close("done")
    assert stream.getvalue() == ""


def test_json_format_is_one_object_per_line_with_the_result_at_the_end() -> None:
    clock = Clock()
    reporter, stream = piped(clock, log_format="json")
    clock.now_s += 2
    reporter.iteration({"iteration": 1, "frames": 1000, "loss/policy": float("nan")})
    reporter.message("checkpoint\nwritten")
    reporter.close("done", {"reward": 500.0})
    reporter.close("done", {"reward": 500.0})
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        {"event": "iteration", "iteration": 1, "frames": 1000, "loss/policy": None},
        {"event": "message", "message": "checkpoint\nwritten"},
        {"event": "end", "message": "done", "frames": 1000, "reward": 500.0},
    ]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_reader_that_goes_away_does_not_end_the_run(log_format: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    clock = Clock()
    with open(write_end, "w", buffering=1, closefd=True) as stream:
        reporter = make_reporter(1000, quiet=False, log_format=log_format, stream=stream, clock=clock)  # type: ignore[arg-type]
        run(reporter, clock, 20)
        reporter.close("done")
        with open(os.devnull, "w") as devnull:
            os.dup2(devnull.fileno(), write_end)  # what is still buffered must not raise when the stream is closed


def test_iteration_that_shows_nothing_reads_the_clock_once_and_is_cheap() -> None:
    clock = Clock()
    reporter, stream = piped(clock)
    reporter.iteration({"frames": 1})
    before = clock.reads
    run(reporter, clock, 100, seconds_each=0.0)
    assert clock.reads - before == 100
    assert stream.getvalue() == ""
    best_s = float("inf")
    for _ in range(5):
        began_s = time.perf_counter()
        run(reporter, clock, 200, seconds_each=0.0)
        best_s = min(best_s, time.perf_counter() - began_s)
    assert best_s / 200 < 1e-4


LIVE = """
import sys, time
from rlruntime.cli.progress import make_reporter
began_s = time.monotonic()
reporter = make_reporter(2000, quiet=False, log_format="text", stream=sys.stdout, title="ppo-cartpole")
for n in range(1, 101):
    phases = {"time/collect_s": 0.1, "time/learn_s": 0.1}
    reporter.iteration({"frames": 20 * n, "train/episode_reward_mean": 21.0, **phases})
    time.sleep(0.003)
    if n == 50:
        print("printed by the environment")
        reporter.message("[checkpoint] written")
reporter.close(f"done after {time.monotonic() - began_s} s")
"""


def output_on_a_terminal(program: str, timeout_s: float = 50.0) -> str:
    """Run a program on a pseudo-terminal of 100 columns and return all it wrote."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
    process = subprocess.Popen([sys.executable, "-c", program], stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    received, until_s = b"", time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        if select.select([master], [], [], 0.2)[0]:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            received += chunk
    os.close(master)
    assert process.wait(10) == 0
    return received.decode()


def test_terminal_shows_a_bar_with_rate_time_left_reward_and_phases() -> None:
    text = output_on_a_terminal(LIVE)
    for words in (
        "ppo-cartpole", "2.00k / 2.00k", "frames/s", "left ", "took 0:0", "100%", "reward 21.0", "collect 50%",
        "learn 50%", "printed by the environment", "[checkpoint] written", "done",
    ):  # fmt: skip
        assert words in text, words
    assert text.count("\x1b[?25h") >= 1
    assert text.rindex("\x1b[?25h") > text.rfind("\x1b[?25l"), "the cursor stays hidden"
    assert text.index("printed by the environment") < text.index("took 0:0")
    took_s = float(text.rsplit("done after ", 1)[1].split()[0])
    # Five times a second, and anew around each of the two lines printed above it, at the start and at the end.
    assert text.count("frames/s") <= took_s / 0.2 + 8, "100 iterations refresh the display more often than is seen"


def test_a_reader_that_goes_away_leaves_no_complaint_at_exit() -> None:
    program = (
        "import sys; from rlruntime.cli.progress import make_reporter;"
        "reporter = make_reporter(1, quiet=False, log_format='text', stream=sys.stdout);"
        "reporter.message('begins'); sys.stdin.read(); reporter.message('goes on'); reporter.close('succeeded')"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen([sys.executable, "-c", program], env=buffered, text=True, **pipes) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "begins\n"
        child.stdout.close()
        child.stdin.close()
        assert child.stderr.read() == ""
    assert child.returncode == 0


@pytest.mark.parametrize(
    ("mean", "std", "words"),
    [
        (346.85, 137.9, "346.9 ± 138"),
        (500.0, 0.0, "500 ± 0"),
        (-12345.6, 999.6, "-12346 ± 1000"),
        (0.9604, 0.0123, "0.9604 ± 0.012"),
    ],
)
def test_the_outcome_tells_rewards_of_any_size_without_an_exponent(mean: float, std: float, words: str) -> None:
    stream = io.StringIO()
    job = load_manifests(ROOT / "examples/01-ppo-cartpole.yaml")[0]
    with RunObserver(job, quiet=False, log_format="text", stream=stream) as observer:
        observer.on_start(Progress())
        evaluation = {"rewardMean": mean, "rewardStd": std, "episodes": 20}
        time = {"elapsedSeconds": 1.0}
        result = {"status": "Succeeded", "frames": 1000, "evaluation": evaluation, "time": time}
        observer.finish(result, Path("runs/a"))
    outcome = f"succeeded; final evaluation {words} over 20 fresh episodes; 1,000 frames in 1.0 s; see runs/a"
    assert stream.getvalue().splitlines()[-1] == outcome
