"""Whether a process moves, seen from outside."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from rlruntime.envs.worker_process import Idleness, processor_s


def test_a_process_that_uses_no_processor_time_is_idle_since_it_last_did() -> None:
    now_s, used_s = [0.0], [1.0]
    idleness = Idleness(1, clock=lambda: now_s[0], processor=lambda _: used_s[0])
    for _ in range(10):
        now_s[0] += 30.0
        found = idleness.seconds()
    assert found == 300.0
    used_s[0] += 0.01
    assert idleness.seconds() == 0.0
    now_s[0] += 30.0
    assert idleness.seconds() == 30.0
    idleness.begin()
    assert idleness.seconds() == 0.0


def test_time_in_which_nobody_asked_counts_as_a_minute_at_most() -> None:
    now_s = [0.0]
    idleness = Idleness(1, clock=lambda: now_s[0], processor=lambda _: 1.0)
    now_s[0] += 3600.0
    assert idleness.seconds() == 60.0


def test_where_nobody_says_what_a_process_uses_it_is_never_idle() -> None:
    now_s = [0.0]
    idleness = Idleness(1, clock=lambda: now_s[0], processor=lambda _: None)
    now_s[0] += 30.0
    assert idleness.seconds() == 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_processor_time_is_that_of_the_process_alone_and_none_once_it_is_gone() -> None:
    code = "import time; until = time.process_time() + 0.1\nwhile time.process_time() < until: pass\nprint(); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used_s = processor_s(process.pid)
        assert used_s is not None
        assert used_s >= 0.1
        time.sleep(0.1)
        assert processor_s(process.pid) == pytest.approx(used_s, abs=0.03)
        process.kill()
    assert processor_s(process.pid) is None
