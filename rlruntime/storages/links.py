"""Which row comes after which in a trajectory, where rows of many trajectories are mixed in any order."""

from __future__ import annotations

import numpy as np

from rlruntime.storages.storage import ArrayStorage

_NONE = -1
_MOST_OPEN = 4096  # trajectories that may still go on, before those that can't are forgotten


class TrajectoryLinks:
    """Keeps the position of the next row of each row's trajectory.

    Rows of one trajectory bear one number in the column ``key``, and are written in their order; rows of others may
    stand between them, so that copies of an environment need not take turns.

    Args:
        key: column of the integer number.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self._next = np.zeros(0, np.int64)
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
            self._next = np.full(capacity, _NONE, np.int64)
        positions = np.arange(first, end)
        self._next[positions % capacity] = _NONE
        numbers = of_rows[positions % capacity]
        order = np.argsort(numbers, kind="stable")
        positions, numbers = positions[order], numbers[order]
        same = numbers[1:] == numbers[:-1]
        self._next[positions[:-1][same] % capacity] = positions[1:][same]
        begins = np.concatenate([[True], ~same])
        ends = np.concatenate([~same, [True]])
        for number, begin, last in zip(
            numbers[begins].tolist(), positions[begins].tolist(), positions[ends].tolist(), strict=True
        ):
            before = self._last.get(number, _NONE)
            if before >= start:
                self._next[before % capacity] = begin
            self._last[number] = last
        if len(self._last) > _MOST_OPEN:
            self._last = {number: last for number, last in self._last.items() if last >= start}

    def restart(self) -> None:
        """Forget everything: the storage holds other rows."""
        self._next, self._last, self._seen = np.zeros(0, np.int64), {}, 0

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
