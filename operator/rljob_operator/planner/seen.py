"""Sets of indices as ranges, such as `0-3,5`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

_MAX_INDEX = 65535


@lru_cache(maxsize=4096)
def parse_ranges(text: str) -> frozenset[int]:
    """Return the indices that ``text`` names; a part that can't be read names none."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal() and int(last or first) <= _MAX_INDEX:
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def format_ranges(indices: Iterable[int]) -> str:
    """Return ``indices`` as ranges, in rising order; equal sets give the same text."""
    parts: list[list[int]] = []
    for index in sorted(indices):
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
