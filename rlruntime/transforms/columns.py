"""Transforms on columns of rows, for the write and the read side of a replay buffer, and on finished rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rlruntime.transforms.base import ObservationTensor, RolloutView, Transform, require_seat

Columns = Mapping[str, Tensor | np.ndarray]


class ColumnTransforms:
    """Apply transforms, in order, to a mapping from names of columns to ``[n, ...]``; nothing of it is changed.

    Observations are transformed under each of their names, whole or in parts (``observation``, or
    ``observation.camera`` and its like); rewards and actions where they are there. Columns that no transform looks at
    pass as they are. No gradient is recorded. Statistics stay as they are: on the read side rows are normalised with
    those of the moment.

    Args:
        transforms: those that can work on this side.
        side: ``write``: columns before they are written; ``read``: columns just sampled.
        observations: names of observations.
        reward: name of the reward.
        action: name of the action.
        num_leading: dimensions before those of a value, such as 2 for slices ``[slices, steps, ...]``.

    Raises:
        ConfigError: one can't work on this side.
    """

    def __init__(
        self,
        transforms: Sequence[Transform],
        side: Literal["write", "read"],
        *,
        observations: Sequence[str] = ("observation", "next.observation"),
        reward: str = "next.reward",
        action: str = "action",
        num_leading: int = 1,
    ) -> None:
        for transform in transforms:
            require_seat(transform, side)
        self.transforms, self.side = tuple(transforms), side
        self._observations, self._reward, self._action = tuple(observations), reward, action
        self._num_leading = num_leading

    def __call__(self, columns: Columns) -> dict[str, Tensor]:
        """Return the columns as the policy sees them; no rows at all are fine."""
        outcome = _tensors(columns)
        with torch.no_grad():
            for transform in self.transforms:
                outcome = self._forward(transform, outcome)
        return outcome

    def inverse(self, columns: Columns) -> dict[str, Tensor]:
        """Return the columns as the environment sees them: what `__call__` makes of that are ``columns``.

        On the write side this lets a buffer hold what is small, such as bytes, of what is large, such as floats.

        Raises:
            ConfigError: a transform has no inverse.
        """
        outcome = _tensors(columns)
        with torch.no_grad():
            for transform in reversed(self.transforms):
                outcome = self._inverse(transform, outcome)
        return outcome

    def _forward(self, transform: Transform, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        kind = type(transform)
        if transform.rewrites:
            columns = self._rewritten(columns, transform.forward)
        if kind.map_reward is not Transform.map_reward and self._reward in columns:
            columns = {**columns, self._reward: transform.map_reward(columns[self._reward])}
        if kind.action_forward is not Transform.action_forward and self._action in columns:
            mapped = _by_rows(transform.action_forward, columns[self._action], self._num_leading)
            columns = {**columns, self._action: mapped}
        return columns

    def _inverse(self, transform: Transform, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        kind = type(transform)
        if transform.rewrites:
            columns = self._rewritten(columns, transform.inverse)
        if kind.map_reward is not Transform.map_reward and self._reward in columns:
            columns = {**columns, self._reward: transform.unmap_reward(columns[self._reward])}
        if kind.action_inverse is not Transform.action_inverse and self._action in columns:
            mapped = _by_rows(transform.action_inverse, columns[self._action], self._num_leading)
            columns = {**columns, self._action: mapped}
        return columns

    def _rewritten(self, columns: dict[str, Tensor], function: Any) -> dict[str, Tensor]:
        for name in self._observations:
            prefix = f"{name}."
            parts = {key.removeprefix(prefix): value for key, value in columns.items() if key.startswith(prefix)}
            if name not in columns and not parts:
                continue
            observation: ObservationTensor = columns.get(name, parts)
            outcome = _by_rows(function, observation, self._num_leading)
            columns = {key: value for key, value in columns.items() if key != name and not key.startswith(prefix)}
            if isinstance(outcome, dict):
                columns.update({f"{prefix}{key}": value for key, value in outcome.items()})
            else:
                columns[name] = outcome
        return columns


def transform_rollout(transforms: Sequence[Transform], rollout: RolloutView) -> RolloutView:
    """Return a finished rollout with the observations and rewards that transforms make of it, in order.

    Statistics of rewards take the rollout in first; call it once for each.

    Raises:
        ConfigError: one can't work on a rollout.
    """
    for transform in transforms:
        require_seat(transform, "rollout")
    with torch.no_grad():
        for transform in transforms:
            reward = transform.reward(rollout, rollout.reward)
            observation = rollout.observation
            if transform.rewrites:
                observation = _by_rows(transform.forward, observation, 2)
            rollout = rollout._replace(observation=observation, reward=reward)
    return rollout


def _tensors(columns: Columns) -> dict[str, Tensor]:
    return {name: torch.as_tensor(value) for name, value in columns.items()}


def _by_rows(function: Any, value: Any, num_leading: int) -> Any:
    """Apply a function of rows ``[N, ...]`` to a tensor, or a dict of them, with more leading dimensions."""
    if num_leading == 1:
        return function(value)
    first = next(iter(value.values())) if isinstance(value, dict) else value
    leading = first.shape[:num_leading]

    def rows(tensor: Tensor) -> Tensor:
        return tensor.reshape(-1, *tensor.shape[num_leading:])

    outcome = function({key: rows(part) for key, part in value.items()} if isinstance(value, dict) else rows(value))
    if isinstance(outcome, dict):
        return {key: part.reshape(*leading, *part.shape[1:]) for key, part in outcome.items()}
    return outcome.reshape(*leading, *outcome.shape[1:])
