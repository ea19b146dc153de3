"""Returns and lengths of the episodes that end in a rollout."""

from __future__ import annotations

from collections.abc import Sequence
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

    @staticmethod
    def joined(parts: Sequence[FinishedEpisodes]) -> FinishedEpisodes:
        """Return the episodes of all parts, in order."""
        if not parts:
            return FinishedEpisodes(np.zeros(0), np.zeros(0, np.int64))
        return FinishedEpisodes(
            np.concatenate([part.returns for part in parts]), np.concatenate([part.lengths for part in parts])
        )


class EpisodeTracker:
    """Accounts for episodes across rollouts.

    Args:
        num_envs: `B`.
    """

    def __init__(self, num_envs: int) -> None:
        self.open_returns = np.zeros(num_envs, np.float64)
        self.open_lengths = np.zeros(num_envs, np.int64)

    def add(
        self,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        valid: np.ndarray,
        reached: np.ndarray | None = None,
        copies: np.ndarray | None = None,
    ) -> FinishedEpisodes:
        """Take in ``[T, B]`` arrays of one rollout and return the episodes that ended in it.

        A row that isn't valid after one that didn't end (a copy that was replaced in mid-episode) drops what was open.

        Args:
            reached: which rows hold a step, where columns were cut short: the others, not valid, change nothing.
            copies: those of the columns, each another one; all, in order, by default.
        """
        goes_on = valid if reached is None else valid | ~reached
        of = slice(None) if copies is None else copies
        amount = reward.astype(np.float64) * valid
        returns, self.open_returns[of] = _sums_between(amount, self.open_returns[of], goes_on)
        lengths, self.open_lengths[of] = _sums_between(valid.astype(np.int64), self.open_lengths[of], goes_on)
        columns, steps = np.nonzero(((terminated | truncated) & valid).T)
        return FinishedEpisodes(returns[steps, columns], lengths[steps, columns])

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the sums of the open episodes."""
        return {"open_returns": self.open_returns, "open_lengths": self.open_lengths}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Take over what ``state_dict`` returned."""
        self.open_returns = np.array(state["open_returns"], np.float64)
        self.open_lengths = np.array(state["open_lengths"], np.int64)


def _sums_between(amount: np.ndarray, start: np.ndarray, goes_on: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return running sums ``[T, B]`` since the last row that doesn't go on, and the sums after the last row."""
    if len(amount) == 1:
        only = np.where(goes_on, amount + start, 0)
        return only, only[0].copy()
    total = amount.cumsum(0) + start
    rows = np.arange(len(amount))[:, None]
    last_reset = np.maximum.accumulate(np.where(goes_on, -1, rows), 0)
    summed_before = np.take_along_axis(total, np.maximum(last_reset, 0), 0)
    since = total - np.where(last_reset >= 0, summed_before, 0)
    return since, since[-1].copy()
