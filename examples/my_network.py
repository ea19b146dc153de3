"""A network of one's own: an encoder that the manifest names as `my_network:Encoder`.

What a network has to be is little: an `nn.Module` whose class is called with the observation space and `config` as
keyword arguments, that has an integer `output_size`, and that maps N rows of an observation to `[N, output_size]`. The
heads of policy and value are put on top. With `shared = True` both use one encoder; else each gets its own.
"""

from __future__ import annotations

import gymnasium as gym
import torch
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Layer normalisation, two layers, and the input added to their output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, features: Tensor) -> Tensor:
        change: Tensor = self.layers(features)
        return features + change


class Encoder(nn.Module):
    """Residual blocks over a vector observation.

    Args:
        observation_space: a Box of one dimension.
        width: of every layer.
        blocks: how many.
    """

    def __init__(self, observation_space: gym.spaces.Box, width: int = 64, blocks: int = 2) -> None:
        super().__init__()
        self.output_size = width
        self.shared = False
        self.embed = nn.Linear(observation_space.shape[0], width)
        self.blocks = nn.Sequential(*(ResidualBlock(width) for _ in range(blocks)))

    def forward(self, observation: Tensor) -> Tensor:
        return torch.tanh(self.blocks(self.embed(observation)))
