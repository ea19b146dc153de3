"""Samplers: which rows come next.

A sampler draws positions and copies nothing. It follows the storage's window by itself, whoever moves it. All of its
randomness comes from one generator, and is part of its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlruntime.errors import ConfigError
from rlruntime.registry import register
from rlruntime.spec.training.storages import (
    ConsumingSamplerConfig,
    UniformSamplerConfig,
    WithoutReplacementSamplerConfig,
)
from rlruntime.storages.batch import Batch
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.layout import RowLayout
from rlruntime.storages.storage import ArrayStorage


@dataclass(frozen=True)
class Draw:
    """Rows that were chosen.

    Attributes:
        positions: ``[n]`` int64.
        weight: ``[n]`` float32 importance weights, or None.
        leading: the shape that the rows are seen in, where it isn't ``(n,)``.
        goals: ``[n]`` int64, the position of the row whose outcome becomes the goal of a row, or -1; None without
            hindsight.
    """

    positions: np.ndarray
    weight: np.ndarray | None = None
    leading: tuple[int, ...] | None = None
    goals: np.ndarray | None = None


class Sampler:
    """Draws positions.

    Attributes:
        needs_order: whether it keeps something for each row, and so needs a writer that keeps order.
        consumes: whether the rows of a draw, always the oldest, are gone once they are given.
        has_priorities: whether it takes priorities.
        rows_together: rows that come together, of which a batch holds a whole number.
        rng: where all of its chance comes from.
    """

    needs_order = False
    consumes = False
    has_priorities = False
    rows_together = 1

    def __init__(self, seed: int) -> None:
        self.rng = np.random.Generator(np.random.PCG64(seed))

    def __getstate__(self) -> dict[str, Any]:
        """Travel to another process, where the draws must be others, with a stream split off this one's."""
        return {**self.__dict__, "rng": self.rng.spawn(1)[0]}

    def draw(self, storage: ArrayStorage, batch_size: int) -> Draw:
        """Return ``batch_size`` rows of those at hand; within ``storage.reading()``.

        Raises:
            TooFewRowsError: there are not enough rows for it.
            ConfigError: ``batch_size`` is no multiple of ``rows_together``; the rows lack a column.
        """
        raise NotImplementedError

    def check_columns(self, layout: RowLayout) -> None:
        """Refuse rows that lack a column that a setting names.

        Raises:
            ConfigError: they do.
        """

    def may_give(self, draw: Draw, batch: Batch | None) -> bool:
        """Return whether a batch that was drawn ahead may still be given; else another is drawn in its place.

        Args:
            draw: what was drawn.
            batch: its rows; None where some of them were written over before they were copied.
        """
        return batch is not None

    def schedule(self, progress: float) -> None:
        """Set what depends on the share of training that lies behind, from 0 to 1."""

    def update_priorities(self, storage: ArrayStorage, positions: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priority of rows; samplers without priorities refuse it, rather than let them go unused."""
        raise TypeError(f"{type(self).__name__} has no priorities; use a Prioritized sampler")

    def state_dict(self, storage: ArrayStorage) -> dict[str, Any]:
        """Return a copy of the state, randomness included; within ``storage.reading()``."""
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any], storage: ArrayStorage) -> None:
        """Take what ``state_dict`` returned; the storage is loaded already."""
        self.rng.bit_generator.state = state["rng"]

    def _items(self, batch_size: int) -> int:
        """Return how many times `rows_together` make ``batch_size``."""
        check_batch_size(batch_size, self.rows_together)
        return batch_size // self.rows_together


def check_batch_size(batch_size: int, rows_together: int) -> None:
    """Refuse a batch that isn't a whole number of slices or groups.

    Raises:
        ConfigError: it is none.
    """
    if batch_size % rows_together:
        raise ConfigError(
            f"a batch must be a multiple of the {rows_together} rows that come together",
            field="batch_size",
            value=batch_size,
            remedy=f"set it to {-(-batch_size // rows_together) * rows_together}",
        )


@register("sampler", "Uniform")
class UniformSampler(Sampler):
    """Every row at hand with the same probability, independently: a batch may hold a row twice."""

    Config = UniformSamplerConfig

    def __init__(self, config: UniformSamplerConfig, seed: int) -> None:
        super().__init__(seed)

    def draw(self, storage: ArrayStorage, batch_size: int) -> Draw:
        """Return rows; see `Sampler.draw`."""
        start, end = storage.window
        if start == end:
            raise TooFewRowsError("the buffer is empty")
        # A product is faster than `integers`, and as even: what 53 bits can't divide alike is far below what shows.
        return Draw(start + (self.rng.random(batch_size) * (end - start)).astype(np.int64))


class Passes:
    """Passes over items, each of which comes exactly once a pass, unless it is gone before its turn.

    Args:
        shuffle: whether a pass takes the items in random order.
        drop_last: whether items that don't fill a draw are left out, rather than given as a smaller one.

    Attributes:
        num_passes: passes that were given out in full.
    """

    def __init__(self, *, shuffle: bool, drop_last: bool) -> None:
        self.shuffle, self.drop_last = shuffle, drop_last
        self.num_passes = 0
        self._order = np.zeros(0, np.int64)
        self._next = 0

    def draw(
        self, rng: np.random.Generator, count: int, start: int, items: Callable[[], np.ndarray], name: str
    ) -> np.ndarray:
        """Return the next ``count`` items, or what is left of the pass.

        Args:
            start: items smaller than this are gone.
            items: returns those that a new pass is made of, ``[n]`` in ascending order.
            name: what they are, for the error.

        Raises:
            TooFewRowsError: there are none, or fewer than a full draw with ``drop_last``.
        """
        needed = count if self.drop_last else 1
        taken = self._take(start, count)
        if len(taken) < needed:
            self._end_pass()
            fresh = items()
            if len(fresh) < needed:
                raise TooFewRowsError(f"the buffer holds {len(fresh)} {name}, a batch needs {needed}")
            self._order = fresh
            if self.shuffle:
                rng.shuffle(self._order)
            taken = self._take(start, count)
        if len(self._order) - self._next < needed:
            self._end_pass()
        return taken

    def _take(self, start: int, most: int) -> np.ndarray:
        """Return up to ``most`` of the next items that are still at hand."""
        parts = [np.zeros(0, np.int64)]
        while most > 0 and self._next < len(self._order):
            part = self._order[self._next : self._next + most]
            self._next += len(part)
            parts.append(part[part >= start])
            most -= len(parts[-1])
        return np.concatenate(parts)

    def _end_pass(self) -> None:
        self.num_passes += len(self._order) > 0
        self._order, self._next = np.zeros(0, np.int64), 0

    def state_dict(self) -> dict[str, Any]:
        """Return what is left of the pass."""
        return {"left": self._order[self._next :].copy(), "numPasses": self.num_passes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` returned."""
        self._order, self._next = np.array(state["left"]), 0
        self.num_passes = int(state["numPasses"])


@register("sampler", "WithoutReplacement")
class WithoutReplacementSampler(Sampler):
    """Passes over the rows that are at hand when a pass begins, each one exactly once.

    Rows written during a pass come in the next one; rows that were written over in the meantime are left out. The last
    batch of a pass is shorter where the rows don't fill it, or left out with ``dropLast``.
    """

    Config = WithoutReplacementSamplerConfig

    def __init__(self, config: WithoutReplacementSamplerConfig, seed: int) -> None:
        super().__init__(seed)
        self._passes = Passes(shuffle=config.shuffle, drop_last=config.drop_last)

    @property
    def num_passes(self) -> int:
        """Passes that were given out in full."""
        return self._passes.num_passes

    def draw(self, storage: ArrayStorage, batch_size: int) -> Draw:
        """Return the next rows of the pass; see `Sampler.draw`."""
        start, end = storage.window
        return Draw(self._passes.draw(self.rng, batch_size, start, lambda: np.arange(start, end), "rows"))

    def state_dict(self, storage: ArrayStorage) -> dict[str, Any]:
        """Return what is left of the pass, and the randomness."""
        return {**super().state_dict(storage), **self._passes.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], storage: ArrayStorage) -> None:
        """Take what ``state_dict`` returned."""
        super().load_state_dict(state, storage)
        self._passes.load_state_dict(state)


@register("sampler", "Consuming")
class ConsumingSampler(Sampler):
    """The oldest rows, each one once, whichever process draws; rows that were written over before are lost."""

    Config = ConsumingSamplerConfig
    needs_order = True
    consumes = True

    def __init__(self, config: ConsumingSamplerConfig, seed: int) -> None:
        super().__init__(seed)

    def draw(self, storage: ArrayStorage, batch_size: int) -> Draw:
        """Return the oldest rows; see `Sampler.draw`."""
        start, end = storage.window
        if end - start < batch_size:
            raise TooFewRowsError(f"the buffer holds {end - start} rows, a batch needs {batch_size}")
        return Draw(np.arange(start, start + batch_size))
