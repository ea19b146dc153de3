"""The measuring client: creates jobs, watches what becomes of them, and notes when. It decodes JSON, and no more."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
from cluster_harness.api import JsonObject
from contenders import PODS_OF_A_JOB, Contender
from rljob_operator.kube.connection import Connection
from rljob_operator.preview import preview

from rlruntime.spec.manifest import RLJob

JOB_CREATORS, OBJECT_CREATORS = 16, 32
_Request = tuple[str, str, JsonObject]
"""Name of the job, path, and body."""
_PAUSE_S = 0.1
_NO_LIMIT = aiohttp.ClientTimeout(total=None)


class Burst:
    """Jobs of one contender in one namespace, and what was seen of them, in seconds on the monotonic clock.

    Args:
        kubeconfig: of the administrator, who creates and watches.
        deadline_s: after which what hasn't happened is given up.
    """

    def __init__(self, contender: Contender, namespace: str, kubeconfig: Path, *, deadline_s: float) -> None:
        self._contender, self._namespace, self._kubeconfig = contender, namespace, kubeconfig
        self._deadline_s = deadline_s
        self.started: dict[str, float] = {}
        """When the creation of a job was asked for."""
        self.created: dict[str, float] = {}
        """When a pod was first seen."""
        self.running: dict[str, float] = {}
        """When a pod was first seen running, or ended."""
        self.full: dict[str, float] = {}
        """When the last pod of a job was first seen running."""
        self.done: dict[str, float] = {}
        """When a job was first seen done."""
        self.watches_closed = 0
        """How often the server ended a watch, as it does with a client that falls behind."""
        self._per_job: Counter[str] = Counter()
        self._changed = asyncio.Event()

    async def run(self, count: int, *, one_by_one: bool, before: Callable[[], None]) -> None:
        """Create ``count`` jobs and wait until all are done.

        Args:
            one_by_one: each job only when the one before it is done.
            before: called just before the first is created.

        Raises:
            TimeoutError: the deadline passed.
        """
        requests = list(self._requests(count))
        self._connection = await Connection.load(str(self._kubeconfig))
        async with self._connection.session(limit=0, timeout=_NO_LIMIT) as self._session:
            watches = [self._watch(f"/api/v1/namespaces/{self._namespace}/pods", self._see_pod)]
            if self._contender.jobs:
                watches.append(self._watch(self._contender.jobs.format(self._namespace), self._see_job))
            tasks = [asyncio.create_task(watch) for watch in watches]
            try:
                await asyncio.sleep(1.0)  # until the watches are open
                before()
                async with asyncio.timeout(self._deadline_s):
                    await self._first_error(tasks, self._create(count, requests, one_by_one=one_by_one))
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    @staticmethod
    async def _first_error(tasks: list[asyncio.Task[None]], work: Any) -> None:
        """Do ``work``; a watch that fails meanwhile ends it."""
        main = asyncio.create_task(work)
        await asyncio.wait([main, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                main.cancel()
                await task
        await main

    async def _create(self, count: int, requests: list[_Request], *, one_by_one: bool) -> None:
        if one_by_one:
            for name, path, body in requests:
                self.started[name] = time.monotonic()
                await self._post(path, body)
                await self._until(lambda name=name: name in self.full and name in self.done)  # type: ignore[misc]
            return
        creators = JOB_CREATORS if self._contender.jobs else OBJECT_CREATORS
        todo = iter(requests)

        async def creator() -> None:
            for name, path, body in todo:
                self.started.setdefault(name, time.monotonic())
                await self._post(path, body)

        await asyncio.gather(*(creator() for _ in range(creators)))
        jobs = count if self._contender.jobs else 0
        await self._until(lambda: len(self.done) == jobs and len(self.running) == PODS_OF_A_JOB * count)

    def _requests(self, count: int) -> Iterator[_Request]:
        """Yield what is created: jobs, or without an operator the objects that ours makes of them."""
        for number in range(count):
            job = self._contender.job(name := f"job-{number}")
            if self._contender.jobs:
                yield name, self._contender.jobs.format(self._namespace), job
                continue
            uid = str(uuid.uuid4())  # every job's own: its Service selects pods by it
            parsed = RLJob.model_validate(job, by_alias=True, by_name=False)
            for item in preview(parsed, image="", uid=uid, namespace=self._namespace).objects:
                del item["metadata"]["ownerReferences"]  # there is no job, and what it owns would be collected
                yield name, f"/api/v1/namespaces/{self._namespace}/{item['kind'].lower()}s", item

    async def _post(self, path: str, body: JsonObject) -> None:
        headers = await self._connection.headers()
        async with self._session.post(self._connection.server + path, json=body, headers=headers) as answer:
            text = await answer.read()
            if answer.status != 201:
                raise RuntimeError(f"POST {path}: {answer.status} {text[:500].decode(errors='replace')}")

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def _watch(self, path: str, see: Callable[[JsonObject], None]) -> None:
        """Watch for ever. The server may end a watch of a client that falls behind; it is then resumed where it was."""
        version = "0"
        while True:
            url = f"{self._connection.server}{path}?watch=true&allowWatchBookmarks=true&resourceVersion={version}"
            async with self._session.get(url, headers=await self._connection.headers()) as answer:
                if answer.status != 200:
                    version = self._resumed(answer.status, await answer.text(), version)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                rest = b""
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            version = self._resumed(event["object"]["code"], line.decode(), version)
                            break
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            see(event["object"])
            self.watches_closed += 1

    @staticmethod
    def _resumed(code: int, words: str, version: str) -> str:
        """Return from which version a watch that the server refused goes on; with 0 it tells of all there is anew."""
        if code == 410:
            return "0"
        if code == 429 or code >= 500:
            return version
        raise RuntimeError(f"a watch failed: {code} {words[:500]}")

    def _see_pod(self, pod: JsonObject) -> None:
        now, name = time.monotonic(), pod["metadata"]["name"]
        self.created.setdefault(name, now)
        if name in self.running or pod["status"].get("phase") not in ("Running", "Succeeded"):
            return
        self.running[name] = now
        job = pod["metadata"]["labels"][self._contender.label]
        self._per_job[job] += 1
        if self._per_job[job] == PODS_OF_A_JOB:
            self.full[job] = now
        self._changed.set()

    def _see_job(self, job: JsonObject) -> None:
        name = job["metadata"]["name"]
        if name not in self.done and self._contender.is_done(job):
            self.done[name] = time.monotonic()
            self._changed.set()
