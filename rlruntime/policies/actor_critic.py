"""The actor-critic: what acts, and what judges.

Besides the keys of `rlruntime.policies.policy` it writes ``value [N]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.nn import functional

from rlruntime.envs.protocol import EnvSpaces
from rlruntime.policies.distributions import ActionDistribution
from rlruntime.policies.networks import orthogonal_
from rlruntime.policies.observations import ObservationTensor, narrow_observation
from rlruntime.policies.policy import Policy, flat_observation, output_size
from rlruntime.policies.recurrent import State, encode_sequence, encode_step
from rlruntime.spec.training.component import Component
from rlruntime.transforms.base import Transform

if TYPE_CHECKING:
    from tensordict import TensorDictBase  # takes as long to import as torch

_MAX_EVALUATION_ROWS = 16_384


class ActorCritic(Policy):
    """A policy with a value head beside it, on an encoder of its own or on a shared one.

    Attributes:
        shared: whether actor and critic are one encoder.
        critic_network: what the critic's encoder was built from, where that isn't ``network``.
    """

    critic_encoder: nn.Module

    def __init__(
        self,
        spaces: EnvSpaces,
        distribution: ActionDistribution,
        transforms: Sequence[Transform],
        actor_encoder: nn.Module,
        critic_encoder: nn.Module,
        *,
        encoder_space: gym.Space[Any],
        network: Component,
        critic_network: Component | None = None,
        transform_components: Sequence[Component] = (),
    ) -> None:
        super().__init__(
            spaces,
            distribution,
            transforms,
            actor_encoder,
            kind="ActorCritic",
            encoder_space=encoder_space,
            network=network,
            transform_components=transform_components,
            further_encoders={"critic_encoder": critic_encoder},
        )
        self.critic_network = critic_network
        self.shared = actor_encoder is critic_encoder
        self.critic_head = orthogonal_(nn.Linear(output_size(critic_encoder), 1), 1.0)
        self.eval()

    def values(self, observation: ObservationTensor) -> Tensor:
        """Return values ``[N]``."""
        return self._critic(self.critic_encoder(self.preprocess(observation)))

    def params_and_values(self, observation: ObservationTensor) -> tuple[Tensor, Tensor]:
        """Return both, ``[N, P]`` and ``[N]``; a shared encoder runs once."""
        observation = self.preprocess(observation)
        features = self.actor_encoder(observation)
        judged = features if self.shared else self.critic_encoder(observation)
        return self.head(features), self._critic(judged)

    def step_with_value(
        self, observation: ObservationTensor, state: State, is_init: Tensor
    ) -> tuple[Tensor, Tensor, State]:
        """Do what `step` does for actor and critic; return ``[N, P]``, ``[N]`` and the state after the rows."""
        observation = self.preprocess(observation)
        features, state = encode_step(self.actor_encoder, "actor", observation, state, is_init)
        judged = features
        if not self.shared:
            judged, state = encode_step(self.critic_encoder, "critic", observation, state, is_init)
        return self.head(features), self._critic(judged), state

    def values_over(self, observation: ObservationTensor, state: State, is_init: Tensor) -> tuple[Tensor, State]:
        """Return the values ``[T * N]`` of a sequence, and the critic's state after it; for any policy.

        Args:
            observation: ``T * N`` rows, time first.
            state: before the first step.
            is_init: ``[T, N]`` bool.
        """
        name = "actor" if self.shared else "critic"
        features, state = encode_sequence(self.critic_encoder, name, self.preprocess(observation), state, is_init)
        return self._critic(features), state

    def params_and_values_over(
        self, observation: ObservationTensor, state: State, is_init: Tensor
    ) -> tuple[Tensor, Tensor, State]:
        """Return the parameters ``[T * N, P]`` and values ``[T * N]`` of a sequence, and the state after it; see
        `values_over`. A shared encoder runs once.
        """
        observation = self.preprocess(observation)
        features, state = encode_sequence(self.actor_encoder, "actor", observation, state, is_init)
        judged = features
        if not self.shared:
            judged, state = encode_sequence(self.critic_encoder, "critic", observation, state, is_init)
        return self.head(features), self._critic(judged), state

    def values_in_chunks(self, observation: ObservationTensor, num_rows: int) -> Tensor:
        """Return values ``[num_rows]`` with bounded memory, whatever the number of rows."""
        if num_rows <= _MAX_EVALUATION_ROWS:
            return self.values(observation)
        values = []
        for start in range(0, num_rows, _MAX_EVALUATION_ROWS):
            length = min(_MAX_EVALUATION_ROWS, num_rows - start)
            values.append(self.values(narrow_observation(observation, start, length)))
        return torch.cat(values)

    def forward(self, td: TensorDictBase, *, generator: torch.Generator | None = None) -> TensorDictBase:
        """Do what `Policy.forward` does, and write the value."""
        params, value, state = self.step_with_value(flat_observation(td), *self._read_state(td))
        self._write_state(td, state)
        self._write_action(td, params, generator)
        td.set("value", value)
        return td

    def _critic(self, features: Tensor) -> Tensor:
        return functional.linear(features, self.critic_head.weight, self.critic_head.bias).squeeze(-1)
