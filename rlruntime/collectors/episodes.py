"""Returns and lengths of the episodes that end in a rollout."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class FinishedEpisodes(NamedTuple):
    """Episodes in the order of the copies, then of time.

    Attributes:
        returns: ``[E]`` float64, undiscounted sums of the environments' rewards.
        lengths: ``[E]`` int64, decisions.
    """

    returns: np.ndarray
    lengths: np.ndarray


class EpisodeTracker:
    """Accounts for episodes across rollouts.

    Args:
        num_envs: `B`.
    """

    def __init__(self, num_envs: int) -> None:
        self.open_returns = np.zeros(num_envs, np.float64)
        self.open_lengths = np.zeros(num_envs, np.int64)

    def add(
        self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, valid: np.ndarray
    ) -> FinishedEpisodes:
        """Take in ``[T, B]`` arrays of one rollout and return the episodes that ended in it.

        A row that isn't valid after one that didn't end (a copy that was replaced in mid-episode) drops what was open.
        """
        returns, self.open_returns = _sums_between(reward.astype(np.float64) * valid, self.open_returns, valid)
        lengths, self.open_lengths = _sums_between(valid.astype(np.int64), self.open_lengths, valid)
        copies, steps = np.nonzero(((terminated | truncated) & valid).T)
        return FinishedEpisodes(returns[steps, copies], lengths[steps, copies])

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the sums of the open episodes."""
        return {"open_returns": self.open_returns, "open_lengths": self.open_lengths}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Take over what ``state_dict`` returned."""
        self.open_returns = np.array(state["open_returns"], np.float64)
        self.open_lengths = np.array(state["open_lengths"], np.int64)


def _sums_between(amount: np.ndarray, start: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return running sums ``[T, B]`` since the last row that isn't valid, and the sums after the last row."""
    total = amount.cumsum(0) + start
    rows = np.arange(len(amount))[:, None]
    last_reset = np.maximum.accumulate(np.where(valid, -1, rows), 0)
    summed_before = np.take_along_axis(total, np.maximum(last_reset, 0), 0)
    since = total - np.where(last_reset >= 0, summed_before, 0)
    return since, since[-1].copy()
