"""Prioritised sampling (Schaul et al. 2016, "Prioritized experience replay", arXiv:1511.05952)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlruntime.registry import register
from rlruntime.spec.training.storages import PrioritizedSamplerConfig, PriorityConfig
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.ring import ring_slices
from rlruntime.storages.samplers import Draw, Sampler
from rlruntime.storages.storage import ArrayStorage
from rlruntime.storages.sum_tree import SumTree


def checked_priorities(priorities: np.ndarray) -> np.ndarray:
    """Return priorities as ``[n]`` float64.

    Raises:
        ValueError: one is negative, infinite or no number.
    """
    priorities = np.asarray(priorities, np.float64).reshape(-1)
    if len(priorities) and not (  # neither holds for NaN
        np.minimum.reduce(priorities) >= 0 and np.maximum.reduce(priorities) < np.inf
    ):
        raise ValueError("priorities must be finite and at least 0")
    return priorities


@register("sampler", "Prioritized")
class PrioritizedSampler(Sampler):
    """Row `i` with the probability `P(i) = m_i / sum_k m_k`, where `m_i = (priority_i + epsilon)^alpha`.

    A batch takes one row from each of ``batch_size`` equal shares of the sum. The importance weight of a row is
    `(N P(i))^-beta` over the largest such weight of any row at hand. A row that has no priority yet has the largest `m`
    among the rows at hand, or that of priority 1 where there is none.

    Attributes:
        beta: power of the weights; may be changed as training goes on.
    """

    Config: Any = PrioritizedSamplerConfig
    needs_order = True
    has_priorities = True

    def __init__(self, config: PriorityConfig, seed: int) -> None:
        super().__init__(seed)
        self.config = config
        self.beta = config.beta
        self._tree: SumTree | None = None
        self._seen = (0, 0)

    def draw(self, storage: ArrayStorage, batch_size: int) -> Draw:
        """Return rows; see `Sampler.draw`."""
        return Draw(*self._pick(storage, batch_size))

    def schedule(self, progress: float) -> None:
        """See `Sampler.schedule`."""
        first, last = self.config.beta, self.config.final_beta
        if last is not None:
            self.beta = first + (last - first) * min(max(progress, 0.0), 1.0)

    def probabilities(self, storage: ArrayStorage) -> np.ndarray:
        """Return `P` of the rows at hand, oldest first, ``[size]`` float64."""
        leaves = self._leaves(self._follow(storage), *storage.window)
        probabilities: np.ndarray = leaves / leaves.sum()
        return probabilities

    def update_priorities(self, storage: ArrayStorage, positions: np.ndarray, priorities: np.ndarray) -> None:
        """Set priorities; see `ReplayBuffer.update_priorities`. Here alone ``alpha`` is applied."""
        positions = np.asarray(positions).reshape(-1)
        priorities = checked_priorities(priorities)
        if positions.shape != priorities.shape:
            raise ValueError(f"{len(positions)} rows need as many priorities, got {len(priorities)}")
        if not len(positions):
            return
        tree = self._follow(storage)
        first, end = self._seen
        mass = np.power(priorities + self.config.epsilon, self.config.alpha)
        if np.minimum.reduce(positions) < first or np.maximum.reduce(positions) >= end:
            at_hand = (positions >= first) & (positions < end)
            positions, mass = positions[at_hand], mass[at_hand]
        tree.put(storage.slots(positions), mass)

    def state_dict(self, storage: ArrayStorage) -> dict[str, Any]:
        """Return beta, the randomness, and `m` of the rows that were seen, oldest first."""
        start, end = self._seen
        mass = np.zeros(0) if self._tree is None else self._leaves(self._tree, start, end)
        return {**super().state_dict(storage), "beta": self.beta, "start": start, "end": end, "mass": mass}

    def load_state_dict(self, state: Mapping[str, Any], storage: ArrayStorage) -> None:
        """Take what ``state_dict`` returned."""
        super().load_state_dict(state, storage)
        self.beta = float(state["beta"])
        self._tree = SumTree(storage.capacity)
        start, end = self._seen = int(state["start"]), int(state["end"])
        # More rows than the storage takes can have been seen only where it has let go of the first of them since.
        start = max(start, end - storage.capacity)
        self._fill(start, end, np.array(state["mass"])[-(end - start) :] if end > start else 0.0)

    def _pick(self, storage: ArrayStorage, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and weights, ``[count]`` each."""
        tree = self._follow(storage)
        total = tree.total
        if not total:
            raise self._none_to_draw(storage)
        heights = (self.rng.random(count) + np.arange(count)) * (total / count)
        slots, mass = tree.find(heights)
        weight = np.power((mass / tree.smallest).astype(np.float32), np.float32(-self.beta))
        start, end = storage.window
        return slots if end <= storage.capacity else start + (slots - start) % storage.capacity, weight

    def _follow(self, storage: ArrayStorage) -> SumTree:
        """Bring the tree up to the storage's window: rows that went have no mass, new ones the largest."""
        if self._tree is None:
            self._tree = SumTree(storage.capacity)
        tree = self._tree
        start, end = storage.window
        first = self._first_drawable(storage)
        seen_first, seen_end = self._seen
        if (first, end) == self._seen:
            return tree
        largest = tree.largest or (1.0 + self.config.epsilon) ** self.config.alpha
        # Of the rows that went, those that new ones lie over need no care.
        self._fill(max(seen_first, end - storage.capacity), min(first, seen_end), 0.0)
        low = max(seen_end, start)
        if low < end:
            self._fill(low, end, self._mass_of_new(storage, low, end, largest))
        self._seen = first, end
        return tree

    def _first_drawable(self, storage: ArrayStorage) -> int:
        """Return the first position that may be drawn."""
        return storage.window.start

    def _mass_of_new(self, storage: ArrayStorage, first: int, last: int, largest: float) -> np.ndarray | float:
        """Return the mass of rows that have no priority yet, ``[last - first]`` or one for all."""
        return largest

    def _none_to_draw(self, storage: ArrayStorage) -> TooFewRowsError:
        return TooFewRowsError("the buffer is empty")

    def _leaves(self, tree: SumTree, first: int, last: int) -> np.ndarray:
        """Return a copy of the mass of the rows from ``first`` up to but without ``last``."""
        return np.concatenate([np.zeros(0), *(tree.leaves[slots] for slots in ring_slices(first, last, tree.size))])

    def _fill(self, first: int, last: int, mass: np.ndarray | float) -> None:
        assert self._tree is not None
        done = 0
        for slots in ring_slices(first, last, self._tree.size):
            count = slots.stop - slots.start
            self._tree.fill(slots.start, slots.stop, mass if isinstance(mass, float) else mass[done : done + count])
            done += count
