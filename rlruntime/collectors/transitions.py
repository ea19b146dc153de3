"""Transitions for replay: steps of environments, without what only on-policy learning needs."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from rlruntime.collectors.accounting import apply_reward_transforms
from rlruntime.collectors.inline import InlineCollector
from rlruntime.collectors.rollout import Rollout
from rlruntime.errors import ConfigError
from rlruntime.policies.observations import ObservationTensor
from rlruntime.spec.training.storages import TRAJECTORY_KEY


class TransitionCollector(InlineCollector):
    """Fills short rollouts whose rows go into a replay buffer: no log-probabilities and no values are computed, and
    NaN stands in their place.

    Parameters of the policy may change between two calls of `collect`.
    """

    def use(self, rollout: Rollout) -> None:
        """See `InlineCollector.use`."""
        super().use(rollout)
        rollout.value.fill_(math.nan)

    def _judge(self, rollout: Rollout) -> None:
        """Move the statistics of rewards; replay learns from what happened alone."""
        rollout.behaviour_log_prob.fill_(math.nan)
        apply_reward_transforms(self.policy, rollout)


class TransitionRows:
    """`transitions` as arrays, for rollouts that are filled over and over: the views are made once for each.

    Args:
        with_trajectory, version_key: see `transitions`.
    """

    def __init__(self, *, with_trajectory: bool = False, version_key: str | None = None) -> None:
        self._with_trajectory, self._version_key = with_trajectory, version_key
        self._rollout: Rollout | None = None
        self._flat: dict[str, np.ndarray] = {}

    def __call__(self, rollout: Rollout) -> dict[str, np.ndarray]:
        """Return the valid rows of ``rollout``."""
        flat = self._flat
        if rollout is not self._rollout:
            columns = _columns(rollout, self._with_trajectory, self._version_key)
            flat = {name: column.reshape(-1, *column.shape[2:]) for name, column in columns.items()}
            if all(np.shares_memory(flat[name], column) for name, column in columns.items()):
                self._rollout, self._flat = rollout, flat
        if rollout.num_valid == rollout.num_steps * rollout.num_envs:
            return flat
        rows = rollout.valid.numpy().reshape(-1).nonzero()[0]
        return {name: column[rows] for name, column in flat.items()}


def transitions(
    rollout: Rollout, *, with_trajectory: bool = False, version_key: str | None = None
) -> dict[str, Tensor]:
    """Return the valid rows of a rollout ``[T, B]`` as columns ``[n, ...]``, time first.

    Each row carries its own next observation, and the reward that the environment gave. Columns: ``observation``
    (``observation.<key>`` of Dict spaces), ``action``, ``next.observation``, ``next.reward``, ``next.terminated``,
    ``next.truncated``, and ``action_mask`` and ``next.action_mask`` where the environment has masks. Where every row is
    valid they are views of the rollout.

    Args:
        with_trajectory: add the column ``trajectory``, the number of the episode, int64.
        version_key: add a column of this name with the version of the policy that chose the action, int64.

    Raises:
        ConfigError: there is a column of this name.
    """
    rows = TransitionRows(with_trajectory=with_trajectory, version_key=version_key)(rollout)
    return {name: torch.from_numpy(column) for name, column in rows.items()}


def _columns(rollout: Rollout, with_trajectory: bool, version_key: str | None) -> dict[str, np.ndarray]:
    """Return the columns ``[T, B, ...]``."""
    columns: dict[str, Tensor] = {}
    _add_observation(columns, "observation", rollout.observation, slice(None, -1))
    columns["action"] = rollout.action
    _add_observation(columns, "next.observation", rollout.observation, slice(1, None))
    columns["next.reward"] = rollout.env_reward
    columns["next.terminated"] = rollout.terminated
    columns["next.truncated"] = rollout.truncated
    if rollout.action_mask is not None:
        columns["action_mask"], columns["next.action_mask"] = rollout.action_mask[:-1], rollout.action_mask[1:]
    if with_trajectory:
        columns[TRAJECTORY_KEY] = rollout.trajectory_id
    if version_key is not None:
        if version_key in columns:
            raise ConfigError(
                "the version of the policy would replace a column of this name",
                field="version_key",
                value=version_key,
                remedy="choose a name of its own, such as policy_version",
            )
        columns[version_key] = rollout.policy_version
    return {name: column.numpy() for name, column in columns.items()}


def _add_observation(columns: dict[str, Tensor], name: str, observation: ObservationTensor, steps: slice) -> None:
    if isinstance(observation, Tensor):
        columns[name] = observation[steps]
        return
    for key, leaf in observation.items():
        columns[f"{name}.{key}"] = leaf[steps]
