"""A tree of sums over many leaves, sixteen children wide.

A binary tree over a million leaves has twenty levels, and each one costs a call of NumPy. This one has three: below a
few thousand nodes a plain cumulative sum with a binary search takes over. A node is always computed anew from its
children, never by adding a difference, so that rounding errors don't grow with the number of updates.
"""

from __future__ import annotations

import numpy as np

WIDTH = 16
MOST_TOP_NODES = 4096


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
        self._sums = [np.zeros(count) for count in sizes]
        self._smallest = [np.full(count, np.inf) for count in sizes[1:]]
        self._largest = [np.zeros(count) for count in sizes[1:]]
        self._edges: np.ndarray | None = None

    @property
    def leaves(self) -> np.ndarray:
        """``[size]`` float64; read only, by agreement."""
        return self._sums[0][: self.size]

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._top_edges()[-1])

    @property
    def smallest(self) -> float:
        """Smallest leaf that isn't 0; infinite where there is none."""
        if self._smallest:
            return float(self._smallest[-1].min())
        leaves = self._sums[0]
        return float(np.min(leaves, where=leaves > 0, initial=np.inf))

    @property
    def largest(self) -> float:
        """Largest leaf; 0 where there is none."""
        return float((self._largest[-1] if self._largest else self._sums[0]).max())

    def put(self, slots: np.ndarray, values: np.ndarray) -> None:
        """Set the leaves ``slots [n]``; of a slot that comes twice, the last value stays."""
        self._edges = None
        self._sums[0][slots] = values
        for level in range(1, len(self._sums)):
            slots = slots // WIDTH
            self._compute(level, slots)

    def fill(self, first: int, last: int, value: float | np.ndarray) -> None:
        """Set the leaves from ``first`` up to but without ``last``."""
        if first >= last:
            return
        self._edges = None
        self._sums[0][first:last] = value
        for level in range(1, len(self._sums)):
            first, last = first // WIDTH, (last - 1) // WIDTH + 1
            self._compute(level, slice(first, last))

    def find(self, heights: np.ndarray) -> np.ndarray:
        """Return for each height ``[n]`` within ``[0, total)`` the leaf whose share of the cumulative sum holds it."""
        edges = self._top_edges()
        nodes = np.minimum(np.searchsorted(edges, heights, side="right"), self._last_node(edges))
        left = heights - np.where(nodes > 0, edges[nodes - 1], 0.0)
        for level in range(len(self._sums) - 2, -1, -1):
            children = self._sums[level].reshape(-1, WIDTH)[nodes]
            sums = np.cumsum(children, axis=1)
            chosen = np.count_nonzero(sums <= left[:, None], axis=1)
            self._correct(chosen, children)
            rows = np.arange(len(nodes))
            left = left - (sums[rows, chosen] - children[rows, chosen])
            nodes = nodes * WIDTH + chosen
        found: np.ndarray = nodes
        return found

    def _compute(self, level: int, nodes: np.ndarray | slice) -> None:
        children = self._sums[level - 1].reshape(-1, WIDTH)[nodes]
        self._sums[level][nodes] = children.sum(1)
        if level == 1:
            self._smallest[0][nodes] = np.where(children > 0, children, np.inf).min(1)
            self._largest[0][nodes] = children.max(1)
        else:
            self._smallest[level - 1][nodes] = self._smallest[level - 2].reshape(-1, WIDTH)[nodes].min(1)
            self._largest[level - 1][nodes] = self._largest[level - 2].reshape(-1, WIDTH)[nodes].max(1)

    def _top_edges(self) -> np.ndarray:
        if self._edges is None:
            self._edges = np.cumsum(self._sums[-1])
        return self._edges

    @staticmethod
    def _last_node(edges: np.ndarray) -> int:
        """Return the last node that isn't 0, which takes a height that rounding pushed beyond the total."""
        return int(np.searchsorted(edges, edges[-1], side="left"))

    @staticmethod
    def _correct(chosen: np.ndarray, children: np.ndarray) -> None:
        """Where rounding pushed a height beyond all children, choose the last one that isn't 0."""
        for row in np.flatnonzero(chosen == WIDTH):
            chosen[row] = np.flatnonzero(children[row])[-1]


def _padded(size: int) -> int:
    return -(-size // WIDTH) * WIDTH
