"""What a command sees of objects while connections break and the server is away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from played_api import PlayedApi

from rlruntime.cli.cluster.api import Api, ApiError, jobs_path
from rlruntime.cli.cluster.connection import Connection
from rlruntime.cli.cluster.log_streams import Extent, LogLine, read_log
from rlruntime.cli.cluster.watching import Change, Silence, Snapshot, observe

PATH = jobs_path("team-a")


@pytest.fixture
def played() -> Iterator[PlayedApi]:
    with PlayedApi() as api:
        yield api


def job(name: str, **about: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "team-a", "name": name, **about}}


@contextlib.asynccontextmanager
async def events_of(played: PlayedApi, folder: Path) -> AsyncGenerator[Any, None]:
    """Give a function that returns the next event, in words."""
    connection = await Connection.load(str(played.kubeconfig(folder / "kubeconfig")))
    async with Api(connection) as api, contextlib.aclosing(observe(api, PATH)) as events:

        async def following() -> Any:
            event = await asyncio.wait_for(anext(events), 30)
            match event:
                case Snapshot(items):
                    return [item["metadata"]["name"] for item in items]
                case Change(item, deleted):
                    return item["metadata"]["name"], deleted
                case Silence(words):
                    return words

        yield following


def watches(played: PlayedApi) -> int:
    return sum("watch=1" in request for request in played.requests)


def lists(played: PlayedApi) -> int:
    return sum("limit=" in request for request in played.requests)


def test_objects_come_as_one_list_and_then_as_changes(played: PlayedApi, tmp_path: Path) -> None:
    async def look() -> None:
        async with events_of(played, tmp_path) as following:
            assert await following() == ["a"]
            played.put("rljobs", job("b"))
            assert await following() == ("b", False)
            played.remove("rljobs", "a")
            assert await following() == ("a", True)

    played.put("rljobs", job("a"))
    asyncio.run(look())
    assert (lists(played), watches(played)) == (1, 1)


def test_a_watch_that_breaks_is_followed_by_a_new_list_with_what_was_missed(played: PlayedApi, tmp_path: Path) -> None:
    async def look() -> None:
        async with events_of(played, tmp_path) as following:
            assert await following() == ["a"]
            waiting = asyncio.create_task(following())
            while not watches(played):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(played.break_streams)
            assert "can't be reached" in await waiting
            await asyncio.to_thread(played.put, "rljobs", job("b"))
            assert await following() == ["a", "b"]

    played.put("rljobs", job("a"))
    asyncio.run(look())


def test_a_server_that_is_away_is_asked_again_after_a_pause(played: PlayedApi, tmp_path: Path) -> None:
    async def look() -> list[float]:
        times: list[float] = []
        async with events_of(played, tmp_path) as following:
            await following()
            played.refuse["/rljobs"] = (503, "etcd is away")
            await asyncio.to_thread(played.break_streams)
            for _ in range(2):
                assert await following()
                times.append(asyncio.get_running_loop().time())
            played.refuse.clear()
            assert await following() == ["a"]
        return times

    played.put("rljobs", job("a"))
    first, second = asyncio.run(look())
    assert second - first > 0.7


def test_a_version_that_is_too_old_is_followed_by_a_new_list(played: PlayedApi, tmp_path: Path) -> None:
    async def look() -> None:
        async with events_of(played, tmp_path) as following:
            assert await following() == ["a"]
            played.expired = True
            assert await following() == ["a"]

    played.put("rljobs", job("a"))
    asyncio.run(look())


@pytest.mark.parametrize("code", [401, 403, 404, 503])
def test_a_refusal_of_the_first_list_is_raised(played: PlayedApi, tmp_path: Path, code: int) -> None:
    async def look() -> None:
        async with events_of(played, tmp_path) as following:
            await following()

    played.refuse["/rljobs"] = (code, "no")
    with pytest.raises(ApiError) as refused:
        asyncio.run(look())
    assert refused.value.code == code


def test_a_right_that_is_taken_away_ends_watching(played: PlayedApi, tmp_path: Path) -> None:
    async def look() -> None:
        async with events_of(played, tmp_path) as following:
            await following()
            played.refuse["/rljobs"] = (403, "forbidden")
            await following()

    with pytest.raises(ApiError):
        asyncio.run(look())


def test_a_log_goes_on_after_the_last_line_that_was_read(played: PlayedApi, tmp_path: Path) -> None:
    stamps = [f"2026-05-04T14:02:{second:02}.000000500Z" for second in range(4)]
    read: list[LogLine] = []

    async def look() -> None:
        connection = await Connection.load(str(played.kubeconfig(tmp_path / "kubeconfig")))
        async with Api(connection) as api:
            first = read_log(api, "team-a", "pod", Extent(tail=3), follow=True)
            read.append(await anext(first))
            read.append(await anext(first))
            await first.aclose()
            played.log("pod", f"{stamps[2]} c", ends=True)
            async for line in read_log(api, "team-a", "pod", Extent(tail=3), follow=True, after=read[-1]):
                read.append(line)

    played.log("pod", f"{stamps[0]} a", f"{stamps[1]} b")
    asyncio.run(look())
    assert [line.text for line in read] == ["a", "b", "c"]
    assert "tailLines=3" in played.requests[0]
    assert "sinceTime=2026-05-04T14:02:01Z" in played.requests[1]
    assert "tailLines" not in played.requests[1]


def test_the_other_end_of_a_silent_stream_is_asked_whether_it_is_there(played: PlayedApi, tmp_path: Path) -> None:
    async def look() -> None:
        connection = await Connection.load(str(played.kubeconfig(tmp_path / "kubeconfig")))
        async with Api(connection) as api:
            lines = read_log(api, "team-a", "pod", Extent(), follow=True)
            assert (await asyncio.wait_for(anext(lines), 30)).text == "a"
            async with asyncio.timeout(30):
                while timers_to(played.port) != [keepalive]:  # the line is being acknowledged
                    await asyncio.sleep(0.01)
            await lines.aclose()

    keepalive = "02"
    played.log("pod", "2026-05-04T14:02:00.000000500Z a")
    asyncio.run(look())


def timers_to(port: int) -> list[str]:
    """Return which timer the kernel has set on each connection of this machine to a local port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = "01"
    return [row[5].split(":")[0] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == established]
