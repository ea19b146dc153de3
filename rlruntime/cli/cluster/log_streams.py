"""Logs of pods as the API server hands them out: line by line, with the time of each."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rlruntime.cli.cluster.api import Api, pods_path
from rlruntime.spec.contract import MAIN_CONTAINER

_LONGEST_SILENCE_S = 4 * 3600.0
"""A pod that trains may be silent for long, and a kubelet ends a stream after four hours at the latest."""
_EARLY = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class LogLine:
    """A line, and when it was written."""

    time: datetime
    stamp: str
    """The time as the node wrote it; empty where it wrote none."""
    text: str


@dataclass(frozen=True)
class Extent:
    """How much of a log is wanted."""

    tail: int | None = None
    """So many lines from the end."""
    since_s: int | None = None
    """Lines of so many last seconds."""
    container: str = MAIN_CONTAINER


async def read_log(
    api: Api, namespace: str, pod: str, extent: Extent, *, follow: bool = False, after: LogLine | None = None
) -> AsyncGenerator[LogLine, None]:
    """Yield the lines of a pod's log.

    Args:
        follow: go on until the container has ended.
        after: the last line that was read before; what comes after it is yielded.

    Raises:
        ApiError: there is no such pod (404), it hasn't started (400), or its node doesn't answer (5xx).
        Unreachable: the connection broke.
    """
    wanted = {"container": extent.container, "timestamps": "true", "follow": "true" if follow else ""}
    if after is not None and after.stamp:
        wanted["sinceTime"] = after.time.strftime("%Y-%m-%dT%H:%M:%SZ")  # in whole seconds
    else:
        wanted["tailLines"] = "" if extent.tail is None else str(extent.tail)
        wanted["sinceSeconds"] = "" if extent.since_s is None else str(extent.since_s)
    lines = api.lines(pods_path(namespace, pod, "log"), wanted, silence_s=_LONGEST_SILENCE_S)
    async with contextlib.aclosing(lines):
        async for raw in lines:
            line = parse(raw)
            if after is None or line.time > after.time:
                yield line


def parse(raw: bytes) -> LogLine:
    """Return a line that begins with its time; what has none keeps all its words."""
    text = raw.decode("utf-8", errors="replace").rstrip("\r")
    stamp, _, rest = text.partition(" ")
    try:
        time = datetime.fromisoformat(stamp).astimezone(UTC)
    except (ValueError, OverflowError):
        return LogLine(_EARLY, "", text)
    return LogLine(time, stamp, rest)


async def in_time(logs: Sequence[AsyncIterator[LogLine]]) -> AsyncGenerator[tuple[int, LogLine], None]:
    """Yield the lines of several logs in the order of their times, each with the number of its log."""
    heads: dict[int, LogLine] = {}
    for number_of_log, log in enumerate(logs):
        with contextlib.suppress(StopAsyncIteration):
            heads[number_of_log] = await anext(log)
    while heads:
        earliest = min(heads, key=lambda number_of_log: heads[number_of_log].time)
        yield earliest, heads[earliest]
        try:
            heads[earliest] = await anext(logs[earliest])
        except StopAsyncIteration:
            del heads[earliest]
