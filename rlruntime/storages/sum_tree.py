"""A tree of sums over many leaves, sixteen children wide.

A binary tree over a million leaves has twenty levels, and each one costs calls of NumPy. This one has three: below a
few thousand nodes a plain cumulative sum with a binary search takes over. A node is always computed anew from its
children, never by adding a difference, so that rounding errors don't grow with the number of updates.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

WIDTH = 16
MOST_TOP_NODES = 4096
_BEFORE_CHILD = np.triu(np.ones((WIDTH, WIDTH)), 1)


class SumTree:
    """Sum, smallest and largest of ``size`` leaves, of which those that are 0 don't exist.

    Args:
        size: number of leaves.
    """

    def __init__(self, size: int) -> None:
        sizes = [_padded(size)]
        while sizes[-1] > MOST_TOP_NODES:
            sizes.append(_padded(sizes[-1] // WIDTH))
        self.size = size
        self._levels = [np.zeros(count) for count in sizes]
        self._families = [level.reshape(-1, WIDTH) for level in self._levels]
        self._edges: np.ndarray | None = None
        self._smallest = _Extreme(lambda leaves: float(leaves.min()), lambda new, known: new < known, np.inf)
        self._largest = _Extreme(lambda leaves: float(leaves.max()), lambda new, known: new > known, 0.0)

    @property
    def leaves(self) -> np.ndarray:
        """``[size]`` float64; read only, by agreement."""
        return self._levels[0][: self.size]

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._top_edges()[-1])

    @property
    def smallest(self) -> float:
        """Smallest leaf that isn't 0; infinite where there is none."""
        return self._smallest.value(self.leaves)

    @property
    def largest(self) -> float:
        """Largest leaf; 0 where there is none."""
        return self._largest.value(self.leaves)

    def put(self, slots: np.ndarray, values: np.ndarray) -> None:
        """Set the leaves ``slots [n]``; of a slot that comes twice, the last value stays."""
        leaves = self._levels[0]
        old = leaves.take(slots)
        order = np.arange(len(slots), dtype=np.float64)
        leaves[slots] = order
        stays = leaves.take(slots) == order
        if not stays.all():
            slots, values, old = slots[stays], values[stays], old[stays]
        leaves[slots] = values
        self._replaced(old, values)
        for level in range(1, len(self._levels)):
            slots = slots // WIDTH
            families = np.take(self._families[level - 1], slots, axis=0, mode="clip")
            self._levels[level][slots] = np.einsum("ij->i", families)

    def fill(self, first: int, last: int, value: float | np.ndarray) -> None:
        """Set the leaves from ``first`` up to but without ``last`` to one value, or to ``[last - first]``."""
        if first >= last:
            return
        old = self._levels[0][first:last].copy()
        self._levels[0][first:last] = value
        self._replaced(old, self._levels[0][first:last])
        for level in range(1, len(self._levels)):
            first, last = first // WIDTH, (last - 1) // WIDTH + 1
            self._levels[level][first:last] = np.einsum("ij->i", self._families[level - 1][first:last])

    def find(self, heights: np.ndarray) -> np.ndarray:
        """Return for each height ``[n]`` within ``[0, total)`` the leaf whose share of the cumulative sum holds it."""
        edges = self._top_edges()
        nodes = np.minimum(np.searchsorted(edges, heights, side="right"), len(edges) - 1)
        left = np.maximum(heights - (edges[nodes] - self._levels[-1][nodes]), 0.0)
        first_child = np.arange(len(heights)) * WIDTH
        for level in range(len(self._levels) - 2, -1, -1):
            families = np.take(self._families[level], nodes, axis=0, mode="clip")
            lower_edges = families @ _BEFORE_CHILD
            # The last child whose lower edge is reached; where all are, the search finds none and starts over from 0.
            chosen = ((lower_edges <= left[:, None]).argmin(1) - 1) & (WIDTH - 1)
            left = left - lower_edges.reshape(-1).take(first_child + chosen)
            nodes = nodes * WIDTH + chosen
        found: np.ndarray = np.minimum(nodes, self.size - 1)
        mass = self._levels[0].take(found)
        if mass.min(initial=np.inf) <= 0:
            self._move_to_mass(found, np.flatnonzero(mass <= 0))
        return found

    def _move_to_mass(self, found: np.ndarray, rows: np.ndarray) -> None:
        """Where rounding led to a leaf that is 0, take the nearest one before it that isn't, or the first of all."""
        existing = np.flatnonzero(self._levels[0])
        found[rows] = existing[np.maximum(np.searchsorted(existing, found[rows]) - 1, 0)]

    def _replaced(self, old: np.ndarray, new: np.ndarray) -> None:
        self._edges = None
        self._smallest.replaced(old, new)
        self._largest.replaced(old, new)

    def _top_edges(self) -> np.ndarray:
        if self._edges is None:
            self._edges = np.cumsum(self._levels[-1])
        return self._edges


class _Extreme:
    """The smallest or largest leaf, and how many leaves are equal to it; all are looked at only when none is left."""

    def __init__(
        self, of: Callable[[np.ndarray], float], beyond: Callable[[float, float], bool], of_none: float
    ) -> None:
        self._of, self._beyond, self._of_none = of, beyond, of_none
        self._value, self._count = of_none, 0

    def value(self, leaves: np.ndarray) -> float:
        """Return the extreme of the leaves that aren't 0."""
        if not self._count:
            self._value, self._count = self._of_none, 0
            self._count_in(leaves)
        return self._value

    def replaced(self, old: np.ndarray, new: np.ndarray) -> None:
        """Take note that leaves ``old [n]`` became ``new [n]``."""
        if self._count:
            self._count -= int(np.count_nonzero(old == self._value))
            if not self._count:
                return  # whether there is one between it and the new ones isn't known
        elif self._value != self._of_none:
            return
        self._count_in(new)

    def _count_in(self, new: np.ndarray) -> None:
        if not len(new) or not new.all():
            new = new[new > 0]
            if not len(new):
                return
        extreme = self._of(new)
        if self._beyond(extreme, self._value):
            self._value, self._count = extreme, int(np.count_nonzero(new == extreme))
        elif extreme == self._value:
            self._count += int(np.count_nonzero(new == extreme))


def _padded(size: int) -> int:
    return -(-size // WIDTH) * WIDTH
