"""The logs of a job: whose are wanted, how they are printed, once or for as long as the job goes on."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, TextIO

from rlruntime.cli.cluster.api import Api, ApiError, Unreachable, jobs_path, pods_path
from rlruntime.cli.cluster.finding import find_job
from rlruntime.cli.cluster.jobs import JobView
from rlruntime.cli.cluster.log_lines import readable
from rlruntime.cli.cluster.log_streams import Extent, LogLine, in_time, read_log
from rlruntime.cli.cluster.pods import Choice, PodView, containers_of, newest
from rlruntime.cli.cluster.watching import Change, Silence, Snapshot, observe
from rlruntime.errors import EXIT_FAULT, EXIT_OK, ConfigError, one_line
from rlruntime.spec.contract import MAIN_CONTAINER, hostname

_MOST_LOGS = 50
_COLOURS = (36, 33, 35, 32, 34)
_AGAIN_S = 1.0
_LAST_LINES_S = 10.0
"""How long logs may go on after their job has ended."""


@dataclass(frozen=True)
class Request:
    """Which logs of which job are wanted."""

    namespace: str
    job: JobView
    item: dict[str, Any]
    choice: Choice
    extent: Extent
    roles: dict[str, int] = field(default_factory=dict)
    """Roles of the job, and how many pods each should have."""

    @classmethod
    async def make(cls, api: Api, arguments: argparse.Namespace) -> Request:
        """Return what the arguments ask for.

        Raises:
            ConfigError: there is no such job, role or attempt.
        """
        namespace = arguments.namespace or api.connection.namespace
        item = await find_job(api, namespace, arguments.job)
        status = item.get("status") or {}
        roles = {str(role.get("name")): int(role.get("desired") or 0) for role in status.get("roles") or ()}
        if arguments.role is not None and roles and arguments.role not in roles:
            raise ConfigError(
                "the job has no such role", field="--role", value=arguments.role, remedy=f"it has {', '.join(roles)}"
            )
        attempt = arguments.attempt
        if arguments.previous:
            attempt = int(status.get("attempt") or 0) - 1
            if attempt < 0:
                raise ConfigError(f"{arguments.job} is in its first attempt", field="--previous")
        return cls(
            namespace,
            JobView.of(item),
            item,
            Choice(arguments.role, arguments.index, attempt),
            Extent(arguments.tail, arguments.since, arguments.container or MAIN_CONTAINER),
            roles,
        )


class LogPrinter:
    """Writes lines behind the name of their pod, and notes on standard error."""

    def __init__(self, stream: TextIO, request: Request, *, raw: bool, timestamps: bool) -> None:
        self._stream, self._raw, self._timestamps = stream, raw, timestamps
        self._coloured = not raw and stream.isatty() and not os.environ.get("NO_COLOR")
        self._total_frames = request.job.total_frames
        self._roles = list(request.roles)
        places = (hostname(role, index) for role, count in request.roles.items() for index in range(count))
        self._width = max((len(place) for place in places), default=0)
        self.printed = False
        """Whether there was anything."""

    def line(self, pod: PodView, line: LogLine) -> None:
        """Write a line."""
        self.printed = True
        text = line.text if self._raw else readable(line.text, self._total_frames)
        if self._timestamps and line.stamp:
            text = f"{line.stamp} {text}"
        self._stream.write(text + "\n" if self._raw else f"{self._name(pod)} | {text}\n")

    def flush(self) -> None:
        """Hand on what was written."""
        self._stream.flush()

    def note(self, text: str) -> None:
        """Say something that isn't part of a log; others' words in it can't control the terminal."""
        self._stream.flush()
        print(f"rljob: {one_line(text)}", file=sys.stderr, flush=True)

    def _name(self, pod: PodView) -> str:
        padded = f"{pod.place:<{self._width}}"
        if not self._coloured:
            return padded
        number_of_role = self._roles.index(pod.role) if pod.role in self._roles else 0
        return f"\x1b[{_COLOURS[number_of_role % len(_COLOURS)]}m{padded}\x1b[0m"


async def print_logs(api: Api, request: Request, printer: LogPrinter) -> int:
    """Print what there is now, and say what there isn't."""
    items, _ = await api.list(pods_path(request.namespace), request.choice.selector(request.job.uid))
    require_container(items, request.extent.container)
    pods = newest(PodView.of(item, request.extent.container) for item in items)
    for words in missing(request, pods):
        printer.note(words)
    if len(pods) > _MOST_LOGS:
        raise ConfigError(f"{len(pods)} pods at once are too many", remedy="choose some by --role and --index")
    for pod in pods:
        if not pod.started:
            printer.note(_not_started(pod))
    started = [pod for pod in pods if pod.started]
    logs = [_or_note(api, request, pod, printer) for pod in started]
    async with contextlib.aclosing(in_time(logs)) as lines:
        async for number_of_log, line in lines:
            printer.line(started[number_of_log], line)
    printer.flush()
    return EXIT_OK if printer.printed else EXIT_FAULT


async def _or_note(api: Api, request: Request, pod: PodView, printer: LogPrinter) -> AsyncGenerator[LogLine, None]:
    try:
        async for line in read_log(api, request.namespace, pod.name, request.extent):
            yield line
    except ApiError as error:
        if error.code in (401, 403):
            raise
        printer.note(_no_log(pod, error))


def require_container(items: list[dict[str, Any]], name: str) -> None:
    """See that one of these pods has a container of this name, which nobody may wait for in vain.

    Raises:
        ConfigError: they have others.
    """
    names = dict.fromkeys(found for item in items for found in containers_of(item))
    if names and name not in names:
        raise ConfigError(
            "no pod has such a container", field="--container", value=name, remedy=f"there are {', '.join(names)}"
        )


def missing(request: Request, pods: list[PodView]) -> list[str]:
    """Return what to say of each place that should have a pod, and has none of the wanted attempt."""
    there = {(pod.role, pod.index) for pod in pods}
    wanted = [
        hostname(role, index)
        for role, count in request.roles.items()
        for index in range(count)
        if request.choice.has(role, index) and (role, index) not in there
    ]
    if not wanted:
        return [] if pods else [f"{request.job.name} has no such pod{_because(request)}"]
    named = ", ".join(wanted[:5]) + (f" and {len(wanted) - 5} more" if len(wanted) > 5 else "")
    return [f"{named}: no pod{_because(request)}"]


def _because(request: Request) -> str:
    job, attempt = request.job, request.choice.attempt
    if attempt is not None:
        said = ((request.item.get("status") or {}).get("restarts") or {}).get("lastMessage")
        last = f"; what the last restart was for: {said}" if said else ""
        return f" of attempt {attempt} is there any more, and its log went with it{last}"
    if job.ended:
        return f": the job has {job.phase.lower()}, and what is gone took its log along ({job.message})"
    if job.suspend:
        return ": the job is suspended"
    if not job.phase:
        return ": no operator has seen the job yet"
    return f" yet: {job.reason or job.phase}{f': {job.message}' if job.message else ''}"


def _not_started(pod: PodView) -> str:
    if pod.ended:
        return f"{pod.place}: attempt {pod.attempt} ended before its container ran"
    return f"{pod.place}: attempt {pod.attempt} hasn't started{f': {pod.waits}' if pod.waits else ' yet'}"


def _no_log(pod: PodView, error: ApiError) -> str:
    if error.code == 404:
        return f"{pod.place}: attempt {pod.attempt} is gone, and its log with it"
    if error.passing:
        return f"{pod.place}: its node doesn't hand out the log: {error.message or error}"
    return f"{pod.place}: {error.message or error}"


class Follower:
    """Prints what pods write, those of later attempts too, until the job has ended."""

    def __init__(self, api: Api, request: Request, printer: LogPrinter) -> None:
        self._api, self._request, self._printer = api, request, printer
        self._pods: dict[str, PodView] = {}
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._said: dict[str, str] = {}
        self._listed = self._ended = False
        self._changed = asyncio.Event()

    async def run(self) -> int:
        """Follow, and return the exit code."""
        watches = [asyncio.create_task(self._follow_pods()), asyncio.create_task(self._follow_job())]
        try:
            looked_again = False
            while True:
                for task in (*watches, *self._streams.values()):
                    if task.done():
                        task.result()
                if not (self._ended and self._listed):
                    await self._wait(None)
                elif not looked_again:  # a pod may have come and gone since the watch last spoke
                    self._take_pods(Snapshot(await self._list()))
                    looked_again = True
                elif all(task.done() for task in self._streams.values()) or not await self._wait(_LAST_LINES_S):
                    break
            return EXIT_OK if self._printer.printed else EXIT_FAULT
        finally:
            tasks = [*watches, *self._streams.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._printer.flush()

    async def _list(self) -> list[dict[str, Any]]:
        items, _ = await self._api.list(
            pods_path(self._request.namespace), self._request.choice.selector(self._request.job.uid)
        )
        return items

    async def _wait(self, timeout_s: float | None) -> bool:
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def _wake(self, _task: object = None) -> None:
        self._changed.set()

    async def _follow_pods(self) -> None:
        choice = self._request.choice.selector(self._request.job.uid)
        try:
            async with contextlib.aclosing(observe(self._api, pods_path(self._request.namespace), choice)) as events:
                async for event in events:
                    self._take_pods(event)
                    self._wake()
        finally:
            self._wake()

    def _take_pods(self, event: Snapshot | Change | Silence) -> None:
        if isinstance(event, Silence):
            self._say("server", event.words)
            return
        items = event.items if isinstance(event, Snapshot) else [event.item]
        views = [PodView.of(item, self._request.extent.container) for item in items]
        if isinstance(event, Snapshot):
            require_container(items, self._request.extent.container)
            self._said.pop("server", None)
            there = {view.uid for view in views}
            for uid in [uid for uid in self._pods if uid not in there]:
                self._gone(self._pods[uid])
            if not self._listed:
                for words in missing(self._request, newest(views)):
                    self._printer.note(words)
            self._listed = True
        for view in views:
            if isinstance(event, Change) and event.deleted:
                self._gone(view)
            else:
                self._seen(view)

    def _seen(self, pod: PodView) -> None:
        self._pods[pod.uid] = pod
        if pod.started and pod.uid not in self._streams:
            if len(self._streams) - sum(task.done() for task in self._streams.values()) >= _MOST_LOGS:
                raise ConfigError(
                    f"more than {_MOST_LOGS} pods are too many", remedy="choose some by --role and --index"
                )
            if pod.attempt:
                self._printer.note(f"{pod.place}: attempt {pod.attempt} has started")
            task = asyncio.create_task(self._read(pod))
            task.add_done_callback(self._wake)
            self._streams[pod.uid] = task
        elif not pod.started and (pod.waits or pod.ended):
            self._say(pod.uid, _not_started(pod))

    def _gone(self, pod: PodView) -> None:
        if self._pods.pop(pod.uid, None) is not None:
            self._printer.note(f"{pod.place}: attempt {pod.attempt} is gone")

    async def _read(self, pod: PodView) -> None:
        """Print a pod's log to its end, over connections that break."""
        last: LogLine | None = None
        while True:
            whole = False
            try:
                lines = read_log(
                    self._api, self._request.namespace, pod.name, self._request.extent, follow=True, after=last
                )
                async with contextlib.aclosing(lines):
                    async for line in lines:
                        self._printer.line(pod, line)
                        self._printer.flush()
                        last = line if line.stamp else last
                whole = True
            except ApiError as error:
                if error.code in (401, 403):
                    raise
                self._say(pod.uid, _no_log(pod, error))
                if not error.passing and error.code != 400:
                    return
            except Unreachable as error:
                self._say(pod.uid, str(error))
            now = self._pods.get(pod.uid)
            if now is None or (whole and now.ended):
                return
            await asyncio.sleep(_AGAIN_S)

    async def _follow_job(self) -> None:
        path, job = jobs_path(self._request.namespace), self._request.job
        only = {"fieldSelector": f"metadata.name={job.name}"}
        try:
            async with contextlib.aclosing(observe(self._api, path, only)) as events:
                async for event in events:
                    if isinstance(event, Silence):
                        continue  # said already
                    items = event.items if isinstance(event, Snapshot) else [event.item]
                    there = [JobView.of(item) for item in items]
                    alive = [view for view in there if view.uid == job.uid]
                    if not alive or (isinstance(event, Change) and event.deleted):
                        self._say("job", f"{job.name} was deleted")
                        self._ended = True
                    else:
                        self._take_job(alive[0])
                    self._wake()
        finally:
            self._wake()

    def _take_job(self, job: JobView) -> None:
        if job.phase in ("Restarting", "Suspended") or job.ended:
            words = ": ".join(part for part in (job.reason, job.message) if part)
            self._say("job", f"{job.name} is {job.phase}{f': {words}' if words else ''}")
        else:
            self._said.pop("job", None)
        self._ended = job.ended

    def _say(self, about: str, words: str) -> None:
        """Say something once."""
        if self._said.get(about) != words:
            self._said[about] = words
            self._printer.note(words)
