"""Rewards over several steps, summed as rows are read: what is stored stays as it was experienced."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlruntime.errors import ConfigError
from rlruntime.spec.training.storages import NStepConfig
from rlruntime.storages.layout import RowLayout
from rlruntime.storages.links import TrajectoryLinks
from rlruntime.storages.storage import ArrayStorage
from rlruntime.storages.trajectories import TrajectoryIndex, check_trajectories


class NStep:
    """Replaces the reward of a row by `sum_{k<m} gamma^k r_{t+k}` and its outcome by that of step `t + m - 1`.

    `m` is ``steps``, or fewer where the trajectory ends before or its next row isn't written yet. A target is
    `reward + discount (1 - terminated) V(next observation)`, with the columns ``discount`` `= gamma^m` and
    ``num_steps`` `= m`, which are added to the batch.

    With ``trajectoryKey`` rows of many trajectories may be mixed in any order, also by several processes that write;
    without, environment copies take turns and ``endKeys`` say where a trajectory ends.
    """

    def __init__(self, config: NStepConfig) -> None:
        if config.gamma is None:
            raise ConfigError("rewards over several steps need a discount", field="nStep.gamma", remedy="set it")
        self.config, self.gamma = config, config.gamma
        key = config.trajectory_key
        self._index = TrajectoryIndex(config) if key is None else TrajectoryLinks(key)

    def check_columns(self, layout: RowLayout) -> None:
        """Refuse rows that lack a column that is named.

        Raises:
            ConfigError: they do.
        """
        check_trajectories(self.config, layout.number)
        layout.named(self.config.reward_key, field="rewardKey")
        self._outcomes(layout)

    def follow(self, storage: ArrayStorage) -> None:
        """Take note of rows that were written; within ``reading()``.

        Raises:
            ConfigError: the rows lack a column that is named.
        """
        self._index.follow(storage)

    def restart(self) -> None:
        """Forget everything: the storage holds other rows."""
        self._index.restart()

    def apply(self, storage: ArrayStorage, positions: np.ndarray, rows: np.ndarray) -> dict[str, Tensor]:
        """Change the outcome columns of ``rows [n]``; return ``discount`` float32 and ``num_steps`` int64, ``[n]``."""
        assert storage.layout is not None
        config = self.config
        offsets = np.arange(config.steps)
        if isinstance(self._index, TrajectoryLinks):
            ahead, num_steps = self._index.ahead(positions, config.steps)
        else:
            num_steps = self._index.steps_ahead(positions, config.steps)
            ahead = positions[:, None] + np.minimum(offsets, num_steps[:, None] - 1) * config.num_envs
        rewards = storage.named_column(config.reward_key, field="rewardKey")[ahead % storage.capacity]
        rewards = rewards.astype(np.float64)
        counted = offsets < num_steps[:, None]
        factors = (self.gamma**offsets * counted).reshape(*counted.shape, *[1] * (rewards.ndim - 2))
        last = storage.gather(ahead[:, -1])
        for name in self._outcomes(storage.layout):
            rows[name] = last[name]
        rows[config.reward_key] = np.where(factors != 0, rewards * factors, 0.0).sum(1)
        discount = (self.gamma**num_steps).astype(np.float32)
        return {"discount": torch.from_numpy(discount), "num_steps": torch.from_numpy(num_steps)}

    def _outcomes(self, layout: RowLayout) -> list[str]:
        names: list[str] = []
        for key in self.config.outcome_keys:
            found = [name for name in layout.by_name if name == key or (key.endswith(".") and name.startswith(key))]
            if not found:
                known = ", ".join(layout.by_name)
                raise ConfigError(
                    "the rows have no such column", field="outcomeKeys", value=key, remedy=f"name one of {known}"
                )
            names += found
        return names
