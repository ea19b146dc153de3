"""The towers of Hanoi, with an action mask: move all discs to the last peg in the fewest moves.

Of the six moves from one peg to another at most three are possible at a time. The environment says which in
``info["action_mask"]`` and raises on any other, so a policy that ignored the mask would not survive its first episodes.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import gymnasium as gym
import numpy as np

PEGS = 3
MOVES = tuple(permutations(range(PEGS), 2))  # (from, to) of action 0 to 5


class Hanoi(gym.Env[np.ndarray, np.int64]):
    """Discs begin anywhere, by chance; the reward is -1 a move, so the return is minus the number of moves.

    The observation is the peg of each disc, smallest disc first.

    Args:
        discs: how many.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, discs: int = 3, render_mode: str | None = None) -> None:
        self.discs, self.render_mode = discs, render_mode
        self.observation_space = gym.spaces.MultiDiscrete([PEGS] * discs)
        self.action_space = gym.spaces.Discrete(len(MOVES))
        self._pegs = [0] * discs

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._pegs = self.np_random.integers(PEGS, size=self.discs).tolist()
        if self._solved():
            self._pegs = [0] * self.discs
        return np.array(self._pegs), {"action_mask": np.array(self._possible())}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        source, target = MOVES[int(action)]
        if not self._possible()[int(action)]:
            raise ValueError(f"a move from peg {source} to peg {target} is not possible with the discs on {self._pegs}")
        self._pegs[self._top(source)] = target
        return np.array(self._pegs), -1.0, self._solved(), False, {"action_mask": np.array(self._possible())}

    def render(self) -> str | None:
        """Return the discs on each peg as text, the largest at the left."""
        if self.render_mode is None:
            return None
        on_peg = [[str(disc + 1) for disc in range(self.discs) if self._pegs[disc] == peg] for peg in range(PEGS)]
        return "\n".join(" ".join(reversed(discs)) or "-" for discs in on_peg)

    def _top(self, peg: int) -> int:
        """Return the smallest disc on a peg, or the number of discs where it is empty."""
        return self._pegs.index(peg) if peg in self._pegs else self.discs

    def _possible(self) -> list[bool]:
        tops = [self._top(peg) for peg in range(PEGS)]
        return [tops[source] < tops[target] for source, target in MOVES]

    def _solved(self) -> bool:
        return self._pegs == [PEGS - 1] * self.discs


def make(discs: int = 3, render_mode: str | None = None) -> Hanoi:
    """Return a new puzzle; the manifest names this function."""
    return Hanoi(discs, render_mode)


def fewest_moves(discs: int) -> float:
    """Return the mean number of moves of a perfect player over the beginnings that `Hanoi` draws."""
    total = 0
    for state in np.ndindex(*(PEGS,) * discs):
        begin = state if any(peg != PEGS - 1 for peg in state) else (0,) * discs
        total += _fewest_from(begin)
    return float(total / PEGS**discs)


def _fewest_from(pegs: tuple[int, ...]) -> int:
    """Return the fewest moves: the largest disc that is not in place moves once, after all smaller ones went aside."""
    moves, target = 0, PEGS - 1
    for disc in range(len(pegs))[::-1]:
        if pegs[disc] != target:
            moves += 2**disc
            target = PEGS - pegs[disc] - target
    return moves
