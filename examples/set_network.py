"""A network of one's own for Dict observations: an encoder that the manifest names as `set_network:SetEncoder`."""

from __future__ import annotations

import math

import gymnasium as gym
import torch
from torch import Tensor, nn


class SetEncoder(nn.Module):
    """Every buoy goes through the same layers, and the largest features count (as in Zaheer et al. 2017, "Deep sets"),
    so that their order doesn't matter. All other parts of the observation stand beside them as they are.

    Args:
        observation_space: a Dict with ``buoys [n, k]``. A critic's has the action as well.
        width: of every layer.
    """

    def __init__(self, observation_space: gym.spaces.Dict, width: int = 64) -> None:
        super().__init__()
        spaces = observation_space.spaces
        self.output_size = width
        self.others = sorted(set(spaces) - {"buoys"})
        size = sum(math.prod(spaces[key].shape or (1,)) for key in self.others)
        each = (spaces["buoys"].shape or (1,))[-1]
        self.each = nn.Sequential(nn.Linear(each + size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.all = nn.Sequential(nn.Linear(width + size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        buoys = observation["buoys"]
        others = torch.cat([observation[key].flatten(1) for key in self.others], -1)
        seen = self.each(torch.cat([buoys, others.unsqueeze(1).expand(-1, buoys.shape[1], -1)], -1)).amax(1)
        features: Tensor = self.all(torch.cat([seen, others], -1))
        return features
