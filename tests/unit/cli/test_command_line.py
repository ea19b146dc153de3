"""Command lines: wrong use is one line with what was given, and whatever ends a command, no traceback shows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest
from rljob_operator.cli import main as operator_main

from rlruntime.cli.main import kubectl_main, main

CLI = "import sys; from rlruntime.cli.main import main; sys.exit(main(sys.argv[1:]))"
OPERATOR = "import sys; from rljob_operator.cli import main; sys.exit(main(sys.argv[1:]))"
EXAMPLE = Path(__file__).parents[3] / "examples/01-ppo-cartpole.yaml"


def ended(code: str, arguments: list[str], output: IO[str]) -> subprocess.CompletedProcess[str]:
    """Run a program that writes into ``output``."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=False, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60)


PROGRAMS = {"rljob": main, "kubectl rlj": kubectl_main, "rljob-operator": operator_main}


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (
            "rljob evaluate run --episodes x",
            "rljob evaluate: error: argument --episodes: give a whole number of episodes, at least 1 (got 'x'); "
            "see rljob evaluate --help",
        ),
        (
            "rljob evaluate run --seed 9007199254740992",
            "rljob evaluate: error: argument --seed: give a whole number from 0 to 9007199254740991 "
            "(got '9007199254740992'); see rljob evaluate --help",
        ),
        (
            "rljob run job.yaml --grace-seconds x",
            "rljob run: error: argument --grace-seconds: give a number of seconds, at least 0 (got 'x'); "
            "see rljob run --help",
        ),
        (
            "rljob run job.yaml --grace-seconds nan",
            "rljob run: error: argument --grace-seconds: give a number of seconds, at least 0 (got 'nan'); "
            "see rljob run --help",
        ),
        (
            "rljob tune-env job.yaml --seconds 0",
            "rljob tune-env: error: argument --seconds: give a positive number of seconds (got '0'); "
            "see rljob tune-env --help",
        ),
        (
            "rljob logs job --tail -1x",
            "rljob logs: error: argument --tail: expected one argument; see rljob logs --help",
        ),
        (
            "rljob logs job --since 5",
            "rljob logs: error: argument --since: give a time such as 30s, 10m, 2h or 1d (got '5'); "
            "see rljob logs --help",
        ),
        (
            "rljob suspend job --timeout soon",
            "rljob suspend: error: argument --timeout: give a positive number of seconds (got 'soon'); "
            "see rljob suspend --help",
        ),
        ("rljob run", "rljob run: error: the following arguments are required: FILE; see rljob run --help"),
        ("rljob version --loud", "rljob: error: unrecognized arguments: --loud; see rljob --help"),
        (
            "kubectl rlj logs job --index one",
            "kubectl rlj logs: error: argument --index: give a whole number, at least 0 (got 'one'); "
            "see kubectl rlj logs --help",
        ),
        (
            "rljob-operator run --metrics-port 65536",
            "rljob-operator run: error: argument --metrics-port: give a port from 0 to 65535 (got '65536'); "
            "see rljob-operator run --help",
        ),
        (
            "rljob-operator plan job.yaml --uid 7",
            "rljob-operator plan: error: argument --uid: give a uid such as 00000000-0000-0000-0000-000000000000 "
            "(got '7'); see rljob-operator plan --help",
        ),
    ],
)
def test_wrong_use_is_one_line_with_what_was_given(command: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = next(name for name in PROGRAMS if command.startswith(f"{name} "))
    with pytest.raises(SystemExit) as ended:
        PROGRAMS[program](command.removeprefix(program).split())
    assert (ended.value.code, capsys.readouterr().err) == (2, f"{line}\n")


@pytest.mark.parametrize(
    ("code", "arguments", "program"),
    [
        (CLI, ["version"], "rljob"),
        (CLI, ["schema"], "rljob"),
        (CLI, ["validate", str(EXAMPLE)], "rljob"),
        (OPERATOR, ["plan", str(EXAMPLE)], "rljob-operator"),
    ],
)
def test_an_output_that_takes_no_more_is_one_line(code: str, arguments: list[str], program: str) -> None:
    with open("/dev/full", "w") as full:
        done = ended(code, arguments, full)
    line = f"{program}: error: can't write the output: No space left on device; make room for it\n"
    assert (done.returncode, done.stderr) == (74, line)


@pytest.mark.parametrize("arguments", [["version"], ["schema"]])
def test_a_reader_that_went_away_ends_a_command_silently(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        done = ended(CLI, arguments, gone)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("package", ["pydantic", "yaml"])
def test_ctrl_c_while_commands_are_still_being_loaded_shows_nothing(package: str, tmp_path: Path) -> None:
    (tmp_path / f"{package}.py").write_text("import time; open('begun', 'w').close(); time.sleep(60)")  # in its place
    process = subprocess.Popen(
        [sys.executable, "-c", CLI, "run", str(EXAMPLE)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")
