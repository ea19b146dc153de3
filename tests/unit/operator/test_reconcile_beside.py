"""What no pass waits for: events, a pod's own events, a trainer's progress; and the log."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from fake_kube import FakeKube
from http_server import serving
from prometheus_client import CollectorRegistry
from reconcile_bench import NAMESPACE, UID, Bench, job_document
from rljob_operator import logs
from rljob_operator.kube.errors import Forbidden, KubeError
from rljob_operator.kube.resources import EVENTS, PODS
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.planner.observed import Trouble
from rljob_operator.planner.plan import JobEvent
from rljob_operator.reconcile.cache import Cache
from rljob_operator.reconcile.events import EventWriter
from rljob_operator.reconcile.inspect import newest_warning
from rljob_operator.reconcile.memory import Memories
from rljob_operator.reconcile.progress import ProgressPoller, fetch_report
from rljob_operator.reconcile.views import job_view
from rljob_operator.settings import Timing

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def events_of(kube: FakeKube, *events: JobEvent, seconds: list[float] | None = None) -> list[dict[str, Any]]:
    times = iter(seconds or [0.0] * len(events))
    numbers = iter(range(100))
    clock = [0.0]

    async def story() -> None:
        writer = EventWriter(
            kube,
            timing=Timing(),
            metrics=OperatorMetrics(CollectorRegistry()),
            now=lambda: NOW,
            monotonic=lambda: clock[0],
            suffix=lambda: f"{next(numbers)}",
            is_busy=lambda: False,
            instance="pod-1",
        )
        writer.start()
        owner = job_view({**job_document(), "metadata": {**job_document()["metadata"], "resourceVersion": "1"}}).owner
        for event in events:
            clock[0] = next(times)
            writer.emit(owner, event)
        await writer.stop(5.0)

    asyncio.run(story())
    return [item for (plural, _, _), item in kube.objects.items() if plural == "events"]


def test_an_event_says_of_which_job_it_is_and_from_whom() -> None:
    (event,) = events_of(FakeKube(), JobEvent("Restarting", "trainer-0 ended", warning=True))
    assert event["involvedObject"] == {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "name": "ppo",
        "namespace": NAMESPACE,
        "uid": UID,
    }
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "Restarting", "trainer-0 ended")
    assert event["lastTimestamp"] == "2026-01-01T12:00:00Z"
    assert event["source"]["component"] == "rljob-operator"


@pytest.mark.parametrize(
    ("busy", "hold_s", "emitted", "written"),
    [(False, 60.0, 3, 3), (True, 60.0, 3, 0), (True, 0.2, 3, 3), (True, 60.0, 600, 100)],
    ids=["idle", "jobs wait", "jobs wait for long", "many events wait"],
)
def test_events_let_waiting_jobs_go_first_but_neither_for_long_nor_without_bound(
    busy: bool, hold_s: float, emitted: int, written: int
) -> None:
    kube, numbers = FakeKube(), iter(range(10_000))

    async def story() -> int:
        writer = EventWriter(
            kube,
            timing=Timing(event_hold_max_s=hold_s),
            metrics=OperatorMetrics(CollectorRegistry()),
            now=lambda: NOW,
            monotonic=time.monotonic,
            suffix=lambda: f"{next(numbers)}",
            is_busy=lambda: busy,
            instance="pod-1",
        )
        owner = job_view({**job_document(), "metadata": {**job_document()["metadata"], "resourceVersion": "1"}}).owner
        for number in range(emitted):
            writer.emit(owner, JobEvent("Running", f"{number}"))
        writer.start()
        await asyncio.sleep(1.0)
        before = sum(plural == "events" for plural, _, _ in kube.objects)
        await writer.stop(5.0)
        assert sum(plural == "events" for plural, _, _ in kube.objects) == emitted
        return before

    assert asyncio.run(story()) == written


def test_the_same_words_are_written_once_in_ten_minutes() -> None:
    event = JobEvent("Unschedulable", "0/1 nodes are available")
    seconds = [0.0, 1.0, 599.0, 601.0]
    assert len(events_of(FakeKube(), *[event] * 4, seconds=seconds)) == 2


def test_other_words_are_written_at_once() -> None:
    assert len(events_of(FakeKube(), JobEvent("Restarting", "1 of 3"), JobEvent("Restarting", "2 of 3"))) == 2


@pytest.mark.parametrize("failure", [Forbidden("create events", code=403), ValueError("half a character")])
def test_events_that_can_not_be_written_are_dropped_and_those_after_them_are_not(failure: Exception) -> None:
    kube = FakeKube()
    failures: list[Any] = [failure] * 4
    kube.refuse = lambda *_: failures.pop() if failures else None
    lost = [JobEvent("Restarting", f"disruption {number}") for number in range(4)]
    found = events_of(kube, *lost, JobEvent("Succeeded", "done"))
    assert [item["reason"] for item in found] == ["Succeeded"]


def test_a_long_message_is_cut() -> None:
    (event,) = events_of(FakeKube(), JobEvent("Failed", "x" * 5000))
    assert len(event["message"]) == 1024


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], None),
        ([{"type": "Normal", "reason": "Scheduled"}], None),
        (
            [
                {"type": "Warning", "reason": "FailedMount", "message": "new", "lastTimestamp": "2026-01-01T00:01:00Z"},
                {"type": "Warning", "reason": "Failed", "message": "old", "lastTimestamp": "2026-01-01T00:00:00Z"},
            ],
            Trouble("FailedMount", "new"),
        ),
        (
            [
                {"type": "Warning", "reason": "A", "eventTime": "2026-01-01T00:00:00.5Z"},
                {"type": "Warning", "reason": "B", "series": {"lastObservedTime": "2026-01-01T00:09:00.0Z"}},
            ],
            Trouble("B", ""),
        ),
        (
            [
                {"type": "Warning", "reason": "FailedScheduling", "eventTime": "2026-01-01T00:00:00.500000Z"},
                {"type": "Normal", "reason": "Scheduled", "eventTime": "2026-01-01T00:02:00.500000Z"},
                {"type": "Normal", "reason": "Pulling", "lastTimestamp": "2026-01-01T00:02:01Z"},
            ],
            None,
        ),
        (
            [
                {"type": "Warning", "reason": "FailedMount", "lastTimestamp": "2026-01-01T00:02:01Z"},
                {"type": "Normal", "reason": "Pulling", "lastTimestamp": "2026-01-01T00:02:01Z"},
            ],
            Trouble("FailedMount", ""),
        ),
    ],
)
def test_the_newest_warning_about_a_pod(events: list[dict[str, Any]], expected: Trouble | None) -> None:
    assert newest_warning(events) == expected


def test_a_list_of_events_that_gets_no_answer_for_long_does_not_hold_up_the_next() -> None:
    async def story(bench: Bench) -> None:
        await bench.look()
        job = bench.cache.job(UID)
        assert job is not None

        def slow(*_: str) -> KubeError:
            bench.seconds += 40.0
            return KubeError("list events")

        bench.kube.refuse = slow
        async with asyncio.timeout(5.0):
            bench.inspector.inspect(job, ["ppo-trainer-0-0", "ppo-trainer-1-0"])
            while bench.kube.requests.count("list events full") < 2:
                await asyncio.sleep(0.001)
        await bench.inspector.stop()

    bench = Bench(timing=Timing(inspect_rest_max_s=0.01))
    bench.submit(roles=[{"name": "trainer", "type": "Trainer", "replicas": 2}])
    asyncio.run(story(bench))


def test_a_pod_that_is_creating_for_long_has_its_events_listed_with_growing_pauses() -> None:
    async def story(bench: Bench) -> list[float]:
        await bench.look()
        event = {
            "metadata": {"name": "e", "namespace": NAMESPACE},
            "type": "Warning",
            "reason": "FailedMount",
            "message": 'secret "missing" not found',
        }
        bench.kube.put(EVENTS, event)
        job = bench.cache.job(UID)
        assert job is not None
        times: list[float] = []
        for _ in range(1000):
            before = len(bench.kube.requests)
            bench.inspector.inspect(job, ["ppo-trainer-0-0"])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if len(bench.kube.requests) > before:
                times.append(bench.seconds)
            bench.seconds += 10.0
        return times

    bench = Bench()
    bench.submit()
    bench.memories.of(UID).existing.add("ppo-1b4e28ba-spec")
    times = asyncio.run(story(bench))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps[:6] == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0]
    trouble = Trouble("FailedMount", 'secret "missing" not found')
    assert bench.memories.of(UID).pod_events == {"ppo-trainer-0-0": trouble}
    assert bench.memories.of(UID).existing == set()  # it may be what is missing, and is made again
    assert bench.added == [UID]


def test_a_pod_that_has_started_before_its_turn_has_no_events_listed() -> None:
    async def story(bench: Bench) -> list[str]:
        await bench.look()
        job = bench.cache.job(UID)
        assert job is not None
        bench.inspector.inspect(job, [f"ppo-trainer-{index}-0" for index in range(4)])
        for index in (1, 2):
            pod = bench.kube.stored(PODS, f"ppo-trainer-{index}-0")
            pod["status"] = {"containerStatuses": [{"name": "rljob", "state": {"running": {}}}]}
            bench.cache.apply_pod(bench.kube.put(PODS, pod))
        for _ in range(20):
            await asyncio.sleep(0)
        return [request for request in bench.kube.requests if request.startswith("list events")]

    bench = Bench()
    bench.submit(roles=[{"name": "trainer", "type": "Trainer", "replicas": 4}])
    assert len(asyncio.run(story(bench))) == 2


def report_text(**fields: Any) -> bytes:
    about = {"uid": UID, "attempt": 0, "round": 0, "phase": "Training", "totalFrames": 1000, "resumedFrames": 0}
    return json.dumps({**about, "frames": 250, **fields}).encode()


def answer_of(body: bytes, *, status: int = 200, headers: dict[str, str] | None = None, wait_s: float = 0.0) -> Any:
    async def handler(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(wait_s)
        return web.Response(status=status, body=body, headers=headers)

    async def run() -> Any:
        timeout = aiohttp.ClientTimeout(total=1.0)
        async with serving(handler) as port, aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            return await fetch_report(session, "127.0.0.1", port)

    return asyncio.run(run())


def test_a_trainers_report_is_read() -> None:
    found = answer_of(report_text())
    assert (found.uid, found.frames) == (UID, 250)


@pytest.mark.parametrize(
    ("body", "more"),
    [
        (b"not json", {}),
        (b'{"frames": "many"}', {}),
        (report_text() + b" " * 20_000, {}),
        (report_text(frames=2**63), {}),
        (report_text(), {"status": 500}),
        (b"", {"status": 302, "headers": {"Location": "http://127.0.0.1:9/"}}),
        (report_text(), {"wait_s": 3.0}),
    ],
)
def test_what_is_no_report_is_none(body: bytes, more: dict[str, Any]) -> None:
    assert answer_of(body, **more) is None


def test_a_trainer_that_can_not_be_reached_says_nothing() -> None:
    async def run() -> Any:
        async with aiohttp.ClientSession() as session:
            return await fetch_report(session, "127.0.0.1", 9)

    assert asyncio.run(run()) is None


class Trainers:
    """A server that plays one trainer, and a poller that asks it."""

    def __init__(self, **report: Any) -> None:
        self.body = report_text(**report)
        self.asked = 0
        self.added: list[str] = []
        self.memories = Memories()

    async def answer(self, _: web.Request) -> web.StreamResponse:
        self.asked += 1
        return web.Response(body=self.body)

    def run(self, *, phase: str = "Running", until_asked: int = 1, poll_s: float = 0.01) -> None:
        async def story() -> None:
            async with serving(self.answer) as port:
                cache = Cache(time.monotonic)
                job = job_document(metrics={"port": port})
                job["metadata"]["resourceVersion"] = "1"
                cache.apply_job({**job, "status": {"phase": phase, "attempt": 0}})
                cache.apply_pod(trainer_pod())
                poller = ProgressPoller(
                    cache,
                    self.memories,
                    self.added.append,
                    timing=Timing(progress_poll_s=poll_s),
                    now=lambda: NOW,
                    monotonic=time.monotonic,
                    uniform=lambda low, high: low,
                    may_be_a_pods=lambda _: True,
                )
                task = asyncio.create_task(poller.run())
                async with asyncio.timeout(20.0):
                    while self.asked < until_asked:
                        await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(story())


def trainer_pod() -> dict[str, Any]:
    labels = {"rljob.io/job-uid": UID, "rljob.io/role": "trainer", "rljob.io/index": "0", "rljob.io/attempt": "0"}
    about = {"name": "ppo-trainer-0-0", "namespace": NAMESPACE, "uid": "pod-uid", "resourceVersion": "2"}
    owners = [{"uid": UID, "controller": True}]
    status = {"phase": "Running", "podIP": "127.0.0.1"}
    return {"metadata": {**about, "labels": labels, "ownerReferences": owners}, "status": status}


def test_progress_goes_to_memory_and_has_the_job_looked_at_only_when_it_is_new() -> None:
    trainers = Trainers(reward=1.5)
    trainers.run(until_asked=3)
    memory = trainers.memories.of(UID)
    assert memory.progress is not None
    assert (memory.progress.percent, memory.progress.reward) == (25, 1.5)
    assert memory.progress.update_time == "2026-01-01T12:00:00Z"
    assert memory.progress_of == "pod-uid"
    assert trainers.added == [UID]


@pytest.mark.parametrize("report", [{"uid": "another"}, {"attempt": 1}])
def test_a_report_of_another_job_or_of_a_later_attempt_is_not_taken(report: dict[str, Any]) -> None:
    trainers = Trainers(**report)
    trainers.run()
    assert trainers.memories.of(UID).progress is None
    assert trainers.added == []


def test_questions_to_trainers_that_never_answer_do_not_pile_up() -> None:
    cache, jobs = Cache(time.monotonic), 100

    async def silence(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30.0)
        return web.Response()

    async def story() -> int:
        async with serving(silence) as port:
            for number in range(jobs):
                job = job_document(metrics={"port": port})
                job["metadata"] |= {"uid": f"job-{number}", "resourceVersion": "1"}
                cache.apply_job({**job, "status": {"phase": "Running", "attempt": 0}})
                pod = trainer_pod()
                pod["metadata"] |= {
                    "uid": f"pod-{number}",
                    "ownerReferences": [{"uid": f"job-{number}", "controller": True}],
                }
                pod["metadata"]["labels"]["rljob.io/job-uid"] = f"job-{number}"
                cache.apply_pod(pod)
            poller = ProgressPoller(
                cache,
                Memories(),
                lambda _: None,
                timing=Timing(progress_poll_s=0.01),
                now=lambda: NOW,
                monotonic=time.monotonic,
                uniform=lambda low, high: low,
                may_be_a_pods=lambda _: True,
            )
            before = len(asyncio.all_tasks())
            task = asyncio.create_task(poller.run())
            most = 0
            for _ in range(40):
                await asyncio.sleep(0.1)
                most = max(most, len(asyncio.all_tasks()) - before)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return most

    assert asyncio.run(story()) <= jobs + 50  # besides, the server's own for the 16 that are asked at a time


@pytest.mark.parametrize("phase", ["Pending", "Restarting", "Succeeded"])
def test_only_jobs_that_run_are_asked(phase: str) -> None:
    trainers = Trainers()
    trainers.run(phase=phase, until_asked=0)
    assert trainers.asked == 0


def logged(form: logs.Format, capsys: pytest.CaptureFixture[str], **extra: Any) -> str:
    root = logging.getLogger()
    kept, level = root.handlers[:], root.level
    try:
        logs.configure(form, debug=False)
        logging.getLogger("rljob_operator").info("it %s", "runs", extra=extra)
        logging.getLogger("rljob_operator").debug("not this")
    finally:
        root.handlers[:] = kept
        root.setLevel(level)
    return capsys.readouterr().err


def test_the_log_is_one_line_of_json_an_entry(capsys: pytest.CaptureFixture[str]) -> None:
    entry = json.loads(logged("json", capsys, job="ppo", namespace="team-a", uid="u", attempt=2))
    time_text = entry.pop("time")
    assert datetime.fromisoformat(time_text).tzinfo is not None
    about = {"job": "ppo", "namespace": "team-a", "uid": "u", "attempt": 2}
    assert entry == {"level": "info", "message": "it runs", **about}


def test_the_log_is_readable_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    line = logged("text", capsys, job="ppo")
    assert line.endswith(" info it runs [job=ppo]\n")
