"""Advantages of a user's own."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlruntime.trainers.algorithms.advantages import AdvantageData


def one_step(data: AdvantageData, *, gamma: float = 0.5, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the temporal difference of each step, scaled, and what it points at."""
    target = data.reward + gamma * data.value[1:] * ~data.terminated
    return (target - data.value[:-1]) * scale, target


class Constant:
    """Says the same of every row; remembers what it was given."""

    def __init__(self, advantage: float, target: float = 0.0) -> None:
        self.advantage, self.target = advantage, target
        self.seen: list[AdvantageData] = []

    def __call__(self, data: AdvantageData) -> tuple[Tensor, Tensor]:
        self.seen.append(data)
        return data.reward.new_full(data.reward.shape, self.advantage), data.reward.new_full(
            data.reward.shape, self.target
        )


class Unready:
    """An object that can't be called."""


def wrong_shape(data: AdvantageData) -> Any:
    """Return too little."""
    return data.reward[1:], data.reward[1:]
