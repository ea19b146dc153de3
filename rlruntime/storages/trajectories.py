"""Which rows follow one another in a trajectory.

Kept by position, never by slot: where the writer stands in the ring makes no difference.
"""

from __future__ import annotations

import numpy as np

from rlruntime.errors import ConfigError
from rlruntime.spec.training.storages import TrajectoryConfig
from rlruntime.storages.storage import ArrayStorage

_SCAN_ROWS = 1 << 20


class TrajectoryIndex:
    """Counts, for every row, the rows of its trajectory up to it, as far as they were held when it was written.

    The row after row `p` of the same environment copy is row `p + num_envs`. Two rows `p` and `q = p + k num_envs` are
    of one trajectory exactly where ``run[q] = run[p] + k``: one that began in between started to count anew, and has
    come to `k` at most.
    """

    def __init__(self, config: TrajectoryConfig) -> None:
        self.config = config
        self._run = np.zeros(0, np.int32)
        self._seen = 0

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
        if len(self._run) != storage.capacity:
            self._check(storage)
            self._run = np.zeros(storage.capacity, np.int32)
        stride = self.config.num_envs
        if end % stride:
            raise ConfigError(
                f"{end} rows are no whole number of steps of {stride} environment copies",
                field="numEnvs",
                value=stride,
                remedy="write whole steps of all copies, time first",
            )
        first = -(-first // stride) * stride
        most = max(_SCAN_ROWS // stride, 1) * stride
        for low in range(first, end, most):
            self._count(storage, low, min(low + most, end), start)
        self._seen = end
        return first, end

    def restart(self) -> None:
        """Forget everything: the storage holds other rows."""
        self._run, self._seen = np.zeros(0, np.int32), 0

    def run(self, positions: np.ndarray) -> np.ndarray:
        """Return the count of rows at ``positions``, of the same shape."""
        counts: np.ndarray = self._run[positions % len(self._run)]
        return counts

    def steps_ahead(self, positions: np.ndarray, most: int, end: int) -> np.ndarray:
        """Return how many of the rows at, and right after, ``positions [n]`` are of one trajectory: 1 to ``most``."""
        offsets = np.arange(most)
        ahead = positions[:, None] + offsets * self.config.num_envs
        together = self.run(ahead) == self.run(positions)[:, None] + offsets
        together &= ahead < end
        # Rows that follow one another are together up to a point, and never after it.
        steps: np.ndarray = np.logical_and.accumulate(together, axis=1).sum(1)
        return steps

    def _check(self, storage: ArrayStorage) -> None:
        if storage.layout is None:
            raise ConfigError("trajectories can be told in rows with columns alone", remedy="use a Tensor storage")
        config = self.config
        columns = config.end_keys if config.trajectory_key is None else (config.trajectory_key,)
        for name in columns:
            field = storage.layout.by_name.get(name)
            key = "endKeys" if config.trajectory_key is None else "trajectoryKey"
            if field is None:
                raise ConfigError(
                    "the rows have no such column", field=key, value=name, remedy="name one that they have"
                )
            if np.prod(field.shape) != 1:
                raise ConfigError("the column must hold one number a row", field=key, value=name)
            if config.trajectory_key is not None and field.numpy_dtype.kind not in "iu":
                raise ConfigError("a trajectory's number must be an integer", field=key, value=field.dtype)
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

    def _count(self, storage: ArrayStorage, low: int, high: int, start: int) -> None:
        stride, capacity = self.config.num_envs, storage.capacity
        positions = np.arange(low, high).reshape(-1, stride)
        begins = self._begins(storage, positions)
        had_before = low - stride >= start
        if not had_before:
            begins[0] = True
        steps = np.arange(len(positions))[:, None]
        last_begin = np.maximum.accumulate(np.where(begins, steps, -1), axis=0)
        before = self.run(positions[0] - stride) if had_before else np.zeros(stride, np.int32)
        run = np.where(last_begin >= 0, steps - last_begin + 1, before + steps + 1)
        self._run[positions % capacity] = run

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
