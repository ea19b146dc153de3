"""Trajectories of known lengths as rows of replay buffers; every row tells where it is from."""

from __future__ import annotations

import numpy as np


class Experience:
    """Writes trajectories of given lengths, several environments in turns.

    Args:
        lengths: of the trajectories of each environment. Every other trajectory ends by truncation.
    """

    def __init__(self, lengths: list[list[int]]) -> None:
        self.columns = [self._column(env, env_lengths) for env, env_lengths in enumerate(lengths)]
        self.at = 0

    @staticmethod
    def _column(env: int, lengths: list[int]) -> dict[str, np.ndarray]:
        steps = np.concatenate([np.arange(length) for length in lengths])
        numbers = np.concatenate([np.full(length, 100 * env + index) for index, length in enumerate(lengths)])
        ends = np.concatenate([np.arange(length) == length - 1 for length in lengths])
        by_truncation = numbers % 2 == 1
        return {
            "trajectory": numbers,
            "step": steps,
            "next.step": steps + 1,
            "next.reward": (10.0 * numbers + steps).astype(np.float32),
            "next.terminated": ends & ~by_truncation,
            "next.truncated": ends & by_truncation,
        }

    def steps(self, count: int) -> dict[str, np.ndarray]:
        """Return the next ``count`` steps of all environments, flattened time first."""
        low, self.at = self.at, self.at + count
        return {
            name: np.stack([column[name][low : self.at] for column in self.columns], 1).reshape(-1)
            for name in self.columns[0]
        }


def held_slices(rows: list[tuple[int, int]], length: int) -> set[tuple[int, int]]:
    """Return trajectory and first step of every slice among the rows of one environment, oldest first."""
    return {
        rows[at]
        for at in range(len(rows) - length + 1)
        if all(rows[at + k] == (rows[at][0], rows[at][1] + k) for k in range(length))
    }
