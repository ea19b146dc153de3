"""Rows of recent policies alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlruntime.registry import register
from rlruntime.spec.training.storages import StalenessBoundedSamplerConfig
from rlruntime.storages.batch import Batch
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.layout import RowLayout
from rlruntime.storages.ring import PositionRing
from rlruntime.storages.samplers import Draw, Sampler
from rlruntime.storages.storage import ArrayStorage


@register("sampler", "StalenessBounded")
class StalenessBoundedSampler(Sampler):
    """Rows whose policy is at most ``maxStaleness`` versions behind the current one, each with the same probability.

    Rows that may be drawn are kept in a list. It is gone through only where the bound has moved, and then holds rows of
    a few versions, however many the buffer does.

    Attributes:
        current_version: of the learner's policy, which sets it as it goes on; 0 at first.
        num_left_out: rows that became too old while they were at hand, or were when they were seen; each one once.
    """

    Config = StalenessBoundedSamplerConfig
    needs_order = True

    def __init__(self, config: StalenessBoundedSamplerConfig, seed: int) -> None:
        super().__init__(seed)
        self.config = config
        self.current_version = 0
        self.num_left_out = 0
        self._fresh: PositionRing | None = None
        self._oldest = -config.max_staleness
        self._seen = 0

    def draw(self, storage: ArrayStorage, batch_size: int) -> Draw:
        """Return rows; see `Sampler.draw`."""
        fresh = self._follow(storage)
        if not len(fresh):
            raise TooFewRowsError(
                f"none of the {storage.window.size} rows at hand is at most {self.config.max_staleness} versions "
                f"behind version {self.current_version}"
            )
        return Draw(fresh.draw(self.rng, batch_size))

    def may_give(self, draw: Draw, batch: Batch | None) -> bool:
        """Return whether none of the rows has become too old since they were drawn; see `Sampler.may_give`."""
        if batch is None:
            return False
        return int(batch[self.config.version_key].min()) >= self.current_version - self.config.max_staleness

    def check_columns(self, layout: RowLayout) -> None:
        """Refuse rows without a version; see `Sampler.check_columns`."""
        layout.number(self.config.version_key, field="versionKey", integers=True)

    def state_dict(self, storage: ArrayStorage) -> dict[str, Any]:
        """Return the version, the count, how far rows were looked at, and the randomness."""
        return {
            **super().state_dict(storage),
            "currentVersion": self.current_version,
            "numLeftOut": self.num_left_out,
            "oldest": self._oldest,
            "seen": self._seen,
        }

    def load_state_dict(self, state: Mapping[str, Any], storage: ArrayStorage) -> None:
        """Take what ``state_dict`` returned; which rows may be drawn is found again in them."""
        super().load_state_dict(state, storage)
        self.current_version, self.num_left_out = int(state["currentVersion"]), int(state["numLeftOut"])
        self._oldest, self._seen = int(state["oldest"]), int(state["seen"])
        self._fresh = PositionRing(storage.capacity)
        self._look_again(storage)

    def _follow(self, storage: ArrayStorage) -> PositionRing:
        """Bring the list up to the storage's window and the current version."""
        if self._fresh is None:
            self._fresh = PositionRing(storage.capacity)
        start, end = storage.window
        self._fresh.drop_before(start)
        oldest = self.current_version - self.config.max_staleness
        if oldest < self._oldest:
            self._oldest = oldest
            self._look_again(storage)
        elif oldest > self._oldest:
            self._oldest = oldest
            held = self._fresh.all()
            self._fresh.keep(self._young_of(storage, held))
            self.num_left_out += len(held) - len(self._fresh)
        first, self._seen = max(self._seen, start), end
        if first < end:
            young = self._young_of(storage, np.arange(first, end))
            self.num_left_out += end - first - len(young)
            self._fresh.append(young)
        return self._fresh

    def _look_again(self, storage: ArrayStorage) -> None:
        """Find the rows that may be drawn among all that were seen."""
        assert self._fresh is not None
        start = storage.window.start
        self._fresh.keep(self._young_of(storage, np.arange(start, max(start, self._seen))))

    def _young_of(self, storage: ArrayStorage, positions: np.ndarray) -> np.ndarray:
        if not len(positions):
            return positions
        versions = storage.numbers(self.config.version_key, field="versionKey", integers=True)
        young: np.ndarray = positions[versions[positions % storage.capacity] >= self._oldest]
        return young
