"""The operator's own port, when somebody means it no good."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from rljob_operator.handlers.probes import Probes

from rlruntime.errors import ConfigError

HELD = 300


class Slow(Collector):
    """A metric that takes a while to be read."""

    def __init__(self) -> None:
        self.reads = 0

    def collect(self) -> Iterator[Metric]:
        self.reads += 1
        time.sleep(0.2)
        yield GaugeMetricFamily("slow", "It takes a while.", value=self.reads)


def with_probes(registry: CollectorRegistry, story: Callable[[int], Awaitable[None]]) -> None:
    async def run() -> None:
        probes = Probes(registry, unhealthy=lambda: "", unready=lambda: "")
        port = await probes.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(30.0):
                await story(port)
        finally:
            await probes.close()

    asyncio.run(run())


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nX-Slow: "], ids=["nothing", "half a request"])
def test_connections_that_are_held_open_are_bounded_and_keep_no_probe_from_its_answer(said: bytes) -> None:
    async def story(port: int) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(HELD)]
        for _, writer in held:
            writer.write(said)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
            for _ in range(20):
                async with session.get(f"http://127.0.0.1:{port}/healthz") as answer:
                    assert (answer.status, await answer.text()) == (200, "ok\n")
        for reader, _ in held[: HELD - 100]:  # those that were held longest are closed
            assert await reader.read() == b""
        for _, writer in held:
            writer.close()

    with_probes(CollectorRegistry(), story)


def test_all_who_ask_for_metrics_at_once_share_one_reading() -> None:
    registry, slow = CollectorRegistry(), Slow()
    registry.register(slow)
    slow.reads = 0  # registering reads it too

    async def story(port: int) -> None:
        async with aiohttp.ClientSession() as session:

            async def scrape() -> str:
                async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                    return await answer.text()

            texts = await asyncio.gather(*(scrape() for _ in range(30)))
        assert all("slow " in text for text in texts)

    with_probes(registry, story)
    assert slow.reads <= 3


def test_a_port_that_is_taken_is_refused_with_a_remedy() -> None:
    async def story(port: int) -> None:
        second = Probes(CollectorRegistry(), unhealthy=lambda: "", unready=lambda: "")
        with pytest.raises(ConfigError, match=r"^--metrics-port: the port can't be served: "):
            await second.start("127.0.0.1", port)
        await second.close()

    with_probes(CollectorRegistry(), story)
