"""A proxy before an API server: kills its client between two writes, loses answers, and holds watches silent.

It speaks plain HTTP to the client and TLS to the server, and passes the client's credentials on.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp
import yaml
from aiohttp import web

_START_S, _STOP_S = 10.0, 10.0
_WRITES = ("POST", "PUT", "PATCH", "DELETE")
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}

Moment = Literal["before", "after"]
"""``before``: the server never sees the write. ``after``: it is done, and its answer is lost."""


@dataclass(frozen=True)
class Write:
    """A request that changes something; dry runs are none."""

    method: str
    path: str


@dataclass
class _Strike:
    number: int
    moment: Moment
    action: Callable[[], None]


class ApiProxy:
    """Proxy to an API server, from ``__enter__`` to ``__exit__``.

    Args:
        kubeconfig: of a user of that server; ``kubeconfig`` gives the same user's through the proxy.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._config: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
        cluster = self._config["clusters"][0]["cluster"]
        self._server: str = cluster["server"]
        self._authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.url = ""
        """Where it listens."""
        self.writes: list[Write] = []
        """Writes that arrived, in their order."""
        self._strike: _Strike | None = None
        self._silence: Literal["open", "all"] | None = None
        self._open_watches = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api-proxy", daemon=True)
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None

    def strike(self, number: int, moment: Moment, action: Callable[[], None]) -> None:
        """At the write with this number, from 1, call ``action`` (which kills the client) and never answer it."""
        self._strike = _Strike(number, moment, action)

    def silence_watches(self, *, also_new: bool) -> None:
        """Hold the open watches silent: what the server says on them is lost to the client, and they stay open.

        Args:
            also_new: whether those opened later are silent as well, until ``end_silence``.
        """

        def begin() -> None:
            self._silence = "all" if also_new else "open"

        self._loop.call_soon_threadsafe(begin)

    def end_silence(self) -> None:
        """Let watches that are opened from now on speak."""

        def end() -> None:
            self._silence = None

        self._loop.call_soon_threadsafe(end)

    def kubeconfig(self, path: Path) -> Path:
        """Write the user's kubeconfig that goes through the proxy to ``path``, and return that."""
        path.touch(mode=0o600)
        path.write_text(
            yaml.safe_dump({**self._config, "clusters": [{"name": "cluster", "cluster": {"server": self.url}}]})
        )
        return path

    @property
    def open_watches(self) -> int:
        """Watches that are open now."""
        return self._open_watches

    def __enter__(self) -> Self:
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(_START_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)
        self._loop.close()

    async def _start(self) -> str:
        connector = aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context(cadata=self._authority))
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        struck = self._note_write(request)
        if struck is not None and struck.moment == "before":
            return await _never_answer(struck)
        assert self._session is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        watch = request.query.get("watch") in ("true", "1")
        async with self._session.request(
            request.method,
            f"{self._server}{request.raw_path}",
            data=await request.read() or None,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
        ) as answer:
            if struck is not None:
                await answer.read()
                return await _never_answer(struck)
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=kept)
            await response.prepare(request)
            if watch:
                await self._pass_watch(answer, response)
            else:
                await response.write(await answer.read())
            await response.write_eof()
            return response

    def _note_write(self, request: web.Request) -> _Strike | None:
        if request.method not in _WRITES or "dryRun" in request.query:
            return None
        self.writes.append(Write(request.method, request.path))
        strike = self._strike
        if strike is None or len(self.writes) != strike.number:
            return None
        self._strike = None
        return strike

    async def _pass_watch(self, answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        """Pass events on. Once a watch was silenced it never speaks again."""
        silenced, silence_at_start = self._silence == "all", self._silence
        self._open_watches += 1
        try:
            async for chunk in answer.content.iter_any():
                silenced = silenced or (self._silence is not None and silence_at_start is None)
                if not silenced:
                    await response.write(chunk)
            if silenced:
                await asyncio.Event().wait()  # until the client goes away
        finally:
            self._open_watches -= 1


async def _never_answer(strike: _Strike) -> web.StreamResponse:
    strike.action()
    await asyncio.Event().wait()  # until the client, which is dead, goes away
    raise AssertionError("unreachable")
