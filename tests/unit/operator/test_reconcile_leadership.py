"""Which of two operators acts, on a clock of the test's own and a Lease in memory."""

from __future__ import annotations

import asyncio
import copy
import heapq
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rljob_operator.builders.owner import KubeObject
from rljob_operator.cli import parser
from rljob_operator.kube.errors import AlreadyExists, Conflict, Forbidden, KubeError, NetworkError, NotFound
from rljob_operator.kube.resources import Resource
from rljob_operator.reconcile.leadership import Leadership, LeadershipLost, Lease

from rlruntime.errors import ConfigError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BEGIN_S = 1000.0
LEASE = Lease("rljob-system", "operator", 15)


@dataclass
class Clock:
    """Stands still until it is told to go on; whoever sleeps is woken at its time."""

    now_s: float = BEGIN_S
    sleepers: list[tuple[float, int, asyncio.Future[None]]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self.sleepers, (self.now_s + seconds, next(self.numbers), woken))
        await woken

    async def go_on(self, seconds: float, each: Callable[[], None] = lambda: None) -> None:
        """Let so much time pass; ``each`` is called after everything that happens in it."""
        await settle()
        until_s = self.now_s + seconds
        while self.sleepers and self.sleepers[0][0] <= until_s:
            self.now_s, _, woken = heapq.heappop(self.sleepers)
            if not woken.done():
                woken.set_result(None)
            await settle()
            each()
        self.now_s = until_s


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


class Server:
    """Keeps one Lease, and refuses whoever writes over what he hasn't seen."""

    def __init__(self) -> None:
        self.lease: KubeObject | None = None
        self.refuses: Callable[[], KubeError | None] = lambda: None
        self.hangs = False

    async def get(self, resource: Resource, namespace: str, name: str, *, metadata_only: bool = False) -> KubeObject:
        await self._begin()
        if self.lease is None:
            raise NotFound("get leases", code=404)
        return copy.deepcopy(self.lease)

    async def create(self, body: KubeObject, *, dry_run: bool = False) -> KubeObject:
        await self._begin()
        if self.lease is not None:
            raise AlreadyExists("create leases", code=409)
        return self._store(body, 1)

    async def replace(self, body: KubeObject) -> KubeObject:
        await self._begin()
        if self.lease is None:
            raise NotFound("update leases", code=404)
        version = self.lease["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            raise Conflict("update leases", code=409)
        return self._store(body, int(version) + 1)

    @property
    def holder(self) -> str:
        return "" if self.lease is None else str(self.lease["spec"]["holderIdentity"])

    def touch(self) -> None:
        """Somebody changes the Lease without meaning to take it."""
        assert self.lease is not None
        self._store(self.lease, int(self.lease["metadata"]["resourceVersion"]) + 1)

    async def _begin(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        error = self.refuses()
        if error is not None:
            raise error

    def _store(self, body: KubeObject, version: int) -> KubeObject:
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(version)
        return {"metadata": self.lease["metadata"]}


class Scene:
    """Two operators, one Lease."""

    def __init__(self) -> None:
        self.clock, self.server = Clock(), Server()
        self.times: dict[str, Callable[[], datetime]] = {}
        """What an operator's own clock says, by its identity, where it isn't right."""
        self.one, self.two = self._operator("one"), self._operator("two")
        self.tasks: list[asyncio.Task[None]] = []
        self.both = False
        """Whether both ever held it at once."""

    def _operator(self, identity: str) -> Leadership:
        return Leadership(
            self.server,
            LEASE,
            identity=identity,
            now=lambda: self._time_of(identity),
            monotonic=lambda: self.clock.now_s,
            uniform=lambda low, high: (low + high) / 2,
            sleep=self.clock.sleep,
        )

    def _time_of(self, identity: str) -> datetime:
        own = self.times.get(identity)
        return NOON + timedelta(seconds=self.clock.now_s - BEGIN_S) if own is None else own()

    def begin(self, operator: Leadership) -> asyncio.Task[None]:
        """Have an operator take the Lease and keep it."""

        async def life() -> None:
            await operator.acquire()
            await operator.keep()

        self.tasks.append(asyncio.create_task(life()))
        return self.tasks[-1]

    async def go_on(self, seconds: float) -> None:
        await self.clock.go_on(seconds, self._look)

    def _look(self) -> None:
        self.both = self.both or (self.one.holds() and self.two.holds())


def play(story: Callable[[Scene], Awaitable[Any]]) -> None:
    async def run() -> None:
        scene = Scene()
        try:
            await story(scene)
        finally:
            for task in scene.tasks:
                task.cancel()
            await asyncio.gather(*scene.tasks, return_exceptions=True)
        assert not scene.both

    asyncio.run(run())


def test_the_first_takes_the_lease_and_the_second_stands_by() -> None:
    async def story(scene: Scene) -> None:
        scene.begin(scene.one)
        await scene.go_on(0.0)
        scene.begin(scene.two)
        await scene.go_on(300.0)
        assert (scene.one.holds(), scene.two.holds()) == (True, False)
        assert scene.server.lease is not None
        spec = scene.server.lease["spec"]
        assert spec.pop("renewTime").startswith("2026-01-01T12:04:5")
        assert spec == {
            "holderIdentity": "one",
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-01-01T12:00:00.000000Z",
            "leaseTransitions": 0,
        }

    play(story)


def test_one_that_was_killed_is_succeeded_once_its_lease_has_run_out() -> None:
    async def story(scene: Scene) -> None:
        first = scene.begin(scene.one)
        await scene.go_on(0.0)
        scene.begin(scene.two)
        await scene.go_on(60.0)
        first.cancel()
        await scene.go_on(12.0)  # it has last been renewed up to 2.2 s ago
        assert not scene.two.holds()
        await scene.go_on(8.0)
        assert scene.two.holds()
        assert scene.server.lease is not None
        assert scene.server.lease["spec"]["leaseTransitions"] == 1

    play(story)


def test_one_that_gives_the_lease_back_is_succeeded_at_the_next_look() -> None:
    async def story(scene: Scene) -> None:
        first = scene.begin(scene.one)
        await scene.go_on(0.0)
        scene.begin(scene.two)
        await scene.go_on(60.0)
        first.cancel()
        await scene.one.release()
        assert not scene.one.holds()
        assert scene.server.holder == ""
        await scene.go_on(2.5)
        assert scene.two.holds()

    play(story)


def test_a_server_that_is_away_for_five_seconds_costs_nothing() -> None:
    async def story(scene: Scene) -> None:
        first = scene.begin(scene.one)
        await scene.go_on(60.0)
        scene.server.refuses = lambda: NetworkError("get leases", reason="TimeoutError")
        await scene.go_on(5.0)
        scene.server.refuses = lambda: None
        await scene.go_on(60.0)
        assert scene.one.holds()
        assert not first.done()

    play(story)


def test_one_that_can_not_renew_ends_before_another_may_take_over() -> None:
    async def story(scene: Scene) -> None:
        first = scene.begin(scene.one)
        await scene.go_on(60.0)
        scene.server.refuses = lambda: NetworkError("get leases", reason="TimeoutError")
        await scene.go_on(12.5)
        assert not scene.one.holds()
        with pytest.raises(LeadershipLost, match="could not be renewed in time"):
            await first

    play(story)


def test_one_that_stood_still_for_a_minute_may_not_act_when_it_goes_on() -> None:
    async def story(scene: Scene) -> None:
        first = scene.begin(scene.one)
        await scene.go_on(60.0)
        scene.clock.sleepers.clear()  # it is stopped: nothing wakes it
        scene.begin(scene.two)
        await scene.go_on(60.0)
        assert not scene.one.holds()  # asked before each write, whatever else it is about to do
        assert scene.two.holds()
        first.cancel()

    play(story)


def test_one_whose_lease_was_taken_ends_at_its_next_look() -> None:
    async def story(scene: Scene) -> None:
        first = scene.begin(scene.one)
        await scene.go_on(60.0)
        assert scene.server.lease is not None
        scene.server.lease["spec"]["holderIdentity"] = "somebody"
        scene.server.touch()
        await scene.go_on(2.5)
        assert not scene.one.holds()
        with pytest.raises(LeadershipLost, match="held by somebody"):
            await first

    play(story)


def test_a_change_by_somebody_else_that_takes_nothing_is_survived() -> None:
    async def story(scene: Scene) -> None:
        first = scene.begin(scene.one)
        for _ in range(30):
            await scene.go_on(1.0)
            scene.server.touch()
        assert scene.one.holds()
        assert not first.done()

    play(story)


def test_a_holder_whose_clock_is_wrong_is_believed_while_it_renews() -> None:
    async def story(scene: Scene) -> None:
        years = iter(range(1971, 2070))
        scene.times["one"] = lambda: NOON.replace(year=next(years))
        scene.begin(scene.one)
        await scene.go_on(0.0)
        scene.begin(scene.two)
        await scene.go_on(90.0)
        assert (scene.one.holds(), scene.two.holds()) == (True, False)

    play(story)


def test_missing_rights_are_said_at_once() -> None:
    async def story(scene: Scene) -> None:
        scene.server.refuses = lambda: Forbidden("get leases", code=403, message="cannot get resource leases")
        with pytest.raises(ConfigError, match="cannot get resource leases"):
            await scene.one.acquire()

    play(story)


def test_a_namespace_that_is_not_there_is_said() -> None:
    async def story(scene: Scene) -> None:
        scene.server.refuses = lambda: NotFound("create leases", code=404)
        with pytest.raises(ConfigError, match="there is no such namespace"):
            await scene.one.acquire()

    play(story)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--lease", "operator"], "give the namespace and the name of a Lease"),
        (["--lease", "System/operator"], "give the namespace and the name of a Lease"),
        (["--lease", "system/one/two"], "give the namespace and the name of a Lease"),
        (["--lease-seconds", "1"], "give a number from 2 to 600"),
    ],
)
def test_options_that_name_no_lease_are_refused(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["run", "--all-namespaces", *options])
    assert words in capsys.readouterr().err


def test_a_lease_is_named_by_its_namespace_and_its_name() -> None:
    found = parser().parse_args(["run", "--all-namespaces", "--lease", "rljob-system/operator"])
    assert (found.lease, found.lease_seconds) == (("rljob-system", "operator"), 15)
