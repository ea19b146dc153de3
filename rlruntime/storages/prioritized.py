"""Prioritised sampling (Schaul et al. 2016, "Prioritized experience replay", arXiv:1511.05952)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlruntime.registry import register
from rlruntime.spec.training.storages import PrioritizedSamplerConfig
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.samplers import Draw, Sampler
from rlruntime.storages.storage import ArrayStorage
from rlruntime.storages.sum_tree import SumTree


@register("sampler", "Prioritized")
class PrioritizedSampler(Sampler):
    """Row `i` with the probability `P(i) = m_i / sum_k m_k`, where `m_i = (priority_i + epsilon)^alpha`.

    A batch takes one row from each of ``batch_size`` equal shares of the sum. The importance weight of a row is
    `(N P(i))^-beta` over the largest such weight of any row at hand. A row that has no priority yet has the largest `m`
    among the rows at hand, or that of priority 1 where there is none.

    Attributes:
        beta: power of the weights; may be changed as training goes on.
    """

    Config = PrioritizedSamplerConfig
    needs_order = True

    def __init__(self, config: PrioritizedSamplerConfig, seed: int) -> None:
        super().__init__(seed)
        self.config = config
        self.beta = config.beta
        self._tree: SumTree | None = None
        self._seen = (0, 0)

    def draw(self, storage: ArrayStorage, batch_size: int) -> Draw:
        """Return rows; see `Sampler.draw`."""
        tree = self._follow(storage)
        start, end = storage.window
        if start == end:
            raise TooFewRowsError("the buffer is empty")
        heights = (self.rng.random(batch_size) + np.arange(batch_size)) * (tree.total / batch_size)
        slots = tree.find(heights)
        weight = np.power(tree.leaves[slots] / tree.smallest, -self.beta).astype(np.float32)
        return Draw(start + (slots - start) % storage.capacity, weight)

    def probabilities(self, storage: ArrayStorage) -> np.ndarray:
        """Return `P` of the rows at hand, oldest first, ``[size]`` float64."""
        tree = self._follow(storage)
        leaves = tree.leaves[np.arange(*storage.window) % storage.capacity]
        probabilities: np.ndarray = leaves / leaves.sum()
        return probabilities

    def update_priorities(self, storage: ArrayStorage, positions: np.ndarray, priorities: np.ndarray) -> None:
        """Set priorities; see `ReplayBuffer.update_priorities`. Here alone ``alpha`` is applied."""
        positions = np.asarray(positions).reshape(-1)
        priorities = np.asarray(priorities, np.float64).reshape(-1)
        if positions.shape != priorities.shape:
            raise ValueError(f"{len(positions)} rows need as many priorities, got {len(priorities)}")
        if not (priorities.min(initial=0.0) >= 0 and priorities.max(initial=0.0) < np.inf):  # neither holds for NaN
            raise ValueError("priorities must be finite and at least 0")
        tree = self._follow(storage)
        start, end = storage.window
        mass = np.power(priorities + self.config.epsilon, self.config.alpha)
        at_hand = (positions >= start) & (positions < end)
        if not at_hand.all():
            positions, mass = positions[at_hand], mass[at_hand]
        tree.put(positions % storage.capacity, mass)

    def state_dict(self) -> dict[str, Any]:
        """Return beta, the randomness, and `m` of the rows that were seen, oldest first."""
        start, end = self._seen
        tree = self._tree
        mass = np.zeros(0) if tree is None else tree.leaves[np.arange(start, end) % tree.size]
        return {**super().state_dict(), "beta": self.beta, "start": start, "end": end, "mass": mass}

    def load_state_dict(self, state: Mapping[str, Any], storage: ArrayStorage) -> None:
        """Take what ``state_dict`` returned."""
        super().load_state_dict(state, storage)
        self.beta = float(state["beta"])
        self._tree = SumTree(storage.capacity)
        start, end = self._seen = int(state["start"]), int(state["end"])
        # More rows than the storage takes can have been seen only where it has let go of the first of them since.
        start = max(start, end - storage.capacity)
        mass = np.array(state["mass"])[-(end - start) :] if end > start else np.zeros(0)
        self._tree.put(np.arange(start, end) % storage.capacity, mass)

    def _follow(self, storage: ArrayStorage) -> SumTree:
        """Bring the tree up to the storage's window: rows that went have no mass, new ones the largest."""
        if self._tree is None:
            self._tree = SumTree(storage.capacity)
        tree = self._tree
        start, end = storage.window
        seen_start, seen_end = self._seen
        if (start, end) == self._seen:
            return tree
        largest = tree.largest or (1.0 + self.config.epsilon) ** self.config.alpha
        capacity = storage.capacity
        # Of the rows that went, those that new ones lie over need no care.
        self._fill(max(seen_start, end - capacity), min(start, seen_end), 0.0, capacity)
        self._fill(max(seen_end, start), end, largest, capacity)
        self._seen = start, end
        return tree

    def _fill(self, first: int, last: int, value: float, capacity: int) -> None:
        assert self._tree is not None
        if first >= last:
            return
        slot, count = first % capacity, last - first
        until_end = min(count, capacity - slot)
        self._tree.fill(slot, slot + until_end, value)
        self._tree.fill(0, count - until_end, value)
