"""Running mean and variance that merge exactly (Chan, Golub and LeVeque 1979)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
        if rows.shape[0] == 0:
            return
        rows = rows.to(torch.float64)
        count = torch.tensor(float(rows.shape[0]), dtype=torch.float64, device=rows.device)
        self.merge(rows.mean(0), rows.var(0, correction=0), count)

    def merge(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Take in the moments of other rows, as if all had been seen here."""
        total = self.count + count
        delta = mean - self.mean
        seen_before = self.variance * self.count
        squares = seen_before + variance * count + delta.square() * (self.count * count / total)
        self.mean.add_(delta * (count / total))
        self.variance.copy_(squares / total)
        self.count.copy_(total)
