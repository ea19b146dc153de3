"""Objects as they are and as they change: one list, then one watch, for as long as somebody looks."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from rlruntime.cli.cluster.api import Api, ApiError, JsonObject, Parameters, Unreachable

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_GONE = 410


@dataclass(frozen=True)
class Snapshot:
    """All objects that there are; what was known before is forgotten."""

    items: list[JsonObject]


@dataclass(frozen=True)
class Change:
    """An object that is new, has changed, or is no more."""

    item: JsonObject
    deleted: bool


@dataclass(frozen=True)
class Silence:
    """The server isn't heard any more. It is asked again and again; once it answers there is a `Snapshot`."""

    words: str


Event = Snapshot | Change | Silence


async def observe(api: Api, path: str, parameters: Parameters | None = None) -> AsyncGenerator[Event, None]:
    """Yield what there is and what changes, without end.

    The first answer has to come; after it, a server that is away is waited for.

    Raises:
        ApiError: the server refuses.
        Unreachable: it doesn't answer at first.
    """
    version, first, pause_s = "", True, 0.0
    while True:
        began_s = time.monotonic()
        try:
            if not version:
                items, version = await api.list(path, parameters)
                yield Snapshot(items)
                first, pause_s = False, 0.0
            async with contextlib.aclosing(api.watch(path, parameters or {}, version)) as changes:
                async for kind, item in changes:
                    version = str((item.get("metadata") or {}).get("resourceVersion") or version)
                    if kind != "BOOKMARK":
                        yield Change(item, deleted=kind == "DELETED")
            if time.monotonic() - began_s < _FIRST_PAUSE_S:  # whatever closes it at once isn't asked in a tight loop
                await asyncio.sleep(_FIRST_PAUSE_S)
        except (ApiError, Unreachable) as error:
            version = ""
            if isinstance(error, ApiError) and error.code == _GONE:
                await asyncio.sleep(_FIRST_PAUSE_S)
                continue
            if first or (isinstance(error, ApiError) and not error.passing):
                raise
            yield Silence(str(error))
            pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * pause_s))
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))
