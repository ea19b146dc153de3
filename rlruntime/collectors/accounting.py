"""What a finished rollout comes to: episodes, trajectories, frames, the rewards to learn from, and statistics.

It is the same whatever collected the rollout, and is done by the side that learns, so that statistics are of one place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlruntime.collectors.episodes import EpisodeTracker, FinishedEpisodes
from rlruntime.collectors.rollout import Rollout
from rlruntime.policies.observations import flatten_time, map_observation
from rlruntime.policies.policy import Policy
from rlruntime.transforms.base import RolloutView, Transform


class Accounts:
    """Accounts for the rollouts of `B` copies, one after the other.

    Args:
        num_envs: `B`.

    Attributes:
        num_frames: valid rows so far.
        episodes: those that ended in the last rollout.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.num_frames = 0
        self.episodes = FinishedEpisodes(np.zeros(0), np.zeros(0, np.int64))
        self._tracker = EpisodeTracker(num_envs)
        self._begun = np.zeros(num_envs, np.int64)
        self._at_start = np.ones(num_envs, np.bool_)
        self._all = np.arange(num_envs)

    def restart(self) -> None:
        """Every copy begins a new episode; trajectories go on being numbered."""
        self._tracker = EpisodeTracker(self.num_envs)
        self._at_start[:] = True

    def add(self, rollout: Rollout, copies: np.ndarray | None = None) -> None:
        """Take in the next rollout: count it, and write ``num_valid``, ``is_init`` and ``trajectory_id``.

        Args:
            rollout: of all copies.
            copies: those of its columns, each another one, where it isn't of all.
        """
        copies = self._all if copies is None else copies
        valid = rollout.valid.numpy()
        filled = rollout.num_filled.numpy()
        num_steps = rollout.num_steps
        is_whole = int(filled.min()) == num_steps
        reached = None if is_whole else np.arange(num_steps)[:, None] < filled
        self.episodes = self._tracker.add(
            rollout.env_reward.numpy(), rollout.terminated.numpy(), rollout.truncated.numpy(), valid, reached, copies
        )
        rollout.num_valid = int(np.count_nonzero(valid))
        self.num_frames += rollout.num_valid
        is_init = rollout.is_init.numpy()
        np.logical_and(valid[0], self._at_start[copies], out=is_init[0])
        if num_steps > 1:
            np.logical_and(valid[1:], ~valid[:-1], out=is_init[1:])
        begun = is_init.cumsum(0) + (self._begun[copies] - 1)
        rollout.trajectory_id.numpy()[:] = np.where(valid, begun * self.num_envs + copies, -1)
        self._begun[copies] = begun[-1] + 1
        if is_whole:
            self._at_start[copies] = ~valid[-1]
            return
        ended = ~valid[filled - 1, np.arange(len(copies))]
        self._at_start[copies] = np.where(filled > 0, ended, self._at_start[copies])

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes over."""
        return {
            "num_frames": self.num_frames,
            "episodes": self._tracker.state_dict(),
            "trajectories": self._begun.copy(),
            "at_start": self._at_start.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self.num_frames = int(state["num_frames"])
        self._tracker.load_state_dict(state["episodes"])
        self._load_numbers(state)
        # A checkpoint of before trajectories were numbered doesn't say; most copies are in mid-episode.
        self._at_start = np.array(state.get("at_start", np.zeros(self.num_envs)), np.bool_)

    def load_counters(self, state: dict[str, Any]) -> None:
        """Take over the counters alone, for copies that begin new episodes."""
        self.num_frames = int(state["num_frames"])
        self._load_numbers(state)
        self.restart()

    def _load_numbers(self, state: dict[str, Any]) -> None:
        self._begun = np.array(state.get("trajectories", np.ones(self.num_envs)), np.int64)


def apply_reward_transforms(
    policy: Policy, rollout: Rollout, copies: np.ndarray | None = None, num_envs: int | None = None
) -> None:
    """Give a rollout the rewards to learn from: what the policy's transforms make of those of the environments.

    Args:
        policy: whose transforms.
        rollout: its ``reward`` is set.
        copies: those of its columns, where it isn't of all; what transforms keep of each copy is put in their place.
        num_envs: copies in all.
    """
    rollout.reward = rollout.env_reward
    if not len(policy.transforms):
        return
    view = _view(rollout)
    with torch.no_grad():
        for transform in policy.transforms:
            kept = {}
            if copies is not None:
                assert num_envs is not None
                kept = _of_all_copies(transform, num_envs)
                rows = torch.from_numpy(copies)
                for name, state in kept.items():
                    setattr(transform, name, state[rows.to(state.device)])
            rollout.reward = transform.reward(view, rollout.reward)  # type: ignore[operator]
            for name, state in kept.items():
                state[rows.to(state.device)] = getattr(transform, name)
                setattr(transform, name, state)


def _of_all_copies(transform: nn.Module, num_envs: int) -> dict[str, Tensor]:
    """Return the buffers of a transform that hold a row for every copy."""
    kept = {}
    for name in getattr(transform, "resizable_buffers", ()):
        buffer = getattr(transform, name)
        if buffer.shape[:1] != (num_envs,):
            buffer = buffer.new_zeros((num_envs, *buffer.shape[1:]))
        kept[name] = buffer
    return kept


def update_statistics(policy: Policy, rollout: Rollout) -> None:
    """Show each transform that has statistics what it saw in the rollout: what those before it made of it."""
    moving = [number for number, part in enumerate(policy.transforms) if _has_statistics(part)]
    if not moving:
        return

    def with_time(rows: Tensor) -> Tensor:
        return rows.reshape(rollout.num_steps, rollout.num_envs, *rows.shape[1:]).cpu()

    with torch.no_grad():
        view, pending = _view(rollout), []
        for number, transform in enumerate(policy.transforms):
            if number in moving:
                pending.append((transform, view))
            if any(later > number for later in moving):
                rows = map_observation(lambda leaf: leaf.to(policy.device), flatten_time(view.observation))
                view = view._replace(observation=map_observation(with_time, transform(rows)))
        for transform, seen_by_it in pending:
            transform.update(seen_by_it)  # type: ignore[operator]


def _has_statistics(transform: nn.Module) -> bool:
    return isinstance(transform, Transform) and type(transform).update is not Transform.update


def _view(rollout: Rollout) -> RolloutView:
    return RolloutView(
        observation=map_observation(lambda leaf: leaf[:-1], rollout.observation),
        reward=rollout.env_reward,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        valid=rollout.valid,
    )
