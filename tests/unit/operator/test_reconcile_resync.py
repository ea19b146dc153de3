"""Whether the cache stays true when watches miss something, and what is heard of the watches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fake_kube import FakeKube
from prometheus_client import CollectorRegistry
from rljob_operator.builders.owner import KubeObject
from rljob_operator.kube.errors import Expired, KubeError, NetworkError
from rljob_operator.kube.resources import PODS, RLJOBS
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.reconcile.cache import Cache
from rljob_operator.reconcile.resync import Resync
from rljob_operator.reconcile.watches import Stream, WatchMonitor
from rljob_operator.settings import Timing

NAMESPACE = "team-a"
STREAMS = (Stream("rljobs", NAMESPACE), Stream("pods", NAMESPACE))


class World:
    """A server, a cache, and the watches between them, of which a test says what they heard."""

    def __init__(self, **timing: float) -> None:
        self.seconds = 0.0
        self.kube, self.cache = FakeKube(), Cache(lambda: self.seconds)
        self.monitor = WatchMonitor(STREAMS, monotonic=lambda: self.seconds, time=lambda: 1e9 + self.seconds)
        self.added: list[str] = []
        self.resync = Resync(
            self.kube,
            self.cache,
            self.monitor,
            namespaces=(NAMESPACE,),
            add=self.added.append,
            timing=Timing(**timing),
            metrics=OperatorMetrics(CollectorRegistry()),
            uniform=lambda low, high: high,
        )

    def job(self, number: int) -> KubeObject:
        training = {"algorithm": "PPO", "totalFrames": 1000, "env": {"id": "CartPole-v1"}}
        about = {"name": f"job-{number}", "namespace": NAMESPACE, "uid": f"uid-{number}", "generation": 1}
        return self.kube.put(RLJOBS, {"metadata": about, "spec": {"training": training}})

    def pod(self, number: int, **status: Any) -> KubeObject:
        uid = f"uid-{number}"
        labels = {"rljob.io/job-uid": uid, "rljob.io/role": "trainer", "rljob.io/index": "0", "rljob.io/attempt": "0"}
        owners = [{"uid": uid, "controller": True}]
        about = {"name": f"pod-{number}", "namespace": NAMESPACE, "labels": labels, "ownerReferences": owners}
        about["uid"] = f"pod-uid-{number}"
        return self.kube.put(PODS, {"metadata": about, "status": status})

    def open_all(self) -> None:
        for stream in STREAMS:
            self.monitor.listed(stream)
            self.monitor.opened(stream)


async def soon(work: Callable[[], Awaitable[None]], condition: Callable[[], bool]) -> None:
    task = asyncio.ensure_future(work())
    async with asyncio.timeout(10.0):
        while not condition():
            await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_the_cache_is_filled_only_once_every_watch_is_open() -> None:
    async def story(world: World) -> None:
        task = asyncio.create_task(world.resync.fill())
        world.monitor.opened(STREAMS[0])
        await asyncio.sleep(0.02)
        assert world.kube.requests == []
        world.monitor.opened(STREAMS[1])
        await asyncio.wait_for(task, 5.0)

    world = World()
    world.job(1)
    world.pod(1, phase="Running")
    asyncio.run(story(world))
    assert world.kube.requests == ["list rljobs full", "list pods full"]
    assert set(world.added) == {"uid-1"}
    assert [pod.phase for pod in world.cache.pods("uid-1")] == ["Running"]


def test_an_object_that_a_watch_said_was_deleted_is_not_brought_back_by_the_list() -> None:
    world = World()
    item = world.pod(1)
    world.job(1)
    world.cache.apply_job(world.kube.stored(RLJOBS, "job-1"))
    world.cache.remove_pod("uid-1", item["metadata"]["uid"], item)  # the list below was made just before
    asyncio.run(world.resync.full())
    assert [pod.gone for pod in world.cache.pods("uid-1")] == [True]


def test_ghosts_are_dropped_and_their_jobs_looked_at() -> None:
    world = World()
    world.job(1)
    world.pod(1, phase="Running")
    world.job(2)
    asyncio.run(world.resync.full())
    world.added.clear()
    del world.kube.objects["pods", NAMESPACE, "pod-1"]
    del world.kube.objects["rljobs", NAMESPACE, "job-2"]
    world.kube.version += 2
    asyncio.run(world.resync.by_metadata())
    assert world.added == ["uid-2", "uid-1"]
    assert [pod.gone for pod in world.cache.pods("uid-1")] == [True]
    assert world.cache.job("uid-2") is None


def test_what_is_newer_than_the_list_is_no_ghost() -> None:
    world = World()
    world.job(1)
    asyncio.run(world.resync.full())
    late = {**world.kube.stored(RLJOBS, "job-1"), "spec": world.kube.stored(RLJOBS, "job-1")["spec"]}
    late["metadata"] = {**late["metadata"], "name": "late", "uid": "late", "resourceVersion": "99"}
    world.cache.apply_job(late)
    asyncio.run(world.resync.by_metadata())
    assert world.cache.job("late") is not None


def test_unchanged_jobs_cost_two_lists_of_metadata_and_nobody_looks_at_them() -> None:
    world = World()
    for number in range(50):
        world.job(number)
        world.pod(number, phase="Running")
    asyncio.run(world.resync.full())
    world.added.clear()
    world.kube.requests.clear()
    asyncio.run(world.resync.by_metadata())
    assert world.kube.requests == ["list rljobs metadata", "list pods metadata"]
    assert world.added == []


def test_only_what_the_watches_missed_is_read() -> None:
    world = World(watch_lag_s=0.0)
    for number in range(3):
        world.job(number)
        world.pod(number, phase="Pending")
    asyncio.run(world.resync.full())
    world.added.clear()
    world.kube.requests.clear()
    world.pod(1, phase="Running")
    asyncio.run(world.resync.by_metadata())
    assert world.kube.requests[2:] == ["get pods pod-1"]
    assert world.added == ["uid-1"]
    assert [pod.phase for pod in world.cache.pods("uid-1")] == ["Running"]


def test_a_strangers_pod_with_our_label_is_not_read_again_and_again() -> None:
    world = World()
    about = {"name": "theirs", "namespace": NAMESPACE, "labels": {"app.kubernetes.io/managed-by": "rljob-operator"}}
    world.kube.put(PODS, {"metadata": about})
    asyncio.run(world.resync.full())
    world.kube.requests.clear()
    asyncio.run(world.resync.by_metadata())
    assert world.kube.requests == ["list rljobs metadata", "list pods metadata"]


def test_a_list_that_grew_too_old_is_begun_anew() -> None:
    world = World()
    world.job(1)
    asked: list[str] = []

    def refuse(verb: str, plural: str, name: str) -> KubeError | None:
        asked.append(plural)
        return Expired("list rljobs", code=410) if len(asked) == 1 else None

    world.kube.refuse = refuse
    asyncio.run(world.resync.full())
    assert world.cache.job("uid-1") is not None


def test_a_watch_that_was_listed_anew_causes_a_full_resync_once_it_is_open() -> None:
    async def story(world: World) -> None:
        world.monitor.listed(STREAMS[1])  # could not be resumed
        task = asyncio.create_task(world.resync.run())
        await asyncio.sleep(0.02)
        assert world.kube.requests == []
        world.monitor.opened(STREAMS[1])
        await soon(lambda: asyncio.sleep(3600), lambda: len(world.kube.requests) == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    world = World()
    world.open_all()
    asyncio.run(story(world))
    assert world.kube.requests == ["list rljobs full", "list pods full"]


def test_a_watch_that_is_resumed_causes_no_resync() -> None:
    async def story(world: World) -> None:
        world.open_all()
        world.monitor.opened(STREAMS[1])
        task = asyncio.create_task(world.resync.run())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    world = World()
    asyncio.run(story(world))
    assert world.kube.requests == []


def test_a_resync_comes_round_by_itself() -> None:
    world = World(resync_s=0.02)
    world.open_all()
    asyncio.run(soon(world.resync.run, lambda: world.kube.requests.count("list pods metadata") >= 3))


def test_a_resync_that_fails_is_tried_again() -> None:
    world = World(resync_s=0.02, list_retry_s=0.01)
    world.open_all()
    failures = iter([NetworkError("list rljobs"), NetworkError("list rljobs")])
    world.kube.refuse = lambda *_: next(failures, None)
    asyncio.run(soon(world.resync.run, lambda: "list pods metadata" in world.kube.requests))


def test_the_most_silent_watch_counts_and_any_word_ends_its_silence() -> None:
    world = World()
    world.open_all()
    world.seconds = 100.0
    world.monitor.said(STREAMS[0])
    assert world.monitor.silence_s() == 100.0
    assert world.monitor.last_times() == {"rljobs": 1e9 + 100.0, "pods": 1e9}
    world.monitor.said(STREAMS[1])
    assert world.monitor.silence_s() == 0.0
    world.monitor.said(Stream("secrets", None))  # none of ours
    world.seconds = 130.0
    assert world.monitor.silence_s() == 30.0
