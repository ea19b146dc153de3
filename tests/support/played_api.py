"""A small API server whose objects and logs a test plays, in a thread of its own, and its kubeconfig."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from aiohttp import web

_START_S, _STOP_S = 10.0, 10.0


class PlayedApi:
    """Serves lists, watches and logs from ``__enter__`` to ``__exit__``; its methods may be called from any thread."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        """Methods and paths with their queries, in their order."""
        self.refuse: dict[str, tuple[int, str]] = {}
        """What is answered, code and message, where a path ends so."""
        self.expired = False
        """Whether the next watch is told that its version is too old."""
        self._objects: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        self._logs: dict[str, list[bytes | None]] = defaultdict(list)
        self._version, self._generation = 100, 0
        self._changes: list[tuple[int, str, str, dict[str, Any]]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="played-api", daemon=True)
        self._stirred = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.port = 0
        """Where it listens, on 127.0.0.1."""

    def put(self, plural: str, item: dict[str, Any]) -> None:
        """Store an object, and tell whoever watches."""
        self._do(lambda: self._store("MODIFIED", plural, item))

    def remove(self, plural: str, name: str) -> None:
        """Delete an object, and tell whoever watches."""
        self._do(lambda: self._store("DELETED", plural, self._objects[plural].pop(name)))

    def log(self, pod: str, *lines: str, ends: bool = False) -> None:
        """Add lines, each with its time in front, to a pod's log; ``ends``: it is whole."""
        added: list[bytes | None] = [f"{line}\n".encode() for line in lines]
        self._do(lambda: self._logs[pod].extend([*added, *([None] if ends else [])]))

    def break_streams(self) -> None:
        """Break the connections of all watches and logs that are open."""

        def act() -> None:
            self._generation += 1

        self._do(act)

    def kubeconfig(self, path: Path, *, namespace: str = "team-a") -> Path:
        """Write a kubeconfig of this server, and return its path."""
        document = {
            "clusters": [{"name": "played", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "somebody", "user": {"token": "secret"}}],
            "contexts": [
                {"name": "played", "context": {"cluster": "played", "user": "somebody", "namespace": namespace}}
            ],
            "current-context": "played",
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(_START_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)
        self._loop.close()

    def _do(self, work: Any) -> None:
        done = threading.Event()

        def act() -> None:
            work()
            self._stir()
            done.set()

        self._loop.call_soon_threadsafe(act)
        assert done.wait(_START_S)

    def _stir(self) -> None:
        self._stirred.set()
        self._stirred = asyncio.Event()

    def _store(self, kind: str, plural: str, item: dict[str, Any]) -> None:
        self._version += 1
        stored = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self._version)}}
        if kind != "DELETED":
            self._objects[plural][item["metadata"]["name"]] = stored
        self._changes.append((self._version, kind, plural, stored))

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()
        await asyncio.sleep(0)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        for ending, (code, message) in self.refuse.items():
            if request.path.endswith(ending):
                return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)
        *_, plural, name = ("", *request.path.split("/"))
        if name == "log":
            return await self._give_log(request, request.path.split("/")[-2])
        if name in ("rljobs", "pods"):
            return await self._watch(request, name) if "watch" in request.query else self._list(request, name)
        found = self._objects[plural].get(name)
        if found is None:
            status = {"reason": "NotFound", "message": f'{plural} "{name}" not found', "details": {"name": name}}
            return web.json_response({"kind": "Status", "code": 404, **status}, status=404)
        if request.method == "PATCH":
            found = _merged(found, await request.json())
            self._store("MODIFIED", plural, found)
            self._stir()
        return web.json_response(found)

    def _list(self, request: web.Request, plural: str) -> web.Response:
        items = [item for item in self._objects[plural].values() if _selected(item, request)]
        return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": items})

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if self.expired:
            self.expired = False
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return response
        version, generation = int(request.query["resourceVersion"]), self._generation
        while self._goes_on(request, generation):
            stirred = self._stirred
            for number, kind, of, item in list(self._changes):
                if number > version and of == plural and _selected(item, request):
                    await response.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")
                version = max(version, number)
            await stirred.wait()
        return response

    def _goes_on(self, request: web.Request, generation: int) -> bool:
        if generation == self._generation:
            return True
        assert request.transport is not None
        request.transport.abort()
        return False

    async def _give_log(self, request: web.Request, pod: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        position, generation = 0, self._generation
        while self._goes_on(request, generation):
            stirred, lines = self._stirred, self._logs[pod]
            while position < len(lines):
                line = lines[position]
                if line is None:
                    return response
                await response.write(line)
                position += 1
            if "follow" not in request.query:
                return response
            await stirred.wait()
        return response


def _selected(item: dict[str, Any], request: web.Request) -> bool:
    labels = item["metadata"].get("labels", {})
    wanted = [part.split("=") for part in request.query.get("labelSelector", "").split(",") if part]
    field = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
    return all(labels.get(name) == value for name, value in wanted) and field in ("", item["metadata"]["name"])


def _merged(item: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    merged = dict(item)
    for name, value in patch.items():
        merged[name] = _merged(item.get(name) or {}, value) if isinstance(value, dict) else value
    return merged
