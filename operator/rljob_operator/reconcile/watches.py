"""Whether the watches can be trusted: when each last said anything, and when one may have missed something.

kopf tells its handlers of objects alone. What it doesn't tell is seen on its connection: that a list was made, that a
watch was opened, that a bookmark came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stream:
    """A watch: a resource, in one namespace or in all."""

    resource: str
    namespace: str | None


@dataclass(slots=True)
class _State:
    opened: bool = False
    lists: int = 0
    last_s: float = 0.0
    last_time: float = 0.0
    missed: bool = False


class WatchMonitor:
    """Follows the watches.

    Args:
        expected: those that there must be.
        monotonic: seconds on a clock that never jumps.
        time: Unix time, in seconds.
    """

    def __init__(
        self, expected: Iterable[Stream], *, monotonic: Callable[[], float], time: Callable[[], float]
    ) -> None:
        self._monotonic, self._time = monotonic, time
        self._streams = {stream: _State(last_s=monotonic(), last_time=time()) for stream in expected}
        self._stands_by = False
        self._open = asyncio.Event()
        self._gap = asyncio.Event()

    def stand_by(self) -> None:
        """There are to be no watches until `begin`."""
        self._stands_by = True

    def begin(self) -> None:
        """The watches are about to be opened: silence counts from now on."""
        self._stands_by = False
        for state in self._streams.values():
            state.last_s, state.last_time = self._monotonic(), self._time()

    def listed(self, stream: Stream) -> None:
        """A list was begun. The first is the beginning; a later one says that the watch could not be resumed."""
        state = self._streams.get(stream)
        if state is None:
            return
        state.lists += 1
        if state.opened:
            state.missed = True

    def opened(self, stream: Stream) -> None:
        """A watch was opened: from now on nothing is missed.

        That alone ends no silence: whatever loses what the server says may well let watches be opened.
        """
        state = self._streams.get(stream)
        if state is None:
            return
        state.opened = True
        if state.missed:
            state.missed = False
            self._gap.set()
        if all(item.opened for item in self._streams.values()):
            self._open.set()

    def said(self, stream: Stream) -> None:
        """A watch said something: an event, or a bookmark."""
        state = self._streams.get(stream)
        if state is not None:
            state.last_s, state.last_time = self._monotonic(), self._time()

    async def all_open(self) -> None:
        """Wait until every watch has been opened once."""
        await self._open.wait()

    async def gap(self) -> None:
        """Wait until a watch was opened that may have missed something, and forget that it did."""
        await self._gap.wait()
        self._gap.clear()

    def silence_s(self) -> float:
        """Return for how long the most silent watch has said nothing."""
        if self._stands_by:
            return 0.0
        now_s = self._monotonic()
        return max((now_s - state.last_s for state in self._streams.values()), default=0.0)

    def last_times(self) -> dict[str, float]:
        """Return by resource when its most silent watch last said anything, in Unix time; empty where none is to be."""
        if self._stands_by:
            return {}
        found: dict[str, float] = {}
        for stream, state in self._streams.items():
            found[stream.resource] = min(state.last_time, found.get(stream.resource, state.last_time))
        return found
