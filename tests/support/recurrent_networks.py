"""Small networks with memory whose numbers are known."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlruntime.policies.actor_critic import ActorCritic

State = dict[str, Tensor]

KINDS: dict[str, dict[str, Any]] = {
    "LSTM": {"type": "LSTM", "config": {"hiddenSizes": [8], "recurrentSize": 6}},
    "GRU": {"type": "GRU", "config": {"hiddenSizes": [], "recurrentSize": 5, "numLayers": 2, "shared": True}},
    "user": {"type": "recurrent_networks:Elman", "config": {"width": 6}},
}
"""Components by a name."""


class Counter(nn.Module):
    """Its one feature is how many rows of the episode it has seen."""

    output_size = 1

    def __init__(self, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self.recurrent_state_shapes = {"seen": (1,)}

    def forward(self, observation: Tensor, state: State, is_init: Tensor) -> tuple[Tensor, State]:
        seen = state["seen"] + 1.0
        return seen, {"seen": seen}


class UnwillingCounter(Counter):
    """A counter whose values may not be put off."""

    deferrable = False


class Elman(nn.Module):
    """The simplest recurrent network (Elman 1990), of a user's, who knows nothing of sequences."""

    def __init__(self, observation_space: gym.Space[Any], width: int = 6) -> None:
        super().__init__()
        self.before = nn.Linear(int(np.prod(observation_space.shape or ())), width)
        self.again = nn.Linear(width, width)
        self.output_size = width
        self.recurrent_state_shapes = {"context": (width,)}

    def forward(self, observation: Tensor, state: State, is_init: Tensor) -> tuple[Tensor, State]:
        context = torch.tanh(self.before(observation.flatten(1).float()) + self.again(state["context"]))
        return context, {"context": context}


class Memoryless(nn.Module):
    """A linear layer; what it remembers has no use."""

    def __init__(self, observation_space: gym.Space[Any], width: int = 6) -> None:
        super().__init__()
        self.layer = nn.Linear(int(np.prod(observation_space.shape or ())), width)
        self.output_size = width
        self.recurrent_state_shapes = {"nothing": (1,)}

    def forward(self, observation: Tensor, state: State, is_init: Tensor) -> tuple[Tensor, State]:
        return torch.tanh(self.layer(observation)), state


class Plain(nn.Module):
    """The same linear layer, without memory."""

    def __init__(self, observation_space: gym.Space[Any], width: int = 6) -> None:
        super().__init__()
        self.layer = nn.Linear(int(np.prod(observation_space.shape or ())), width)
        self.output_size = width

    def forward(self, observation: Tensor) -> Tensor:
        return torch.tanh(self.layer(observation))


def show_counts(policy: ActorCritic) -> None:
    """Make values and the first parameter of actions of a policy of `Counter` what it counts."""
    with torch.no_grad():
        for head in (policy.actor_head, policy.critic_head):
            head.weight.fill_(1.0)
            head.bias.zero_()
