from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlruntime.trainers.interrupts import InterruptGuard

PROGRAM = Path(__file__).parent / "programs" / "interrupted.py"
Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def _start(mode: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), mode, str(tmp_path / "record")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield _start
    for process in started:
        process.kill()
        process.communicate(timeout=10)


def wait_s(process: subprocess.Popen[str]) -> tuple[float, str, str]:
    began_s = time.monotonic()
    out, err = process.communicate(timeout=20)
    return time.monotonic() - began_s, out, err


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_loop_that_reaches_a_boundary_leaves_at_once_and_everything_is_restored(
    start: Start, signum: int, code: int, tmp_path: Path
) -> None:
    process = start("polite")
    process.send_signal(signum)
    took_s, out, err = wait_s(process)
    assert (process.returncode, err) == (code, "")
    assert out == f"boundary after signal {signum}\nleft ['MainThread'] True -1\n"
    assert took_s < 2.5
    assert not (tmp_path / "record").exists()


@pytest.mark.parametrize(("mode", "signum", "code"), [("blocked", signal.SIGINT, 130), ("busy", signal.SIGTERM, 143)])
def test_loop_that_never_looks_ends_within_five_seconds_by_default(
    start: Start, mode: str, signum: int, code: int, tmp_path: Path
) -> None:
    process = start(mode)
    process.send_signal(signum)
    took_s, _, _ = wait_s(process)
    assert process.returncode == code
    assert 2.9 < took_s < 5.0
    assert (tmp_path / "record").read_text() == f"{int(signum)} False"


def test_second_sigint_moves_the_deadline_to_now(start: Start, tmp_path: Path) -> None:
    process = start("impatient")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    took_s, _, _ = wait_s(process)
    assert process.returncode == 130
    assert took_s < 2.2
    assert (tmp_path / "record").read_text() == "2 False"


def test_sigint_that_a_launcher_forwards_twice_counts_once(start: Start) -> None:
    process = start("slow_to_save")
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    _, out, _ = wait_s(process)
    assert process.returncode == 130
    assert "saved\n" in out


def test_second_sigterm_is_no_hurry_and_the_first_signal_decides_the_exit_code(start: Start) -> None:
    process = start("slow_to_save")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.4)
    process.send_signal(signal.SIGTERM)
    _, out, _ = wait_s(process)
    assert process.returncode == 143
    assert "saved\n" in out


def test_sigint_while_the_loop_saves_ends_at_once(start: Start) -> None:
    process = start("slow_to_save")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.4)
    process.send_signal(signal.SIGINT)
    _, out, _ = wait_s(process)
    assert (process.returncode, "saved" in out) == (143, False)
    process = start("slow_to_save")
    process.send_signal(signal.SIGINT)
    time.sleep(0.4)
    process.send_signal(signal.SIGINT)
    _, out, _ = wait_s(process)
    assert (process.returncode, "saved" in out) == (130, False)


def test_writer_that_hangs_does_not_keep_the_process(start: Start, tmp_path: Path) -> None:
    process = start("hung_writer")
    process.send_signal(signal.SIGTERM)
    took_s, _, _ = wait_s(process)
    assert process.returncode == 143
    assert took_s < 5.0
    assert (tmp_path / "record").exists()


def test_writer_that_raises_still_ends_with_the_exit_code_and_its_traceback(start: Start) -> None:
    process = start("failing_writer")
    process.send_signal(signal.SIGTERM)
    _, _, err = wait_s(process)
    assert process.returncode == 143
    assert "OSError: no space" in err


def test_forked_child_keeps_neither_handlers_nor_pipe(start: Start) -> None:
    process = start("with_child")
    assert process.stdout is not None
    assert process.stdout.readline() == "child 0\n"
    process.send_signal(signal.SIGINT)
    _, out, _ = wait_s(process)
    assert process.returncode == 130
    assert out.startswith("boundary after signal 2\n")


def test_guard_without_a_signal_changes_nothing() -> None:
    before = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), len(os.listdir("/proc/self/fd")))
    for _ in range(3):
        with InterruptGuard(lambda signum: None) as guard:
            assert guard.requested is None
    after = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), len(os.listdir("/proc/self/fd")))
    assert after == before
    assert guard.exit_code == 0
    assert "rljob-interrupts" not in [thread.name for thread in threading.enumerate()]


def test_guard_leaves_cleanly_when_the_loop_raises() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyError), InterruptGuard(lambda signum: None):
        raise KeyError
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_the_main_thread_nothing_is_installed() -> None:
    seen: list[object] = []

    def work() -> None:
        with InterruptGuard(lambda signum: None) as guard:
            seen.extend([guard.requested, signal.getsignal(signal.SIGTERM)])

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert seen == [None, before]
