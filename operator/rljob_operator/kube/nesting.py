"""JSON that is nested without end.

The API server takes a manifest whose open parts are ten thousand levels deep, and shows them to whoever lists or
watches, in the object's metadata once more. Python's reader gives up at a thousand. What lies so deep is left out here:
one user's job must not keep the operator from reading those of all others.
"""

from __future__ import annotations

import json
import re
from typing import Any

import aiohttp

LEVELS = 200
"""Levels of an answer that are read. Far more than a manifest that a job may have."""
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def loads(text: bytes) -> Any:
    """Return what ``text`` holds; null stands for what is too deep, where Python can't read it all.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(shallow(text))


def shallow(text: bytes) -> bytes:
    """Return JSON in which null stands for whatever lies deeper than `LEVELS`."""
    if text.count(b"{") + text.count(b"[") <= LEVELS:
        return text
    kept: list[bytes] = []
    depth = begin = 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"{" | b"[":
                depth += 1
                if depth == LEVELS + 1:
                    kept += [text[begin : token.start()], b"null"]
            case b"}" | b"]":
                if depth == LEVELS + 1:
                    begin = token.end()
                depth -= 1
    return b"".join((*kept, text[begin:]))


class Response(aiohttp.ClientResponse):
    """An answer whose JSON may be nested without end."""

    async def json(self, **_: Any) -> Any:
        """Return what the answer holds."""
        return loads(await self.read())
