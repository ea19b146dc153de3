"""Which row comes after which in a trajectory, where rows of many trajectories are mixed in any order."""

from __future__ import annotations

import numpy as np

from rlruntime.storages.storage import ArrayStorage

_NONE = -1
_MOST_OPEN = 4096  # trajectories that may still go on, before those that can't are forgotten


class TrajectoryLinks:
    """Keeps the position of the next row of each row's trajectory, and of the one before.

    Rows of one trajectory bear one number in the column ``key``, and are written in their order; rows of others may
    stand between them, so that copies of an environment need not take turns.

    Args:
        key: column of the integer number.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.restart()

    def restart(self) -> None:
        """Forget everything: the storage holds other rows."""
        self._next, self._rank = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._previous = np.zeros(0, np.int64)
        self._last: dict[int, int] = {}
        self._seen = 0

    def follow(self, storage: ArrayStorage) -> None:
        """Take note of the rows written since the last call; within ``reading()``.

        Raises:
            ConfigError: the rows lack the column, or it holds no single integer.
        """
        start, end = storage.window
        first = max(self._seen, start)
        self._seen = end
        if first == end:
            return
        capacity = storage.capacity
        of_rows = storage.numbers(self.key, field="trajectoryKey", integers=True)
        if len(self._next) != capacity:
            self._next, self._rank = np.full(capacity, _NONE, np.int64), np.zeros(capacity, np.int64)
            self._previous = np.full(capacity, _NONE, np.int64)
        positions = np.arange(first, end)
        self._next[positions % capacity] = self._previous[positions % capacity] = _NONE
        numbers = of_rows[positions % capacity]
        order = np.argsort(numbers, kind="stable")
        positions, numbers = positions[order], numbers[order]
        same = numbers[1:] == numbers[:-1]
        self._next[positions[:-1][same] % capacity] = positions[1:][same]
        self._previous[positions[1:][same] % capacity] = positions[:-1][same]
        begins = np.concatenate([[True], ~same])
        ends = np.concatenate([~same, [True]])
        firsts = np.flatnonzero(begins)
        ranks = np.arange(len(positions)) - np.repeat(firsts, np.diff(firsts, append=len(positions)))
        before_chunk = np.zeros(len(firsts), np.int64)
        trajectories = zip(numbers[begins].tolist(), positions[begins].tolist(), positions[ends].tolist(), strict=True)
        for at, (number, begin, last) in enumerate(trajectories):
            before = self._last.get(number, _NONE)
            if before >= start:
                self._next[before % capacity], self._previous[begin % capacity] = begin, before
                before_chunk[at] = self._rank[before % capacity] + 1
            self._last[number] = last
        self._rank[positions % capacity] = ranks + np.repeat(before_chunk, np.diff(firsts, append=len(positions)))
        if len(self._last) > _MOST_OPEN:
            self._last = {number: last for number, last in self._last.items() if last >= start}

    def last(self, storage: ArrayStorage, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the last row of the trajectory of each row ``[n]`` at hand, and how many rows it is away."""
        numbers = storage.numbers(self.key, field="trajectoryKey")[positions % storage.capacity]
        last = np.array([self._last[number] for number in numbers.tolist()], np.int64)
        return last, self._rank[last % len(self._rank)] - self._rank[positions % len(self._rank)]

    def skip(self, positions: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the rows that come ``counts [n]`` rows after those at ``positions [n]``; there are that many.

        It takes one step of all after the other.
        """
        reached = positions.copy()
        under_way = np.flatnonzero(counts)
        for step in range(1, int(counts.max(initial=0)) + 1):
            reached[under_way] = self._next[reached[under_way] % len(self._next)]
            under_way = under_way[counts[under_way] > step]
        return reached

    def ahead(self, positions: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions ``[n, most]`` of each row and those after it in its trajectory, and how many there are,
        ``[n]`` from 1 to ``most``; what is beyond repeats the last.
        """
        ahead = np.empty((len(positions), most), np.int64)
        ahead[:, 0] = current = positions
        num_steps = np.ones(len(positions), np.int64)
        for step in range(1, most):
            following = self._next[current % len(self._next)]
            goes_on = following != _NONE
            current = np.where(goes_on, following, current)
            ahead[:, step] = current
            num_steps += goes_on
        return ahead, num_steps

    def back(self, positions: np.ndarray, count: int, start: int) -> np.ndarray:
        """Return the rows that come ``count`` rows before those at ``positions [n]``, or -1 where one on the way isn't
        at hand, which those from ``start`` on are.

        It takes one step of all after the other.
        """
        reached = positions
        for _ in range(count):
            before = self._previous[reached % len(self._previous)] if len(reached) else reached
            reached = np.where((reached >= start) & (before >= start), before, _NONE)
        return reached
