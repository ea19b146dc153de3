"""A module that the manifest names as `fourier_features:FourierFeatures`, for the transform `ModuleTransform`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FourierFeatures(nn.Module):
    """Sines and cosines of random directions, beside the input itself (Rahimi and Recht 2007, "Random features for
    large-scale kernel machines").

    Args:
        inputs: numbers of a row.
        features: random directions.
    """

    directions: Tensor

    def __init__(self, inputs: int, features: int) -> None:
        super().__init__()
        self.register_buffer("directions", torch.randn(inputs, features))

    def forward(self, rows: Tensor) -> Tensor:
        angles = rows @ self.directions
        return torch.cat([rows, angles.sin(), angles.cos()], -1)
