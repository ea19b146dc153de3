"""The session that kopf makes its requests on.

It is ours for three reasons: kopf's own logins don't know `kubernetes.aio`; what kopf doesn't tell its handlers (lists,
openings, bookmarks) is heard here; and the events of a watch are taken here, before kopf unpacks them, which costs it
more than all that is then done about them. kopf opens the watches and resumes them, and its handlers take what it
lists.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType
from typing import Any

import aiohttp
import kopf
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse

from rljob_operator.kube.connection import Connection
from rljob_operator.kube.nesting import shallow
from rljob_operator.kube.resources import parse_path
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.reconcile.watches import Stream, WatchMonitor

logger = logging.getLogger(__name__)

_PAUSE_MAX_S = 30.0
_CALM_S = 60.0
_OF_OBJECTS = ("ADDED", "MODIFIED", "DELETED")
Event = dict[str, Any]
"""As the API server sends it: `type` and `object`."""
Take = Callable[[Event], None]
_READABLE = 800
"""Levels that Python's reader of JSON is sure to manage, called from as deep as kopf calls it."""


class Login:
    """Gives kopf a session, and a new one when the API server refused the last.

    Args:
        monotonic: seconds on a clock that never jumps.
        takers: by the plural of a resource, what takes its events; those of others are left to kopf.
    """

    def __init__(
        self,
        connection: Connection,
        monitor: WatchMonitor,
        metrics: OperatorMetrics,
        *,
        monotonic: Callable[[], float],
        takers: Mapping[str, Take] = MappingProxyType({}),
    ) -> None:
        self._connection, self._monitor, self._metrics = connection, monitor, metrics
        self._monotonic, self._takers = monotonic, takers
        self._last_s = float("-inf")
        self._pause_s = 0.0
        self._problems: dict[str, str] = {}

    async def __call__(self, **_: Any) -> kopf.AiohttpSession:
        """Return a session; a server that refuses one after the other is asked ever more rarely."""
        now_s = self._monotonic()
        if now_s - self._last_s < _CALM_S:
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(_PAUSE_MAX_S, max(0.5, 2 * self._pause_s))
            await self._connection.reload()
        else:
            self._pause_s = 0.0
        self._last_s = self._monotonic()
        session = self._connection.session(
            limit=0, timeout=aiohttp.ClientTimeout(total=None), middlewares=(self._listen,)
        )
        return kopf.AiohttpSession(server=self._connection.server, aiohttp_session=session)

    async def _listen(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Send a request with the identity of now, and note what it was."""
        request.headers.update(await self._connection.headers())
        resource, namespace, name = parse_path(request.url.path)
        query = request.url.query
        is_watch = query.get("watch") == "true"
        stream = Stream(resource, namespace)
        if request.method == "GET" and not name and not is_watch and "continue" not in query:
            self._monitor.listed(stream)
        verb = "watch" if is_watch else "get" if name else "list"
        try:
            response = await handler(request)
        except BaseException as error:
            self._metrics.count_request(verb, resource, "error")
            if isinstance(error, Exception):
                self._tell(f"{verb} {resource}", type(error).__name__)
            raise
        self._metrics.count_request(verb, resource, response.status)
        self._tell(f"{verb} {resource}", "" if response.status < 400 else str(response.status))
        if is_watch and response.status == 200:
            self._monitor.opened(stream)
            response.content = _Heard(  # type: ignore[assignment]
                response.content, lambda: self._monitor.said(stream), self._takers.get(resource)
            )
        return response

    def _tell(self, request: str, problem: str) -> None:
        """Log once that a request doesn't get through, and once that it does again."""
        if problem and self._problems.get(request) != problem:
            logger.warning("%s: %s; it is tried until it succeeds", request, problem)
            self._problems[request] = problem
        elif not problem and self._problems.pop(request, ""):
            logger.info("%s: succeeds again", request)


class _Heard:
    """The body of a watch, line by line, with word given of whatever comes.

    Args:
        take: told of every event that is of an object; in its place kopf reads how far the watch is.
    """

    def __init__(self, content: aiohttp.StreamReader, said: Callable[[], None], take: Take | None) -> None:
        self._content, self._said, self._take = content, said, take

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield what comes, in whole lines of JSON that isn't nested without end."""
        begun: list[bytes] = []
        async for data in self._content.iter_chunked(size):
            self._said()
            begun.append(data)
            if b"\n" in data:
                *lines, rest = b"".join(begun).split(b"\n")
                begun = [rest]
                yield b"".join(self._left(_readable(line)) + b"\n" for line in lines)
        if last := b"".join(begun):
            yield _readable(last)

    def _left(self, line: bytes) -> bytes:
        """Take an event, and return what is left of it for kopf; whatever isn't one is left to it as it is."""
        if self._take is None:
            return line
        try:
            event = json.loads(line)
            if event["type"] not in _OF_OBJECTS:
                return line
            version = event["object"]["metadata"]["resourceVersion"]
            self._take(event)
        except Exception:  # kopf meets the same, and says so
            return line
        return json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version}}}).encode()


def _readable(line: bytes) -> bytes:
    return line if line.count(b"{") + line.count(b"[") < _READABLE else shallow(line)
