"""How a policy is built from a manifest's network and transforms, for each kind of algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args, overload

import gymnasium as gym
import torch
from torch import nn

from rlruntime.envs.protocol import EnvSpaces
from rlruntime.errors import ConfigError
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.distributions import ActionDistribution, make_distribution
from rlruntime.policies.epsilon_greedy import EpsilonGreedy
from rlruntime.policies.policy import Policy
from rlruntime.policies.recurrent import check_recurrent, is_recurrent
from rlruntime.policies.squashed import Deterministic, SquashedGaussian
from rlruntime.registry import build
from rlruntime.seeding import NETWORK, stream_seed
from rlruntime.spec.training.component import Component
from rlruntime.transforms.base import Transform, naming
from rlruntime.transforms.staging import split_transforms

PolicyKind = Literal["ActorCritic", "SAC", "TD3", "DQN"]
KINDS: tuple[str, ...] = get_args(PolicyKind)


@overload
def build_policy(
    spaces: EnvSpaces,
    network: Component = ...,
    transforms: Sequence[Component] = ...,
    *,
    seed: int = ...,
    kind: Literal["ActorCritic"] = ...,
    critic_network: Component | None = ...,
) -> ActorCritic: ...


@overload
def build_policy(
    spaces: EnvSpaces,
    network: Component = ...,
    transforms: Sequence[Component] = ...,
    *,
    seed: int = ...,
    kind: PolicyKind,
    dueling: bool = ...,
    critic_network: Component | None = ...,
) -> Policy: ...


def build_policy(
    spaces: EnvSpaces,
    network: Component = Component(type="MLP"),  # noqa: B008  (frozen)
    transforms: Sequence[Component] = (),
    *,
    seed: int = 0,
    kind: PolicyKind = "ActorCritic",
    dueling: bool = False,
    critic_network: Component | None = None,
) -> Policy:
    """Build a policy with parameters drawn from the ``network`` stream of ``seed``; torch's own state stays.

    Args:
        spaces: of the environment.
        network: its encoder; an `ActorCritic` has a second one for the critic, unless the encoder is ``shared``.
        transforms: ``env.transforms``; those that work in environments are left out, ``spaces`` being seen behind them.
        seed: of the job.
        kind: whose policy: `ActorCritic` (PPO: any action space), `SAC` (squashed Gaussian) and `TD3` (deterministic,
            with noise to explore), both over bounded Box actions, `DQN` (epsilon-greedy over Q-values of Discrete
            actions).
        dueling: of kind `DQN`: the head gives a state's value and the actions' advantages.
        critic_network: of kind `ActorCritic`: the critic's encoder, where it is another than the actor's.

    Raises:
        ConfigError: unknown network or transform, bad config, or spaces they can't work with; a network with memory
            for another kind than `ActorCritic`.
    """
    if critic_network is not None and kind != "ActorCritic":
        raise ValueError(f"only a policy of kind ActorCritic has a network of its critic's own, not {kind}")
    distribution = _distribution(kind, spaces.action, dueling)
    space = spaces.observation
    parts: list[Transform] = []
    behind = split_transforms(transforms).policy
    for placed in behind:
        with naming(placed.field):
            part = build("transform", placed.component, space, field=placed.field)
            space = part.observation_space(space)
        if isinstance(part, Transform):
            part.manifest_field = placed.field
        parts.append(part)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, NETWORK))
        actor = build_encoder(network, space)
        if kind != "ActorCritic":
            if is_recurrent(actor):
                raise ConfigError(
                    f"{kind} learns from single rows of replay, and a network with memory needs whole sequences",
                    field="spec.training.network.type",
                    value=network.type,
                    remedy="use algorithm PPO, or a network without memory",
                )
            return Policy(
                spaces,
                distribution,
                parts,
                actor,
                kind=kind,
                encoder_space=space,
                network=network,
                transform_components=[placed.component for placed in behind],
                head_gain=1.0 if kind == "DQN" else 0.01,
            )
        if critic_network is not None:
            critic = build_encoder(critic_network, space, field="spec.training.criticNetwork")
        else:
            critic = actor if getattr(actor, "shared", False) else build_encoder(network, space)
        return ActorCritic(
            spaces,
            distribution,
            parts,
            actor,
            critic,
            encoder_space=space,
            network=network,
            critic_network=critic_network,
            transform_components=[placed.component for placed in behind],
        )


def build_encoder(network: Component, space: gym.Space[Any], *, field: str = "spec.training.network") -> nn.Module:
    """Return an encoder of observations of ``space``, with parameters from torch's global random state.

    Raises:
        ConfigError: it is unknown, refuses its config or the space, or is no encoder.
    """
    encoder = build("network", network, space, field=field)
    if not isinstance(encoder, nn.Module) or not isinstance(getattr(encoder, "output_size", None), int):
        raise ConfigError(
            "a network must be a torch.nn.Module with an integer attribute output_size",
            field=f"{field}.type",
            value=network.type,
            remedy="set self.output_size in its __init__",
        )
    if is_recurrent(encoder):
        check_recurrent(encoder, network.type, field)
    return encoder


def _distribution(kind: PolicyKind, space: gym.Space[Any], dueling: bool) -> ActionDistribution:
    if kind not in KINDS:
        raise ValueError(f"there is no policy of kind {kind!r}; use one of {', '.join(KINDS)}")
    if dueling and kind != "DQN":
        raise ValueError(f"only a policy of kind DQN can be dueling, not {kind}")
    if kind == "SAC":
        return SquashedGaussian(space)
    if kind == "TD3":
        return Deterministic(space)
    if kind == "DQN":
        return EpsilonGreedy(space, dueling=dueling)
    return make_distribution(space)
