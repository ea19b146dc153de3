"""Running mean and variance that merge exactly (Chan, Golub and LeVeque 1979)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Moments(NamedTuple):
    """Mean and variance per element of some rows: what travels between processes.

    Attributes:
        mean, variance: ``shape`` float64; the variance is that of the population.
        num_rows: scalar float64.
    """

    mean: Tensor
    variance: Tensor
    num_rows: Tensor


Delta = dict[str, Moments]
"""What a rollout adds to a transform's statistics, by name; see `rlruntime.transforms.base.Transform.delta`."""


def moments_of(rows: Tensor) -> Moments:
    """Return the moments of ``rows [N, *shape]``; mean 0, variance 1 and count 0 where `N` is 0."""
    rows = rows.to(torch.float64)
    count = torch.tensor(float(rows.shape[0]), dtype=torch.float64, device=rows.device)
    if rows.shape[0] == 0:
        return Moments(rows.new_zeros(rows.shape[1:]), rows.new_ones(rows.shape[1:]), count)
    return Moments(rows.mean(0), rows.var(0, correction=0), count)


def merged(first: Moments, second: Moments) -> Moments:
    """Return the moments of both together, as if all rows had been seen at once. The order doesn't matter."""
    if float(second.num_rows) == 0.0:
        return first
    total = first.num_rows + second.num_rows
    difference = second.mean - first.mean
    squares = first.variance * first.num_rows + second.variance * second.num_rows
    squares = squares + difference.square() * (first.num_rows * second.num_rows / total)
    return Moments(first.mean + difference * (second.num_rows / total), squares / total, total)


class RunningMoments(nn.Module):
    """Mean and variance per element over all rows seen, in float64.

    Attributes:
        mean, variance: ``shape`` float64; the variance is that of the population.
        count: scalar float64, rows seen; 0 at first, with mean 0 and variance 1.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def add(self, rows: Tensor) -> None:
        """Take in ``rows [N, *shape]``; nothing happens where `N` is 0."""
        self.merge(moments_of(rows))

    def merge(self, other: Moments) -> None:
        """Take in the moments of other rows, as if all had been seen here."""
        moved = merged(self.value, Moments(*(part.to(self.mean.device) for part in other)))
        self.mean.copy_(moved.mean)
        self.variance.copy_(moved.variance)
        self.count.copy_(moved.num_rows)

    @property
    def value(self) -> Moments:
        """The moments themselves; they are views, which the next `merge` changes."""
        return Moments(self.mean, self.variance, self.count)
