"""Which rows follow one another in a trajectory.

Kept by position, never by slot: where the writer stands in the ring makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlruntime.errors import ConfigError
from rlruntime.spec.training.storages import TrajectoryConfig
from rlruntime.storages.storage import ArrayStorage

_SCAN_ROWS = 1 << 20


def check_trajectories(config: TrajectoryConfig, number: Callable[..., object]) -> None:
    """Refuse rows that lack what tells their trajectories apart.

    Args:
        config: names the columns.
        number: `RowLayout.number`, or `ArrayStorage.numbers`.

    Raises:
        ConfigError: a column is missing, or isn't one number a row.
    """
    if config.trajectory_key is not None:
        number(config.trajectory_key, field="trajectoryKey", integers=True)
        return
    for name in config.end_keys:
        number(name, field="endKeys")


class TrajectoryIndex:
    """Counts, for every row, the rows of its trajectory up to it, as far as they were held when it was written.

    The row after row `p` of the same environment copy is row `p + num_envs`. Two rows `p` and `q = p + k num_envs` are
    of one trajectory exactly where ``run[q] = run[p] + k``: one that began in between started to count anew, and has
    come to `k` at most.
    """

    def __init__(self, config: TrajectoryConfig) -> None:
        self.config = config
        self.restart()

    def restart(self) -> None:
        """Forget everything: the storage holds other rows."""
        self._run = np.zeros(0, np.int32)
        self._seen = 0
        self._longest = 1

    def follow(self, storage: ArrayStorage) -> tuple[int, int]:
        """Count the rows written since the last call; return the positions of those that were, ``[first, last)``.

        Raises:
            ConfigError: the rows lack the columns, or are no whole number of steps of all environment copies.
        """
        start, end = storage.window
        first = max(self._seen, start)
        if first == end:
            self._seen = end
            return end, end
        self._prepare(storage)
        stride = self.config.num_envs
        if end % stride:
            raise ConfigError(
                f"{end} rows are no whole number of steps of {stride} environment copies",
                field="numEnvs",
                value=stride,
                remedy="write whole steps of all copies, time first",
            )
        first = self._whole_step(first)
        self._count(storage, first, end, start)
        self._seen = end
        return first, end

    def run(self, positions: np.ndarray) -> np.ndarray:
        """Return the count of rows at ``positions``, of the same shape."""
        counts: np.ndarray = self._run[positions % len(self._run)]
        return counts

    def steps_ahead(self, positions: np.ndarray, most: int | None = None) -> np.ndarray:
        """Return how many of the rows at, and right after, ``positions [n]`` are of one trajectory, ``[n]`` int64.

        Rows that were written since the last `follow`, by whatever process, don't count.

        Args:
            positions: of rows at hand.
            most: where to stop counting; None counts to the end of the trajectory.
        """
        stride = self.config.num_envs
        most = self._longest if most is None else min(most, self._longest)
        run, room = self.run(positions), (self._seen - 1 - positions) // stride + 1
        steps = np.ones(len(positions), np.int64)
        # Rows that follow one another are together up to a point, and never after it: it is found bit by bit.
        bit = 1 << max(most - 1, 0).bit_length()
        while bit := bit >> 1:
            tried = steps + bit
            together = self.run(positions + (tried - 1) * stride) == run + (tried - 1)
            steps = np.where(together & (tried <= room) & (tried <= most), tried, steps)
        return steps

    def state_dict(self, storage: ArrayStorage) -> dict[str, Any]:
        """Return what can't be found again in the rows: how far the trajectories had come at the first step at hand."""
        first = self._whole_step(storage.window.start)
        known = first + self.config.num_envs <= self._seen and len(self._run) > 0
        return {
            "seen": self._seen,
            "first": first,
            "run": self.run(first + np.arange(self.config.num_envs)) if known else np.zeros(0, np.int32),
        }

    def load_state_dict(self, state: Mapping[str, Any], storage: ArrayStorage) -> None:
        """Take what ``state_dict`` returned; the storage is loaded already."""
        self.restart()
        first, run = int(state["first"]), np.array(state["run"])
        if len(run):
            self._prepare(storage)
            self._run[(first + np.arange(len(run))) % len(self._run)] = run
            self._longest = max(self._longest, int(run.max()))
            self._count(storage, first + len(run), int(state["seen"]), first)
        self._seen = int(state["seen"])

    def _whole_step(self, position: int) -> int:
        """Return the first position from this one on with which a step of all copies begins."""
        return -(-position // self.config.num_envs) * self.config.num_envs

    def _prepare(self, storage: ArrayStorage) -> None:
        """Make room for as many counts as rows, once the columns are known to tell trajectories apart."""
        if len(self._run) == storage.capacity:
            return
        config = self.config
        check_trajectories(config, storage.numbers)
        if config.trajectory_key is None and storage.is_shared:
            raise ConfigError(
                "rows that several processes write need a number of their trajectory",
                field="trajectoryKey",
                remedy="write a column that has it",
            )
        if storage.capacity % config.num_envs:
            raise ConfigError(
                f"a capacity of {storage.capacity} rows can't hold whole steps of {config.num_envs} environment copies",
                field="numEnvs",
                value=config.num_envs,
                remedy="choose a multiple",
            )
        self._run = np.zeros(storage.capacity, np.int32)

    def _count(self, storage: ArrayStorage, first: int, last: int, start: int) -> None:
        """Count whole steps from ``first`` up to but without ``last``; rows from ``start`` on are at hand."""
        stride, capacity = self.config.num_envs, storage.capacity
        most = max(_SCAN_ROWS // stride, 1) * stride
        for low in range(first, last, most):
            positions = np.arange(low, min(low + most, last)).reshape(-1, stride)
            begins = self._begins(storage, positions)
            had_before = low - stride >= start
            if not had_before:
                begins[0] = True
            steps = np.arange(len(positions))[:, None]
            last_begin = np.maximum.accumulate(np.where(begins, steps, -1), axis=0)
            before = self.run(positions[0] - stride) if had_before else np.zeros(stride, np.int32)
            run = np.where(last_begin >= 0, steps - last_begin + 1, before + steps + 1)
            self._run[positions % capacity] = run
            self._longest = max(self._longest, int(run.max()))

    def _begins(self, storage: ArrayStorage, positions: np.ndarray) -> np.ndarray:
        """Return whether each row ``[steps, num_envs]`` is the first of its trajectory."""
        before = positions - self.config.num_envs
        config, capacity = self.config, storage.capacity
        if config.trajectory_key is not None:
            numbers = storage.column(config.trajectory_key).reshape(capacity)
            begins: np.ndarray = numbers[positions % capacity] != numbers[before % capacity]
            return begins
        ended = np.zeros(positions.shape, np.bool_)
        for name in config.end_keys:
            ended |= storage.column(name).reshape(capacity)[before % capacity] != 0
        return ended
