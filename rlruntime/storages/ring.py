"""Positions in a ring of slots."""

from __future__ import annotations

import numpy as np


def ring_slices(first: int, last: int, size: int) -> list[slice]:
    """Return the slots of the positions from ``first`` up to but without ``last``, at most ``size``, in their order.

    One slice, two where they go over the end, none where there are no positions.
    """
    if first >= last:
        return []
    slot, count = first % size, last - first
    until_end = min(count, size - slot)
    slices = [slice(slot, slot + until_end)]
    if until_end < count:
        slices.append(slice(0, count - until_end))
    return slices


class PositionRing:
    """Positions in ascending order, to which later ones are appended and from which the first ones go.

    Args:
        size: most positions that are held.
    """

    def __init__(self, size: int) -> None:
        self._positions = np.zeros(size, np.int64)
        self._first = self._last = 0

    def __len__(self) -> int:
        return self._last - self._first

    def append(self, positions: np.ndarray) -> None:
        """Add positions ``[n]`` that are larger than those held."""
        self._positions[(self._last + np.arange(len(positions))) % len(self._positions)] = positions
        self._last += len(positions)

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return positions ``[count]``, each one any of those held with the same probability."""
        drawn: np.ndarray = self._positions[rng.integers(self._first, self._last, count) % len(self._positions)]
        return drawn

    def all(self) -> np.ndarray:
        """Return a copy of all positions."""
        held: np.ndarray = self._positions[np.arange(self._first, self._last) % len(self._positions)]
        return held

    def drop_before(self, least: int) -> None:
        """Let go of positions smaller than ``least``: a binary search, whatever their number."""
        low, high = self._first, self._last
        while low < high:
            middle = (low + high) // 2
            if self._positions[middle % len(self._positions)] < least:
                low = middle + 1
            else:
                high = middle
        self._first = low

    def keep(self, positions: np.ndarray) -> None:
        """Hold these positions ``[n]`` alone, in ascending order."""
        self._first = self._last = 0
        self.append(positions)
