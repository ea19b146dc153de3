"""The actor-critic: what acts, and what judges.

Keys of the TensorDict protocol, for `N` rows: ``observation [N, ...]`` (nested for Dict spaces),
``action_mask [N, n]`` where the environment has one; written are ``action``, ``log_prob [N]`` and ``value [N]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlruntime.envs.protocol import EnvSpaces
from rlruntime.errors import ConfigError
from rlruntime.policies.distributions import ActionDistribution, make_distribution
from rlruntime.policies.networks import orthogonal_
from rlruntime.policies.observations import ObservationTensor, narrow_observation
from rlruntime.registry import build
from rlruntime.seeding import NETWORK, stream_seed
from rlruntime.spec.training.component import Component
from rlruntime.transforms.base import Transform

if TYPE_CHECKING:
    from tensordict import TensorDictBase  # takes as long to import as torch

_MAX_EVALUATION_ROWS = 16_384


class ActorCritic(nn.Module):
    """Encoders, a policy head and a value head behind the observation transforms.

    Modules stay in evaluation mode, in collection and in learning: the probability ratio of PPO compares one function
    with itself, which dropout and batch statistics would break.

    Attributes:
        spaces: what it was built for.
        distribution: of its actions.
        transforms: between the environment's observation and the encoders, in order.
        network, transform_components: what it was built from.
        deferrable: whether values computed in one pass after a rollout equal those computed step by step. An encoder
            whose output depends on more than its row and its parameters declares ``deferrable = False``.
    """

    def __init__(
        self,
        spaces: EnvSpaces,
        distribution: ActionDistribution,
        transforms: Sequence[Transform],
        actor_encoder: nn.Module,
        critic_encoder: nn.Module,
        *,
        network: Component,
        transform_components: Sequence[Component] = (),
    ) -> None:
        super().__init__()
        self.spaces = spaces
        self.network, self.transform_components = network, tuple(transform_components)
        self.distribution = distribution
        self.transforms = nn.ModuleList(transforms)
        self.actor_encoder = actor_encoder
        self.critic_encoder = critic_encoder
        self.shared = actor_encoder is critic_encoder
        self.actor_head = orthogonal_(nn.Linear(_output_size(actor_encoder), distribution.num_params), 0.01)
        self.critic_head = orthogonal_(nn.Linear(_output_size(critic_encoder), 1), 1.0)
        self.deferrable = all(getattr(encoder, "deferrable", True) for encoder in (actor_encoder, critic_encoder))
        self.eval()

    def train(self, mode: bool = True) -> ActorCritic:
        """Stay in evaluation mode; see the class."""
        super().train(False)
        return self

    def preprocess(self, observation: ObservationTensor) -> ObservationTensor:
        """Apply the observation transforms to `N` rows."""
        for transform in self.transforms:
            observation = transform(observation)
        return observation

    def action_params(self, observation: ObservationTensor) -> Tensor:
        """Return the parameters ``[N, P]`` of the action distribution."""
        return self._actor(self.actor_encoder(self.preprocess(observation)))

    def values(self, observation: ObservationTensor) -> Tensor:
        """Return values ``[N]``."""
        return self._critic(self.critic_encoder(self.preprocess(observation)))

    def params_and_values(self, observation: ObservationTensor) -> tuple[Tensor, Tensor]:
        """Return both, ``[N, P]`` and ``[N]``; a shared encoder runs once."""
        observation = self.preprocess(observation)
        features = self.actor_encoder(observation)
        judged = features if self.shared else self.critic_encoder(observation)
        return self._actor(features), self._critic(judged)

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
        """Act on a TensorDict of batch size ``[N]``; see the module for its keys.

        Args:
            td: rows to act on; it is written to and returned.
            generator: of the policy's noise; None takes the most probable action.
        """
        observation = _flat_observation(td)
        mask = td.get("action_mask", None)
        params, value = self.params_and_values(observation)
        if generator is None:
            action = self.distribution.mode(params, mask)
        else:
            noise = self.distribution.draw_noise((params.shape[0],), generator, params.device)
            shape = (params.shape[0], *self.distribution.action_shape)
            action = torch.empty(shape, dtype=self.distribution.action_dtype, device=params.device)
            self.distribution.sample(params, noise, mask, action)
        td.set("action", action)
        td.set("log_prob", self.distribution.evaluate(params, action, mask).log_prob)
        td.set("value", value)
        return td

    def _actor(self, features: Tensor) -> Tensor:
        head = functional.linear(features, self.actor_head.weight, self.actor_head.bias)
        return self.distribution.complete(head)

    def _critic(self, features: Tensor) -> Tensor:
        return functional.linear(features, self.critic_head.weight, self.critic_head.bias).squeeze(-1)


def build_policy(
    spaces: EnvSpaces,
    network: Component = Component(type="MLP"),  # noqa: B008  (frozen)
    transforms: Sequence[Component] = (),
    *,
    seed: int = 0,
) -> ActorCritic:
    """Build an actor-critic with parameters drawn from the ``network`` stream of ``seed``; torch's own state stays.

    Raises:
        ConfigError: unknown network or transform, bad config, or spaces they can't work with.
    """
    distribution = make_distribution(spaces.action)
    space = spaces.observation
    parts: list[Transform] = []
    for number, component in enumerate(transforms):
        part = build("transform", component, space, field=f"spec.training.env.transforms[{number}]")
        space = part.observation_space(space)
        parts.append(part)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, NETWORK))
        actor = _build_encoder(network, space)
        critic = actor if getattr(actor, "shared", False) else _build_encoder(network, space)
        return ActorCritic(spaces, distribution, parts, actor, critic, network=network, transform_components=transforms)


def _build_encoder(network: Component, space: Any) -> nn.Module:
    encoder = build("network", network, space, field="spec.training.network")
    if not isinstance(encoder, nn.Module) or not isinstance(getattr(encoder, "output_size", None), int):
        raise ConfigError(
            "a network must be a torch.nn.Module with an integer attribute output_size",
            field="spec.training.network.type",
            value=network.type,
            remedy="set self.output_size in its __init__",
        )
    return encoder


def _output_size(encoder: nn.Module) -> int:
    size = encoder.output_size
    assert isinstance(size, int)
    return size


def _flat_observation(td: TensorDictBase) -> ObservationTensor:
    observation = td.get("observation")
    if isinstance(observation, Tensor):
        return observation
    return dict(observation.flatten_keys(".").items())
