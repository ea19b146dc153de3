from __future__ import annotations

import time

import pytest

from rlruntime.metrics.timers import PhaseTimers


def test_flush_gives_seconds_since_the_last_flush_and_totals_go_on() -> None:
    timers = PhaseTimers()
    timers.add("learn", 1.5)
    timers.add_ns("collect", 250_000_000)
    assert timers.flush() == {"learn": 1.5, "collect": 0.25}
    timers.add("learn", 0.5)
    assert timers.flush() == {"learn": 0.5, "collect": 0.0}
    assert timers.totals() == {"learn": 2.0, "collect": 0.25}


def test_with_statement_adds_what_passes_inside_and_phases_nest() -> None:
    timers = PhaseTimers()
    with timers("outer"):
        time.sleep(0.01)
        with timers("inner"):
            time.sleep(0.01)
    seconds = timers.flush()
    assert 0.01 <= seconds["inner"] < 0.5
    assert seconds["outer"] >= seconds["inner"] + 0.01


def test_phase_that_raises_is_counted_and_can_run_again() -> None:
    timers = PhaseTimers()
    with pytest.raises(KeyError), timers("learn"):
        raise KeyError
    with timers("learn"):
        pass
    assert timers.flush()["learn"] > 0


def test_phase_within_itself_is_refused() -> None:
    timers = PhaseTimers()
    with timers("learn"), pytest.raises(RuntimeError), timers("learn"):
        pass
