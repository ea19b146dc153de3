"""Slices of trajectories whose rows lie between those of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlruntime.storages.links import TrajectoryLinks
from rlruntime.storages.storage import ArrayStorage

_TRIES = 8


class MixedSlices:
    """Keeps the first row of every slice of ``length`` rows that is at hand, in the order in which they got complete.

    A slice of which a row is gone is dropped once all that got complete before it are; until then it is passed over as
    slices are drawn, so that each one at hand stays as likely as any other.

    Args:
        key: column of the trajectory's number.
        length: rows of a slice.
    """

    def __init__(self, key: str, length: int) -> None:
        self._links, self._length = TrajectoryLinks(key), length
        self._firsts = np.zeros(0, np.int64)
        self._begin = self._end = self._seen = 0

    def draw(self, storage: ArrayStorage, rng: np.random.Generator, count: int) -> np.ndarray | None:
        """Return the rows ``[count, length]`` of slices that are drawn uniformly; None where there is none; within
        ``reading()``.

        Raises:
            ConfigError: the rows lack the column, or it holds no integers.
        """
        self._follow(storage)
        start, size = storage.window.start, len(self._firsts)
        if self._begin == self._end:
            return None
        firsts = self._firsts[rng.integers(self._begin, self._end, count) % size]
        for _ in range(_TRIES):
            gone = np.flatnonzero(firsts < start)
            if not len(gone):
                return self._links.ahead(firsts, self._length)[0]
            firsts[gone] = self._firsts[rng.integers(self._begin, self._end, len(gone)) % size]
        held = self._held()
        held = held[held >= start]
        if not len(held):
            return None
        return self._links.ahead(held[rng.integers(0, len(held), count)], self._length)[0]

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of what is kept, in its order."""
        return {"firsts": self._held(), "seen": self._seen}

    def load_state_dict(self, state: Mapping[str, Any], storage: ArrayStorage) -> None:
        """Take what ``state_dict`` returned; which row follows which is found again in the rows."""
        self._links.restart()
        firsts = np.array(state["firsts"], np.int64)
        self._firsts = np.zeros(storage.capacity, np.int64)
        self._firsts[: len(firsts)] = firsts
        self._begin, self._end, self._seen = 0, len(firsts), int(state["seen"])

    def _held(self) -> np.ndarray:
        held: np.ndarray = self._firsts[np.arange(self._begin, self._end) % max(len(self._firsts), 1)]
        return held

    def _follow(self, storage: ArrayStorage) -> None:
        start, end = storage.window
        self._links.follow(storage)
        if len(self._firsts) != storage.capacity:
            self._firsts = np.zeros(storage.capacity, np.int64)
        new = np.arange(max(self._seen, start), end)
        self._seen = end
        while self._begin < self._end and self._firsts[self._begin % len(self._firsts)] < start:
            self._begin += 1
        firsts = self._links.back(new, self._length - 1, start)
        firsts = firsts[firsts >= 0]
        self._firsts[(self._end + np.arange(len(firsts))) % len(self._firsts)] = firsts
        self._end += len(firsts)
