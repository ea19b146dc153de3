"""Which job is looked at when."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import CollectorRegistry
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.reconcile.queue import WorkQueue
from rljob_operator.settings import Timing

Work = Callable[[str], Awaitable[float | None]]


def queue_of(work: Work, registry: CollectorRegistry | None = None, **timing: float) -> WorkQueue:
    return WorkQueue(
        work,
        timing=Timing(**timing),
        metrics=OperatorMetrics(registry or CollectorRegistry()),
        about=lambda key: {"job": key},
        monotonic=time.monotonic,
        uniform=lambda low, high: high,
    )


def drive(queue: WorkQueue, story: Callable[[], Awaitable[None]], workers: int = 4) -> None:
    async def run() -> None:
        queue.start(workers)
        try:
            async with asyncio.timeout(20.0):
                await story()
        finally:
            await queue.stop()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_a_key_that_is_added_often_is_looked_at_once() -> None:
    passes: list[str] = []

    async def work(key: str) -> None:
        passes.append(key)

    queue = queue_of(work)

    async def story() -> None:
        for _ in range(10):
            queue.add("a")
        queue.add("b")
        await until(lambda: len(passes) >= 2)
        await asyncio.sleep(0.05)

    drive(queue, story)
    assert sorted(passes) == ["a", "b"]


def test_what_is_added_during_a_pass_makes_one_more_and_never_two_at_a_time() -> None:
    running, most, passes = 0, 0, 0

    async def work(key: str) -> None:
        nonlocal running, most, passes
        running += 1
        most = max(most, running)
        passes += 1
        if passes == 1:
            for _ in range(5):
                queue.add(key)
        await asyncio.sleep(0.02)
        running -= 1

    queue = queue_of(work)

    async def story() -> None:
        queue.add("a")
        await until(lambda: passes == 2)
        await asyncio.sleep(0.05)

    drive(queue, story)
    assert (most, passes) == (1, 2)


def test_other_keys_are_worked_on_while_one_waits() -> None:
    done: list[str] = []

    async def work(key: str) -> None:
        if key == "slow":
            await asyncio.sleep(60.0)
        done.append(key)

    queue = queue_of(work)

    async def story() -> None:
        for key in ("slow", "a", "b"):
            queue.add(key)
        await until(lambda: len(done) == 2)

    drive(queue, story)
    assert sorted(done) == ["a", "b"]


def test_a_pass_may_say_when_it_wants_to_come_back_and_an_event_comes_before() -> None:
    passes = 0

    async def work(key: str) -> float | None:
        nonlocal passes
        passes += 1
        return 0.05 if passes == 1 else 3600.0 if passes == 2 else None

    queue = queue_of(work)

    async def story() -> None:
        queue.add("a")
        await until(lambda: passes == 2)
        queue.add("a")
        await until(lambda: passes == 3)

    drive(queue, story)
    assert passes == 3


def test_the_earliest_of_several_wishes_counts() -> None:
    passes = 0

    async def work(key: str) -> None:
        nonlocal passes
        passes += 1

    queue = queue_of(work)

    async def story() -> None:
        queue.add_after("a", 3600.0)
        queue.add_after("a", 0.02)
        queue.add_after("a", 1800.0)
        await until(lambda: passes == 1)

    drive(queue, story)


def test_wake_up_times_that_were_overtaken_do_not_pile_up_and_none_of_the_others_is_lost() -> None:
    passes = {"often": 0, "late": 0}

    async def work(key: str) -> float | None:
        passes[key] += 1
        return 3600.0 if key == "often" else None

    queue = queue_of(work)

    async def story() -> None:
        queue.add_after("late", 1.0)
        for number in range(1, 301):
            queue.add("often")
            await until(lambda least=number: passes["often"] >= least)  # type: ignore[misc]
        assert queue.alarms < 80
        await until(lambda: passes["late"] == 1)

    drive(queue, story)


def test_a_pass_that_fails_is_tried_again_with_growing_pauses_and_hurts_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times: list[float] = []
    others: list[str] = []

    async def work(key: str) -> None:
        if key != "bad":
            others.append(key)
            return
        times.append(time.monotonic())
        if len(times) < 5:
            raise RuntimeError("no such luck")

    registry = CollectorRegistry()
    queue = queue_of(work, registry, error_retry_min_s=0.02)

    async def story() -> None:
        queue.add("bad")
        queue.add("good")
        await until(lambda: len(times) == 5)
        assert queue.is_alive

    with caplog.at_level(logging.WARNING):
        drive(queue, story)
    assert others == ["good"]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    for least, gap in zip((0.02, 0.04, 0.08, 0.16), gaps, strict=True):
        assert gap >= least * 0.99
    failed = registry.get_sample_value("rljob_operator_reconcile_errors_total", {"error": "RuntimeError"})
    assert failed == 4
    assert [record.getMessage().split(": ", 1)[1] for record in caplog.records] == ["RuntimeError: no such luck"] * 4
    assert {getattr(record, "job", "") for record in caplog.records} == {"bad"}


def test_a_pass_that_hangs_is_ended_and_tried_again() -> None:
    passes = 0

    async def work(key: str) -> None:
        nonlocal passes
        passes += 1
        if passes == 1:
            await asyncio.sleep(3600.0)

    queue = queue_of(work, pass_timeout_s=0.05, error_retry_min_s=0.01)

    async def story() -> None:
        queue.add("a")
        await until(lambda: passes == 2)

    drive(queue, story)


def test_a_pass_whose_task_was_ended_by_another_costs_no_worker() -> None:
    passes = 0

    async def work(key: str) -> None:
        nonlocal passes
        passes += 1
        if passes == 1:
            raise asyncio.CancelledError

    queue = queue_of(work, error_retry_min_s=0.01)

    async def story() -> None:
        queue.add("a")
        await until(lambda: passes == 2)
        assert queue.is_alive

    drive(queue, story, workers=1)


def test_a_stopped_queue_ends_the_passes_under_way_and_is_not_alive() -> None:
    ended: list[str] = []

    async def work(key: str) -> None:
        try:
            await asyncio.sleep(3600.0)
        finally:
            ended.append(key)

    queue = queue_of(work)

    async def story() -> None:
        queue.add("a")
        await asyncio.sleep(0.02)
        assert queue.is_alive

    drive(queue, story)
    assert ended == ["a"]
    assert not queue.is_alive


def test_depth_and_latency_are_measured() -> None:
    registry = CollectorRegistry()

    async def work(key: str) -> None:
        await asyncio.sleep(0)

    queue = queue_of(work, registry)

    async def story() -> None:
        for number in range(10):
            queue.add(f"job-{number}")
        assert registry.get_sample_value("rljob_operator_queue_depth") == 10
        await until(lambda: registry.get_sample_value("rljob_operator_reconcile_duration_seconds_count") == 10)

    drive(queue, story)
    assert registry.get_sample_value("rljob_operator_queue_depth") == 0
    assert registry.get_sample_value("rljob_operator_queue_latency_seconds_count") == 10
