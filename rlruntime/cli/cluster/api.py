"""Requests to the API server as raw JSON, and what it refuses, as one line for people."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp

from rlruntime.cli.cluster.connection import Connection
from rlruntime.errors import EXIT_CONFIG, EXIT_FAULT, EXIT_TRY_AGAIN, ConfigError, RLJobError, one_line
from rlruntime.spec.manifest import GROUP, KIND, VERSION

JsonObject = dict[str, Any]
Parameters = Mapping[str, str]

_CONNECT_S, _ANSWER_S = 10.0, 30.0
_SILENCE_S = 150.0
"""Longest silence on a stream. The API server sends a bookmark to a watch every minute."""
_CHUNK = 500
_LINE_BYTES = 1024 * 1024
"""Longest line of a log that is kept in one piece."""
_MERGE_PATCH = "application/merge-patch+json"


def jobs_path(namespace: str | None, name: str = "") -> str:
    """Return the path of a job, or of all jobs; ``namespace`` None is all of them."""
    place = "" if namespace is None else f"/namespaces/{namespace}"
    return f"/apis/{GROUP}/{VERSION}{place}/rljobs" + (f"/{name}" if name else "")


def pods_path(namespace: str, name: str = "", subresource: str = "") -> str:
    """Return the path of a pod, of a part of it, or of all pods of a namespace."""
    parts = ("/api/v1/namespaces", namespace, "pods", name, subresource)
    return "/".join(part for part in parts if part)


class ApiError(RLJobError):
    """The API server refused.

    Args:
        code: of HTTP.
        message: the server's words.
        reason: its one word, such as ``NotFound``.
        line: what is said to people.
    """

    def __init__(self, code: int, message: str, reason: str, line: str, exit_code: int) -> None:
        self.code, self.message, self.reason, self.exit_code = code, message, reason, exit_code
        super().__init__(one_line(line))

    @property
    def passing(self) -> bool:
        """Whether the same request may be answered a little later."""
        return self.code == 429 or self.code >= 500


class Unreachable(RLJobError):
    """No answer came."""

    exit_code = EXIT_TRY_AGAIN


class Api:
    """One API server, from ``async with`` on."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = self.connection.session()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, tb: TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, parameters: Parameters | None = None) -> JsonObject:
        """Return an object.

        Raises:
            ApiError: the server refused.
            Unreachable: no answer came.
        """
        return await self._json("GET", path, parameters)

    async def patch(self, path: str, body: JsonObject) -> JsonObject:
        """Merge ``body`` into an object and return it as it is then; raises as `get`."""
        parameters = {"fieldManager": "rljob", "fieldValidation": "Strict"}
        return await self._json("PATCH", path, parameters, body=body)

    async def list(self, path: str, parameters: Parameters | None = None) -> tuple[list[JsonObject], str]:
        """Return all objects, and the version from which a watch sees what comes after them; raises as `get`."""
        items: list[JsonObject] = []
        wanted = {"limit": str(_CHUNK), **(parameters or {})}
        while True:
            page = await self.get(path, wanted)
            items += page.get("items") or []
            about = page.get("metadata") or {}
            if not about.get("continue"):
                return items, str(about.get("resourceVersion") or "")
            wanted["continue"] = about["continue"]

    async def watch(
        self, path: str, parameters: Parameters, version: str
    ) -> AsyncGenerator[tuple[str, JsonObject], None]:
        """Yield kinds of changes and objects until the server ends the watch, which it does every few minutes.

        Raises:
            ApiError: the server refused, with code 410 where ``version`` is too old.
            Unreachable: the connection broke, or nothing was heard for long.
        """
        wanted = {**parameters, "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version}
        async for line in self.lines(path, wanted, most_bytes=None):
            event = _decoded(line)
            item = event.get("object") or {}
            if event.get("type") == "ERROR":
                raise _refusal(int(item.get("code") or 500), item, self.connection)
            yield str(event.get("type")), item

    async def lines(
        self, path: str, parameters: Parameters, *, most_bytes: int | None = _LINE_BYTES, silence_s: float = _SILENCE_S
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of an answer as they come; raises as `watch`.

        Args:
            most_bytes: lines that are longer are cut into several.
            silence_s: longest time without a byte.
        """
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_S, sock_read=silence_s)
        async with self._answer("GET", path, parameters, timeout=timeout) as answer:
            rest = bytearray()
            with self._broken():
                async for chunk in answer.content.iter_any():
                    rest += chunk
                    *whole, last = rest.split(b"\n")
                    rest = bytearray(last)
                    for line in whole:
                        yield bytes(line)
                    while most_bytes is not None and len(rest) > most_bytes:
                        yield bytes(rest[:most_bytes])
                        del rest[:most_bytes]
            if rest:
                yield bytes(rest)

    async def _json(
        self, method: str, path: str, parameters: Parameters | None, body: JsonObject | None = None
    ) -> JsonObject:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S, sock_connect=_CONNECT_S)
        async with self._answer(method, path, parameters, body=body, timeout=timeout) as answer:
            with self._broken():
                return _decoded(await answer.read())

    @contextlib.asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        parameters: Parameters | None,
        *,
        timeout: aiohttp.ClientTimeout,
        body: JsonObject | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, a second time with a new identity where the first isn't accepted, and give the answer."""
        for attempt in (1, 2):
            answer = await self._send(method, path, parameters, timeout=timeout, body=body)
            try:
                if answer.status == 401 and attempt == 1:
                    await self.connection.reload()
                    continue
                if answer.status >= 300:
                    with self._broken():
                        text = await answer.read()
                    raise _refusal(answer.status, text, self.connection)
                yield answer
                return
            finally:
                answer.close()

    async def _send(
        self,
        method: str,
        path: str,
        parameters: Parameters | None,
        *,
        timeout: aiohttp.ClientTimeout,
        body: JsonObject | None,
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the session isn't open")
        headers = {"Accept": "application/json", **await self.connection.headers()}
        data = None
        if body is not None:
            headers["Content-Type"] = _MERGE_PATCH
            data = json.dumps(body).encode()
        with self._broken():
            return await self._session.request(
                method,
                self.connection.server + path,
                params={name: value for name, value in (parameters or {}).items() if value},
                data=data,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                server_hostname=self.connection.server_hostname,
            )

    @contextlib.contextmanager
    def _broken(self) -> Any:
        """Turn what goes wrong on the way into one line."""
        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            words = f"the certificate of {self.connection.server} isn't trusted: {error.certificate_error}"
            raise ConfigError(one_line(words), remedy="see certificate-authority in the kubeconfig") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            words = _words_of(error)
            raise Unreachable(one_line(f"the API server {self.connection.server} can't be reached: {words}")) from None


def _words_of(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "it doesn't answer"
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__


def _decoded(text: bytes) -> JsonObject:
    """Return the object that ``text`` holds."""
    try:
        found = json.loads(text)
    except ValueError:
        raise Unreachable("what answers in place of the API server doesn't speak JSON") from None
    except RecursionError:
        raise RLJobError("an object of this cluster is nested too deeply to be read; name another namespace") from None
    if not isinstance(found, dict):
        raise Unreachable("what answers in place of the API server doesn't speak its language")
    return found


def _refusal(code: int, answer: bytes | JsonObject, connection: Connection) -> ApiError:
    """Return the error that an answer stands for."""
    status: Any = answer
    if isinstance(answer, bytes):
        try:
            status = json.loads(answer)
        except (ValueError, RecursionError):
            status = {}
    if not isinstance(status, dict):
        status = {}
    message, reason = str(status.get("message") or ""), str(status.get("reason") or "")
    details = status.get("details")
    named = isinstance(details, dict) and bool(details.get("name"))
    words = message or f"code {code}"
    where = f" of the context {connection.context}" if connection.context else ""
    if code == 401:
        line, exit_code = f"the API server doesn't accept the credentials{where}; log in again", EXIT_CONFIG
    elif code == 403:
        line, exit_code = f"{words}; ask whoever runs the cluster for this right", EXIT_CONFIG
    elif code == 404 and not named:
        line = f"the API server {connection.server} doesn't know {KIND}; install RLJob there, or name another --context"
        exit_code = EXIT_CONFIG
    elif code == 404:
        line, exit_code = words, EXIT_CONFIG
    elif code == 429 or code >= 500:
        line, exit_code = f"the API server can't do this now: {words}", EXIT_TRY_AGAIN
    else:
        line, exit_code = f"the API server refuses: {words}", EXIT_FAULT
    return ApiError(code, message, reason, line, exit_code)
