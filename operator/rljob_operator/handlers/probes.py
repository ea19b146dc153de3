"""The web server of `/healthz`, `/readyz` and `/metrics`. It holds no secret and asks for no password."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from rlruntime.errors import ConfigError


class Probes:
    """Serves until closed.

    Args:
        unhealthy: returns why the process should be started anew; empty while it is well.
        unready: returns why it doesn't act yet; empty when it does.
    """

    def __init__(
        self, registry: CollectorRegistry, *, unhealthy: Callable[[], str], unready: Callable[[], str]
    ) -> None:
        self._registry, self._unhealthy, self._unready = registry, unhealthy, unready
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Begin to serve, and return the port; ``port`` 0 takes a free one.

        Raises:
            ConfigError: the port is taken.
        """
        app = web.Application()
        app.add_routes(
            [
                web.get("/healthz", self._answer(self._unhealthy)),
                web.get("/readyz", self._answer(self._unready)),
                web.get("/metrics", self._metrics),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(
                f"the port can't be served: {error.strerror}",
                field="--metrics-port",
                value=port,
                remedy="give another, or 0 for a free one",
            ) from None
        address = self._runner.addresses[0]
        return int(address[1])

    async def close(self) -> None:
        """End serving."""
        if self._runner is not None:
            await self._runner.cleanup()

    def _answer(self, problem: Callable[[], str]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handler(_: web.Request) -> web.StreamResponse:
            words = problem()
            return web.Response(status=503 if words else 200, text=f"{words or 'ok'}\n")

        return handler

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        # A thousand jobs take a tenth of a second, in which passes are to go on.
        body = await asyncio.to_thread(generate_latest, self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
