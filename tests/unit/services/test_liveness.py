from __future__ import annotations

from dataclasses import dataclass

from rlruntime.services.health import Liveness


@dataclass
class Clocks:
    """Seconds that a test moves."""

    now_s: float = 100.0
    cpu_s: float = 5.0
    mark: int = 0

    def liveness(self, timeout_s: float = 600.0) -> Liveness:
        found = Liveness(timeout_s, clock=lambda: self.now_s, cpu_clock=lambda: self.cpu_s)
        found.mark = lambda: self.mark
        return found


def test_start_may_take_as_long_as_it_must() -> None:
    clocks = Clocks()
    liveness = clocks.liveness()
    clocks.now_s += 100_000.0
    assert liveness() is None


def test_loop_in_which_nothing_moves_is_dead_after_the_time_out() -> None:
    clocks = Clocks()
    liveness = clocks.liveness()
    liveness.begin()
    answers = []
    for _ in range(22):
        clocks.now_s += 30.0
        clocks.cpu_s += 0.01  # answering probes
        answers.append(liveness())
    assert answers[:20] == [None] * 20
    assert answers[20:] == ["nothing has moved for 630 s", "nothing has moved for 660 s"]


def test_beat_revives() -> None:
    clocks = Clocks()
    liveness = clocks.liveness()
    liveness.begin()
    clocks.now_s += 700.0
    assert liveness() == "nothing has moved for 700 s"
    liveness.beat()
    assert liveness() is None


def test_slow_collection_is_alive_as_long_as_environments_are_stepped() -> None:
    clocks = Clocks()
    liveness = clocks.liveness()
    liveness.begin()
    for _ in range(100):
        clocks.now_s += 500.0
        clocks.mark += 1
        assert liveness() is None


def test_long_update_is_alive_as_long_as_it_computes() -> None:
    clocks = Clocks()
    liveness = clocks.liveness()
    liveness.begin()
    for _ in range(100):
        clocks.now_s += 30.0
        clocks.cpu_s += 15.0
        assert liveness() is None
    for _ in range(20):
        clocks.now_s += 30.0
        assert liveness() is None
    clocks.now_s += 30.0
    assert liveness() == "nothing has moved for 630 s"


def test_probes_that_follow_each_other_closely_hide_no_stillstand() -> None:
    clocks = Clocks()
    liveness = clocks.liveness()
    liveness.begin()
    for _ in range(6100):
        clocks.now_s += 0.1
        clocks.cpu_s += 0.001
        answer = liveness()
    assert answer == "nothing has moved for 610 s"
