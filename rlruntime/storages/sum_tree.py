"""A tree of sums over many leaves, sixteen children wide.

A binary tree over a million leaves has twenty levels, and each one costs calls of NumPy. This one has three: below a
few thousand nodes a plain cumulative sum with a binary search takes over. A node is always computed anew from its
children, never by adding a difference, so that rounding errors don't grow with the number of updates.
"""

from __future__ import annotations

import numpy as np

WIDTH = 16
MOST_TOP_NODES = 4096
_BEFORE_CHILD = np.triu(np.ones((WIDTH, WIDTH)), 1)
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
        self._smallest, self._largest = _Extreme(np.minimum), _Extreme(np.maximum)

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
        value = self._smallest.value(self.leaves)
        return np.inf if value is None else value

    @property
    def largest(self) -> float:
        """Largest leaf; 0 where there is none."""
        return self._largest.value(self.leaves) or 0.0

    def put(self, slots: np.ndarray, values: np.ndarray) -> None:
        """Set the leaves ``slots [n]``; of a slot that comes twice, the last value stays."""
        if not len(slots):
            return
        leaves = self._levels[0]
        old = leaves.take(slots)
        leaves[slots] = values
        self._replaced(old, leaves.take(slots), slots)
        for level in range(1, len(self._levels)):
            slots = slots >> _SHIFT
            families = self._families[level - 1].take(slots, axis=0, mode="clip")
            self._levels[level][slots] = np.einsum("ij->i", families)

    def fill(self, first: int, last: int, value: float | np.ndarray) -> None:
        """Set the leaves from ``first`` up to but without ``last`` to one value, or to ``[last - first]``."""
        if first >= last:
            return
        old = self._levels[0][first:last].copy()
        self._levels[0][first:last] = value
        self._replaced(old, self._levels[0][first:last], None)
        for level in range(1, len(self._levels)):
            first, last = first // WIDTH, (last - 1) // WIDTH + 1
            self._levels[level][first:last] = np.einsum("ij->i", self._families[level - 1][first:last])

    def find(self, heights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each height ``[n]`` within ``[0, total)`` the leaf whose share of the cumulative sum holds it, and
        its value.
        """
        edges = self._top_edges()
        nodes = np.minimum(edges.searchsorted(heights, side="right"), len(edges) - 1)
        left = heights - (edges.take(nodes) - self._levels[-1].take(nodes))
        np.maximum(left, 0.0, out=left)
        first_child = np.arange(0, len(heights) * WIDTH, WIDTH)
        for level in range(len(self._levels) - 2, -1, -1):
            families = self._families[level].take(nodes, axis=0, mode="clip")
            lower_edges = families @ _BEFORE_CHILD
            # The last child whose lower edge is reached; where all are, the search finds none and starts over from 0.
            chosen = ((lower_edges <= left[:, None]).argmin(1) - 1) & (WIDTH - 1)
            if level:
                left -= lower_edges.reshape(-1).take(first_child + chosen)
            nodes = (nodes << _SHIFT) + chosen
        found: np.ndarray = np.minimum(nodes, self.size - 1)
        mass = self._levels[0].take(found)
        if not mass.all():
            self._move_to_mass(found, np.flatnonzero(mass == 0))
            mass = self._levels[0].take(found)
        return found, mass

    def _move_to_mass(self, found: np.ndarray, rows: np.ndarray) -> None:
        """Where rounding led to a leaf that is 0, take the nearest one before it that isn't, or the first of all."""
        existing = np.flatnonzero(self._levels[0])
        found[rows] = existing[np.maximum(np.searchsorted(existing, found[rows]) - 1, 0)]

    def _replaced(self, old: np.ndarray, new: np.ndarray, slots: np.ndarray | None) -> None:
        """Take note that leaves ``old [n]`` became ``new [n]``; a slot of ``slots`` that comes twice has one value."""
        self._edges = None
        if not new.all():
            exist = new > 0
            new, slots = new[exist], None if slots is None else slots[exist]
        self._smallest.replaced(old, new, slots)
        self._largest.replaced(old, new, slots)

    def _top_edges(self) -> np.ndarray:
        """Return the cumulative sum of the topmost level: sums within families, to which those before them are added,
        as one long sum would wait for each of its additions.
        """
        if self._edges is None:
            within = self._families[-1] @ _UP_TO_CHILD
            within[1:] += np.cumsum(within[:-1, -1])[:, None]
            self._edges = within.reshape(-1)
        return self._edges


class _Extreme:
    """The smallest or largest leaf, and at least how many leaves are equal to it.

    All leaves are looked at only when none is known to be.

    Args:
        of: `np.minimum` or `np.maximum`.
    """

    def __init__(self, of: np.ufunc) -> None:
        self._of = of
        self._value: float | None = None
        self._count = 0

    def value(self, leaves: np.ndarray) -> float | None:
        """Return the extreme of the leaves that aren't 0, None where there are none such."""
        if not self._count:
            self._value = None
            self.replaced(leaves[:0], leaves[leaves > 0], None)
        return self._value

    def replaced(self, old: np.ndarray, new: np.ndarray, slots: np.ndarray | None) -> None:
        """Take note that leaves ``old [n]`` became ``new [m]``, none of them 0, in ``slots [m]`` or in different ones.

        Where a slot comes twice, its old value counts twice: a count too small costs a look at all leaves, and one too
        large would be wrong.
        """
        known = self._value
        if known is not None:
            self._count = max(self._count - int(np.count_nonzero(old == known)), 0)
        if not len(new):
            return
        extreme = float(self._of.reduce(new))
        if known is None or extreme == known or self._of(extreme, known) == extreme:
            at = new == extreme
            equal = int(np.count_nonzero(at)) if slots is None else len(np.unique(slots[at]))
            self._count = self._count + equal if extreme == known else equal
            self._value = extreme


_SHIFT = WIDTH.bit_length() - 1


def _padded(size: int) -> int:
    return -(-size // WIDTH) * WIDTH
