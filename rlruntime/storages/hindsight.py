"""Hindsight: goals replaced by what was reached, as rows are read (Andrychowicz et al. 2017, "Hindsight experience
replay", arXiv:1707.01495). What is stored keeps the goals that were pursued.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlruntime.errors import ConfigError
from rlruntime.registry import import_object
from rlruntime.spec.training.storages import HindsightConfig
from rlruntime.storages.layout import RowLayout
from rlruntime.storages.links import TrajectoryLinks
from rlruntime.storages.samplers import Draw
from rlruntime.storages.storage import ArrayStorage
from rlruntime.storages.trajectories import TrajectoryIndex, check_trajectories

GoalFunction = Callable[[np.ndarray, np.ndarray, Mapping[str, np.ndarray]], Any]
"""What returns ``[n]`` of ``(achieved_goal [n, ...], desired_goal [n, ...], columns)``; columns are those of the rows,
with the new goal in them.
"""


class Hindsight:
    """Gives a share of the rows of a batch another goal, one that their trajectory reached, and the reward for it.

    ``Future`` takes the goal reached by a row of the trajectory from this one on, each with the same probability;
    ``Final`` that of the last. What isn't written yet isn't known: the last row of a trajectory under way is the newest
    one. With ``trajectoryKey`` rows of many trajectories may be mixed in any order. A batch gets the column
    ``relabelled``, bool.

    Args:
        config: settings.
        seed: of the choice of rows and goals.
        field: path of the config in the manifest, for errors.

    Raises:
        ConfigError: a function can't be imported.
    """

    def __init__(self, config: HindsightConfig, seed: int, *, field: str = "hindsight") -> None:
        self.config = config
        self.rng = np.random.Generator(np.random.PCG64(seed))
        key = config.trajectory_key
        self._index = TrajectoryIndex(config) if key is None else TrajectoryLinks(key)
        self._reward: GoalFunction = import_object(config.reward_function, field=f"{field}.rewardFunction")
        self._terminated: GoalFunction | None = None
        self._checked: RowLayout | None = None
        if config.terminated_function is not None:
            self._terminated = import_object(config.terminated_function, field=f"{field}.terminatedFunction")

    def check_columns(self, layout: RowLayout) -> None:
        """Refuse rows that lack a column that is named, or whose goals aren't of one shape.

        Raises:
            ConfigError: they do.
        """
        config = self.config
        check_trajectories(config, layout.number)
        achieved = layout.named(config.achieved_key, field="achievedKey")
        for key in config.goal_keys:
            if layout.named(key, field="goalKeys").shape != achieved.shape:
                raise ConfigError(
                    f"the column isn't of the shape of {config.achieved_key!r}", field="goalKeys", value=key
                )
        layout.named(config.reward_key, field="rewardKey")
        if self._terminated is not None:
            layout.named(config.terminated_key, field="terminatedKey")

    def choose(self, storage: ArrayStorage, positions: np.ndarray) -> np.ndarray:
        """Return whose outcome becomes the goal of each row, as `Draw.goals`; within ``reading()``.

        Raises:
            ConfigError: the rows lack a column that is named.
        """
        self._index.follow(storage)
        relabelled = self.rng.random(len(positions)) < self.config.share
        reached = self._later(storage, positions)
        goals: np.ndarray = np.where(relabelled, reached, -1)
        return goals

    def _later(self, storage: ArrayStorage, positions: np.ndarray) -> np.ndarray:
        """Return a row of the trajectory of each row, from that one on."""
        future = self.config.strategy == "Future"
        if isinstance(self._index, TrajectoryLinks):
            last, after = self._index.last(storage, positions)
            return self._index.skip(positions, self.rng.integers(0, after + 1)) if future else last
        after = self._index.steps_ahead(positions) - 1
        steps = self.rng.integers(0, after + 1) if future else after
        later: np.ndarray = positions + steps * self.config.num_envs
        return later

    def apply(self, storage: ArrayStorage, draw: Draw, rows: np.ndarray) -> dict[str, Tensor]:
        """Change goals, rewards and ends in ``rows [n]``; return the column ``relabelled [n]``.

        Raises:
            ConfigError: the rows lack a column that is named, or a function returned another shape.
        """
        assert draw.goals is not None
        config = self.config
        relabelled = draw.goals >= 0
        chosen = np.flatnonzero(relabelled)
        if len(chosen):
            assert storage.layout is not None
            if storage.layout is not self._checked:
                self.check_columns(storage.layout)
                self._checked = storage.layout
            goal = storage.column(config.achieved_key)[draw.goals[chosen] % storage.capacity]
            for key in config.goal_keys:
                rows[key][chosen] = goal
            changed = rows[chosen]
            columns = {name: changed[name] for name in changed.dtype.names or ()}
            achieved = columns[config.achieved_key]
            self._fill(rows, config.reward_key, chosen, self._reward(achieved, goal, columns), "rewardFunction")
            if self._terminated is not None:
                ends = self._terminated(achieved, goal, columns)
                self._fill(rows, config.terminated_key, chosen, ends, "terminatedFunction")
        return {"relabelled": torch.from_numpy(relabelled)}

    def state_dict(self) -> dict[str, Any]:
        """Return the randomness."""
        return {"rng": self.rng.bit_generator.state}

    def restart(self, state: Mapping[str, Any] | None) -> None:
        """Forget what is known of trajectories, as the storage holds other rows; take what ``state_dict`` returned,
        where there is any.
        """
        self._index.restart()
        if state is not None:
            self.rng.bit_generator.state = state["rng"]

    def _fill(self, rows: np.ndarray, name: str, chosen: np.ndarray, values: Any, field: str) -> None:
        values = np.asarray(values)
        column = rows[name]
        if values.size != column[chosen].size:
            raise ConfigError(
                f"the function returned the shape {list(values.shape)} for {len(chosen)} rows",
                field=field,
                remedy="return one number a row",
            )
        column[chosen] = values.reshape(column[chosen].shape)
