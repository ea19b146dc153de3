"""The web server of `/healthz`, `/readyz` and `/metrics`. It holds no secret and asks for no password."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from rlruntime.errors import ConfigError

_MOST_CONNECTIONS = 64


class Probes:
    """Serves until closed. Whoever holds connections open, or asks without end, costs little, and keeps out nobody.

    Args:
        unhealthy: returns why the process should be started anew; empty while it is well.
        unready: returns why it doesn't act yet; empty when it does.
    """

    def __init__(
        self, registry: CollectorRegistry, *, unhealthy: Callable[[], str], unready: Callable[[], str]
    ) -> None:
        self._registry, self._unhealthy, self._unready = registry, unhealthy, unready
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._rendering: asyncio.Future[bytes] | None = None

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
        runner = self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()

        def connected() -> asyncio.BaseProtocol:
            """Take a connection; of too many, the oldest is closed."""
            server = runner.server
            assert server is not None
            if len(server.connections) >= _MOST_CONNECTIONS:
                server.connections[0].force_close()
            return server()

        try:
            self._listener = await asyncio.get_running_loop().create_server(connected, host, port)
        except OSError as error:
            await runner.cleanup()
            raise ConfigError(
                f"the port can't be served: {error.strerror}",
                field="--metrics-port",
                value=port,
                remedy="give another, or 0 for a free one",
            ) from None
        return int(self._listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """End serving."""
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _answer(self, problem: Callable[[], str]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handler(_: web.Request) -> web.StreamResponse:
            words = problem()
            return web.Response(status=503 if words else 200, text=f"{words or 'ok'}\n")

        return handler

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        """A thousand jobs take a tenth of a second, in which passes go on; all who ask meanwhile get the same."""
        if self._rendering is None or self._rendering.done():
            self._rendering = asyncio.ensure_future(asyncio.to_thread(generate_latest, self._registry))
        body = await asyncio.shield(self._rendering)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
