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
_UP_TO_CHILD = np.triu(np.ones((WIDTH, WIDTH)))


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

    def fill(self, first: int, last: int, value: float) -> None:
        """Set the leaves from ``first`` up to but without ``last``."""
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
        # Rounding may push a height up to the total: then it belongs to the last node that isn't 0.
        last_node = np.searchsorted(edges, edges[-1], side="left")
        nodes = np.minimum(np.searchsorted(edges, heights, side="right"), last_node)
        left = heights - (edges[nodes] - self._levels[-1][nodes])
        first_child = np.arange(len(heights)) * WIDTH
        for level in range(len(self._levels) - 2, -1, -1):
            families = np.take(self._families[level], nodes, axis=0, mode="clip")
            upper_edges = families @ _UP_TO_CHILD
            chosen = (upper_edges > left[:, None]).argmax(1)
            upper = upper_edges.reshape(-1).take(first_child + chosen)
            mass = families.reshape(-1).take(first_child + chosen)
            wrong = (upper <= left) | (mass <= 0)
            if wrong.any():
                _choose_again(np.flatnonzero(wrong), chosen, families, left)
            left = left - (upper - mass)
            nodes = nodes * WIDTH + chosen
        found: np.ndarray = nodes
        return found

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
            if not leaves.all():
                leaves = leaves[leaves > 0]
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
        self._count_in(new if new.all() else new[new > 0])

    def _count_in(self, new: np.ndarray) -> None:
        if not len(new):
            return
        extreme = self._of(new)
        if self._beyond(extreme, self._value):
            self._value, self._count = extreme, int(np.count_nonzero(new == extreme))
        elif extreme == self._value:
            self._count += int(np.count_nonzero(new == extreme))


def _choose_again(rows: np.ndarray, chosen: np.ndarray, families: np.ndarray, left: np.ndarray) -> None:
    """Where rounding led beyond all children, or to one that is 0, choose the nearest one that isn't."""
    for row in rows:
        children = np.flatnonzero(families[row] > 0)
        reached = np.searchsorted(np.cumsum(families[row][children]), left[row], side="right")
        chosen[row] = children[min(int(reached), len(children) - 1)]


def _padded(size: int) -> int:
    return -(-size // WIDTH) * WIDTH
