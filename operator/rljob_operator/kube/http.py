"""The requests of the operator on HTTP, as raw JSON.

Reads are tried again when no answer came or the server failed. Writes are tried again only after a 429, by which the
server says that it did nothing; whoever wrote finds out by its next look at the object.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from rljob_operator.builders.owner import KubeObject
from rljob_operator.kube.client import Page, Propagation
from rljob_operator.kube.connection import Connection
from rljob_operator.kube.errors import (
    NetworkError,
    NotLeading,
    ServerError,
    TooManyRequests,
    Unauthorized,
    error_of,
)
from rljob_operator.kube.nesting import loads
from rljob_operator.kube.resources import RLJOBS, Resource, resource_of
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.settings import CONNECTIONS, LIST_CHUNK
from rlruntime.errors import ConfigError

_JSON = "application/json"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_MERGE = "application/merge-patch+json"
_ATTEMPTS = 4
_PAUSE_S = 0.2
_OPENAPI_TIMEOUT_S = 30.0

Parameters = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Request:
    verb: str
    """As rights and metrics have it."""
    method: str
    plural: str
    path: str
    headers: Mapping[str, str]
    timeout_s: float
    parameters: Parameters = field(default_factory=dict)
    data: bytes | None = None

    @property
    def name(self) -> str:
        return f"{self.verb} {self.plural}"


class HttpClient:
    """`KubeClient` on one session, closed by :meth:`close`.

    Args:
        timeout_s: of one request.
        may_write: asked before each write; one that may not be is `NotLeading`.
    """

    def __init__(
        self,
        connection: Connection,
        metrics: OperatorMetrics,
        *,
        timeout_s: float,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._connection, self._metrics = connection, metrics
        self._timeout_s, self._may_write = timeout_s, may_write
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._sessions: list[aiohttp.ClientSession] = []
        self._generation = 0

    async def close(self) -> None:
        """Close all connections."""
        while self._sessions:
            await self._sessions.pop().close()

    async def create(self, body: KubeObject, *, dry_run: bool = False) -> KubeObject:
        """Create ``body``."""
        resource = resource_of(body["kind"])
        parameters = {"fieldValidation": "Strict", "fieldManager": "rljob-operator"}
        if dry_run:
            parameters["dryRun"] = "All"
        path = resource.path(body["metadata"]["namespace"])
        return await self._json("create", "POST", resource, path, parameters, body=body, accept=_METADATA)

    async def get(self, resource: Resource, namespace: str, name: str, *, metadata_only: bool = False) -> KubeObject:
        """Return the object."""
        accept = _METADATA if metadata_only else _JSON
        return await self._json("get", "GET", resource, resource.path(namespace, name), accept=accept)

    async def pages(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        chunk: int = LIST_CHUNK,
    ) -> AsyncIterator[Page]:
        """Yield the objects of a namespace, or of all, ``chunk`` in a page."""
        parameters = {"limit": str(chunk), "labelSelector": label_selector, "fieldSelector": field_selector}
        parameters = {name: value for name, value in parameters.items() if value}
        accept = _METADATA_LIST if metadata_only else _JSON
        while True:
            found = await self._json("list", "GET", resource, resource.path(namespace), parameters, accept=accept)
            about = found.get("metadata") or {}
            yield Page(found.get("items") or [], str(about.get("resourceVersion") or ""))
            if not about.get("continue"):
                return
            parameters["continue"] = about["continue"]

    async def replace(self, body: KubeObject) -> KubeObject:
        """Put ``body`` in the place of the object if that still has its `resourceVersion`."""
        resource, about = resource_of(body["kind"]), body["metadata"]
        path = resource.path(about["namespace"], about["name"])
        parameters = {"fieldManager": "rljob-operator"}
        return await self._json("update", "PUT", resource, path, parameters, body=body, accept=_METADATA)

    async def patch_status(self, namespace: str, name: str, body: KubeObject) -> KubeObject:
        """Merge ``body`` into a job's status."""
        path = RLJOBS.path(namespace, name, "status")
        return await self._json(
            "patch", "PATCH", RLJOBS, path, {"fieldManager": "rljob-operator"}, body=body, accept=_METADATA
        )

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str | None = None,
        grace_s: int | None = None,
        propagation: Propagation = "Background",
    ) -> KubeObject:
        """Delete the object if it still has this uid."""
        preconditions = {"uid": uid}
        if resource_version is not None:
            preconditions["resourceVersion"] = resource_version
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": propagation,
        }
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        path = resource.path(namespace, name)
        left = await self._json("delete", "DELETE", resource, path, body=body, accept=_METADATA)
        return {} if left.get("kind") == "Status" else left

    async def document(self, path: str) -> KubeObject:
        """Return what the server says at ``path``, such as a page of its OpenAPI; large ones may take a while."""
        request = _Request("get", "GET", "discovery", path, headers={"Accept": _JSON}, timeout_s=_OPENAPI_TIMEOUT_S)
        return _object(request, await self._send(request))

    async def _json(
        self,
        verb: str,
        method: str,
        resource: Resource,
        path: str,
        parameters: Parameters | None = None,
        *,
        body: KubeObject | None = None,
        accept: str = _JSON,
    ) -> KubeObject:
        headers = {"Accept": accept}
        data = None
        if body is not None:
            headers["Content-Type"] = _MERGE if method == "PATCH" else _JSON
            data = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        request = _Request(
            verb, method, resource.plural, path, headers=headers, timeout_s=self._timeout_s,
            parameters=parameters or {}, data=data,
        )  # fmt: skip
        return _object(request, await self._send(request))

    async def _send(self, request: _Request) -> bytes:
        """Send until there is an answer worth having."""
        for attempt in range(_ATTEMPTS):
            last = attempt == _ATTEMPTS - 1
            seen = self._connection.generation
            try:
                async with self._slots:  # a request's time doesn't begin before there is a connection for it
                    return await self._once(request)
            except TooManyRequests as error:
                if last:
                    raise
                pause_s = error.retry_after_s
            except Unauthorized:
                if attempt > 0:
                    raise
                with contextlib.suppress(ConfigError):  # it is half written, perhaps; what there was is refused again
                    await self._connection.reload(seen)
                pause_s = 0.0
            except (NetworkError, ServerError):
                if last or request.method != "GET":
                    raise
                pause_s = _PAUSE_S * 2**attempt
            await asyncio.sleep(pause_s * random.uniform(1.0, 1.5))
        raise AssertionError("unreachable")

    async def _once(self, request: _Request) -> bytes:
        if request.method != "GET" and not self._may_write():
            raise NotLeading(request.name, reason="another operator may act by now")
        session = await self._open()
        code: int | str = "error"
        try:
            async with session.request(
                request.method,
                self._connection.server + request.path,
                params=request.parameters,
                data=request.data,
                headers={**request.headers, **await self._connection.headers()},
                timeout=aiohttp.ClientTimeout(total=request.timeout_s),
                allow_redirects=False,
                server_hostname=self._connection.server_hostname,
            ) as response:
                answer = await response.read()
                code = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NetworkError(request.name, reason=type(error).__name__) from None
        finally:
            self._metrics.count_request(request.verb, request.plural, code)
        if code >= 300:
            raise error_of(request.name, code, answer, response.headers.get("Retry-After"))
        return answer

    async def _open(self) -> aiohttp.ClientSession:
        """Return the session; a new one when the identity was read anew since, as its certificate may have changed.

        The old one is kept until the next change: requests may be under way on it.
        """
        if self._sessions and self._generation == self._connection.generation:
            return self._sessions[-1]
        self._generation = self._connection.generation
        session = self._connection.session(limit=CONNECTIONS, timeout=aiohttp.ClientTimeout(total=self._timeout_s))
        self._sessions.append(session)
        if len(self._sessions) > 2:
            await self._sessions.pop(0).close()
        return session


def _object(request: _Request, answer: bytes) -> KubeObject:
    """Return the object that ``answer`` holds; what is none came from something before the server."""
    try:
        found = loads(answer)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise NetworkError(request.name, reason="the answer is no object")
    return found
