"""Rollouts split into trajectories: the steps of one episode, of whichever environment, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rlruntime.collectors.rollout import Rollout

if TYPE_CHECKING:
    from tensordict import TensorDict  # takes as long to import as torch


class Trajectories(NamedTuple):
    """`N` trajectories, one after the other.

    Attributes:
        steps: TensorDict ``[S]`` with the keys of `Rollout.to_tensordict`, all steps of the first trajectory first.
        lengths: ``[N]`` int64, steps of each.
        ids: ``[N]`` int64, of each; see ``Rollout.trajectory_id``.
    """

    steps: TensorDict
    lengths: Tensor
    ids: Tensor

    @property
    def starts(self) -> Tensor:
        """``[N]`` int64, where each begins in ``steps``."""
        return self.lengths.cumsum(0) - self.lengths


def pack_trajectories(rollout: Rollout, *, whole: bool = False) -> Trajectories:
    """Return the trajectories of a rollout, by their ids; rows that aren't valid are left out. A copy.

    Columns that follow each other in time (an environment that filled several) make one trajectory.

    Args:
        rollout: ``[T, B]``.
        whole: leave out those that began before the rollout, or go on after it.
    """
    by_column = torch.arange(rollout.num_steps * rollout.num_envs).view(rollout.num_steps, rollout.num_envs).T.flatten()
    rows = by_column[rollout.valid.flatten()[by_column]]
    ids = rollout.trajectory_id.flatten()[rows]
    ids, order = torch.sort(ids, stable=True)
    rows = rows[order]
    ids, lengths = torch.unique_consecutive(ids, return_counts=True)
    if whole:
        starts = lengths.cumsum(0) - lengths
        ended = (rollout.terminated | rollout.truncated).flatten()[rows]
        keeps = rollout.is_init.flatten()[rows[starts]] & ended[starts + lengths - 1]
        rows = rows[torch.repeat_interleave(keeps, lengths)]
        ids, lengths = ids[keeps], lengths[keeps]
    steps: TensorDict = rollout.to_tensordict().reshape(-1)[rows]
    return Trajectories(steps, lengths, ids)


def pad_trajectories(rollout: Rollout, *, whole: bool = False) -> TensorDict:
    """Return the trajectories of a rollout as a TensorDict ``[N, L]``, `L` the length of the longest.

    Besides the keys of `Rollout.to_tensordict` it has ``mask`` ``[N, L]`` bool, which tells steps from padding; padding
    is zeros, with ``trajectory_id`` -1 and ``valid`` False.

    Args:
        rollout: ``[T, B]``.
        whole: leave out trajectories that began before the rollout, or go on after it.
    """
    packed = pack_trajectories(rollout, whole=whole)
    count, longest = len(packed.lengths), int(packed.lengths.max()) if len(packed.lengths) else 0
    within = torch.arange(longest)
    mask = within < packed.lengths[:, None]
    padded: TensorDict = packed.steps.new_zeros(torch.Size((count, longest)))
    padded[mask] = packed.steps
    padded.set("mask", mask)
    padded["trajectory_id"][~mask] = -1
    return padded
