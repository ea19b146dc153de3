"""Slices: successive rows of one trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlruntime.registry import register
from rlruntime.spec.training.storages import SliceConfig, SliceSamplerConfig, SliceWithoutReplacementSamplerConfig
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.layout import RowLayout
from rlruntime.storages.mixed_slices import MixedSlices
from rlruntime.storages.ring import PositionRing
from rlruntime.storages.samplers import Draw, Passes, Sampler
from rlruntime.storages.storage import ArrayStorage
from rlruntime.storages.trajectories import TrajectoryIndex, check_trajectories


def slices_from(firsts: np.ndarray, config: SliceConfig, weight: np.ndarray | None = None) -> Draw:
    """Return the slices that begin at the rows ``firsts [k]``, each with one weight of ``weight [k]``."""
    length = config.slice_length
    positions = firsts[:, None] + np.arange(length) * config.num_envs
    of_rows = None if weight is None else np.repeat(weight, length)
    return Draw(positions.reshape(-1), of_rows, leading=(len(firsts), length))


def no_slice(storage: ArrayStorage, config: SliceConfig) -> TooFewRowsError:
    """Return the error that says that there is no slice yet."""
    hint = "" if getattr(config, "mixed", False) else "; rows of several environments that take turns need numEnvs"
    return TooFewRowsError(
        f"none of the {storage.window.size} rows at hand ends {config.slice_length} successive rows of one trajectory"
        f"{hint}"
    )


@register("sampler", "Slice")
class SliceSampler(Sampler):
    """``batch_size / sliceLength`` slices, each one uniform over all that are at hand.

    The rows that a slice can end with are kept in a list, in order; a draw picks from it, so that its cost doesn't
    grow with the number of rows. A batch has the leading dimensions ``(slices, sliceLength)``. With ``mixed`` rows of
    other trajectories may lie between those of one.
    """

    Config = SliceSamplerConfig
    needs_order = True

    def __init__(self, config: SliceSamplerConfig, seed: int) -> None:
        super().__init__(seed)
        self.config = config
        self.rows_together = config.slice_length
        self._reach = (config.slice_length - 1) * config.num_envs
        self._index = TrajectoryIndex(config)
        self._ends: PositionRing | None = None
        self._mixed: MixedSlices | None = None
        if config.mixed:
            assert config.trajectory_key is not None
            self._mixed = MixedSlices(config.trajectory_key, config.slice_length)

    def draw(self, storage: ArrayStorage, batch_size: int) -> Draw:
        """Return rows, slice after slice; see `Sampler.draw`.

        Raises:
            ConfigError: the columns don't tell trajectories apart.
            TooFewRowsError: no trajectory is long enough yet.
        """
        num_slices = self._items(batch_size)
        if self._mixed is not None:
            positions = self._mixed.draw(storage, self.rng, num_slices)
            if positions is None:
                raise no_slice(storage, self.config)
            return Draw(positions.reshape(-1), leading=positions.shape)
        ends = self._follow(storage)
        if not len(ends):
            raise no_slice(storage, self.config)
        return slices_from(ends.draw(self.rng, num_slices) - self._reach, self.config)

    def check_columns(self, layout: RowLayout) -> None:
        """Refuse rows whose trajectories can't be told apart; see `Sampler.check_columns`."""
        check_trajectories(self.config, layout.number)

    def state_dict(self, storage: ArrayStorage) -> dict[str, Any]:
        """Return the randomness, and which slices are kept where those of several trajectories are mixed."""
        return {**super().state_dict(storage), **({} if self._mixed is None else {"mixed": self._mixed.state_dict()})}

    def load_state_dict(self, state: Mapping[str, Any], storage: ArrayStorage) -> None:
        """Take what ``state_dict`` returned; what is known of trajectories is found again in the rows."""
        super().load_state_dict(state, storage)
        if self._mixed is not None:
            self._mixed.load_state_dict(state["mixed"], storage)
        self._index.restart()
        self._ends = None

    def _follow(self, storage: ArrayStorage) -> PositionRing:
        """Append new ends, and let go of those whose slice isn't at hand in full any more."""
        if self._ends is None:
            self._ends = PositionRing(storage.capacity)
        low, high = self._index.follow(storage)
        least = storage.window.start + self._reach
        self._ends.drop_before(least)
        if low < high:
            positions = np.arange(max(low, least), high)
            self._ends.append(positions[self._index.run(positions) >= self.config.slice_length])
        return self._ends


@register("sampler", "SliceWithoutReplacement")
class SliceWithoutReplacementSampler(Sampler):
    """Passes over slices, each of which comes exactly once.

    A trajectory is cut from its first row on, or from the first that was at hand when it was seen. Slices that are
    written during a pass come in the next one; those of which rows were written over are left out. A batch has the
    leading dimensions ``(slices, sliceLength)``, with fewer slices at the end of a pass, unless ``dropLast``.
    """

    Config = SliceWithoutReplacementSamplerConfig
    needs_order = True

    def __init__(self, config: SliceWithoutReplacementSamplerConfig, seed: int) -> None:
        super().__init__(seed)
        self.config = config
        self.rows_together = config.slice_length
        self._index = TrajectoryIndex(config)
        self._passes = Passes(shuffle=config.shuffle, drop_last=config.drop_last)

    @property
    def num_passes(self) -> int:
        """Passes that were given out in full."""
        return self._passes.num_passes

    def draw(self, storage: ArrayStorage, batch_size: int) -> Draw:
        """Return the next slices of the pass; see `Sampler.draw`."""
        num_slices = self._items(batch_size)
        self._index.follow(storage)
        start = storage.window.start
        firsts = self._passes.draw(self.rng, num_slices, start, lambda: self._at_hand(storage), "slices")
        return slices_from(firsts, self.config)

    def check_columns(self, layout: RowLayout) -> None:
        """Refuse rows whose trajectories can't be told apart; see `Sampler.check_columns`."""
        check_trajectories(self.config, layout.number)

    def state_dict(self, storage: ArrayStorage) -> dict[str, Any]:
        """Return what is left of the pass, how trajectories are cut, and the randomness."""
        trajectories = self._index.state_dict(storage)
        return {**super().state_dict(storage), **self._passes.state_dict(), "trajectories": trajectories}

    def load_state_dict(self, state: Mapping[str, Any], storage: ArrayStorage) -> None:
        """Take what ``state_dict`` returned."""
        super().load_state_dict(state, storage)
        self._passes.load_state_dict(state)
        self._index.load_state_dict(state["trajectories"], storage)

    def _at_hand(self, storage: ArrayStorage) -> np.ndarray:
        """Return the first rows of all slices at hand."""
        length = self.config.slice_length
        ends = np.arange(storage.window.start + (length - 1) * self.config.num_envs, storage.window.end)
        beyond = self._index.run(ends) - length
        firsts: np.ndarray = ends[(beyond >= 0) & (beyond % (self.config.stride or length) == 0)]
        firsts -= (length - 1) * self.config.num_envs
        return firsts
