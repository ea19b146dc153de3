"""Normalisation of observations and rewards."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlruntime.errors import ConfigError
from rlruntime.registry import register
from rlruntime.spec.training.transforms import ObservationNormConfig, RewardNormConfig
from rlruntime.transforms.base import FIELD, MOVING_SEATS, SEATS, ObservationTensor, RolloutView, Seat, Transform
from rlruntime.transforms.leafwise import LeafTransform
from rlruntime.transforms.moments import Delta, RunningMoments, moments_of

_DEFAULT_GAMMA = 0.99  # that of PPO, where no trainer has filled in its own


@register("transform", "ObservationNorm")
class ObservationNorm(LeafTransform):
    """Bring every number of an observation to mean 0 and variance 1 over what was seen so far, then clip.

    Categories (Discrete, MultiDiscrete, MultiBinary) stay as they are. An image keeps one mean and variance a channel
    element. With ``loc`` and ``scale`` the mean and deviation are given, and nothing moves: then it may sit in an
    environment, and on the write side of a buffer, where moving statistics would leave rows in different units.
    """

    Config = ObservationNormConfig
    config: ObservationNormConfig
    remedy = "remove the transform: categories need no normalisation"
    seats = MOVING_SEATS

    def __init__(self, config: ObservationNormConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__(config, observation_space)
        self.seats = self.seats_of(config)
        self.clip, self.epsilon, self.fixed = config.clip, config.epsilon, config.loc is not None
        self.keys = list(self.leaves)
        self._numbers = {key: number for number, key in enumerate(self.keys)}
        shapes = [tuple(leaf.shape or ()) for leaf in self.leaves.values()]
        self.moments = torch.nn.ModuleList(RunningMoments(shape) for shape in ([] if self.fixed else shapes))
        for number, shape in enumerate(shapes):
            shift, factor = torch.zeros(shape), torch.ones(shape)
            if config.loc is not None and config.scale is not None:
                shift = _spread(config.loc, shape, "loc")
                factor = 1.0 / _spread(config.scale, shape, "scale")
            self.register_buffer(f"shift_{number}", shift)
            self.register_buffer(f"factor_{number}", factor)

    @classmethod
    def seats_of(cls, config: Any) -> frozenset[Seat]:
        return cls.seats if config.loc is None else frozenset(SEATS)

    def leaf_space(self, leaf: gym.Space[Any]) -> gym.Space[Any]:
        return gym.spaces.Box(-self.config.clip, self.config.clip, leaf.shape, np.float32)

    def map_leaf(self, key: str, rows: Tensor) -> Tensor:
        shift, factor = self._shift_and_factor(key)
        normalised: Tensor = (rows - shift) * factor
        return normalised.clamp(-self.clip, self.clip)

    def unmap_leaf(self, key: str, rows: Tensor) -> Tensor:
        shift, factor = self._shift_and_factor(key)
        return rows / factor + shift

    def update(self, rollout: RolloutView) -> None:
        if not self.fixed:
            self.merge(self.delta(rollout))

    def delta(self, rollout: RolloutView) -> Delta:
        if self.fixed:
            return {}
        return {key: moments_of(_leaf(rollout.observation, key)[rollout.valid]) for key in self.keys}

    def merge(self, delta: Delta) -> None:
        for key, added in delta.items():
            number = self._numbers[key]
            moments = self.moments[number]
            assert isinstance(moments, RunningMoments)
            moments.merge(added)
            getattr(self, f"shift_{number}").copy_(moments.mean)
            getattr(self, f"factor_{number}").copy_((moments.variance + self.epsilon).rsqrt())

    def _shift_and_factor(self, key: str) -> tuple[Tensor, Tensor]:
        number = self._numbers[key]
        return getattr(self, f"shift_{number}"), getattr(self, f"factor_{number}")


@register("transform", "RewardNorm")
class RewardNorm(Transform):
    """Divide rewards by the running standard deviation of the discounted return, then clip (Engstrom et al. 2020,
    "Implementation matters in deep policy gradients"). The mean is kept, so that the sign of a reward is too.

    On a finished rollout, `reward` takes its returns into the statistics first. On rows sampled from a buffer,
    `map_reward` uses the statistics of that moment, which rollouts move by `update_rewards`.
    """

    Config = RewardNormConfig
    seats: frozenset[Seat] = frozenset({"rollout", "read"})
    resizable_buffers = frozenset({"running_return"})
    running_return: Tensor

    def __init__(self, config: RewardNormConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self.clip, self.epsilon = config.clip, config.epsilon
        self.gamma = _DEFAULT_GAMMA if config.gamma is None else config.gamma
        self.moments = RunningMoments(())
        self.register_buffer("running_return", torch.zeros(0, dtype=torch.float64))

    def map_reward(self, reward: Tensor) -> Tensor:
        scale = (self.moments.variance + self.epsilon).rsqrt().to(reward.device, torch.float32)
        return (reward * scale).clamp(-self.clip, self.clip)

    @property
    def scales_rewards(self) -> bool:
        """See `Transform.scales_rewards`; ``clip`` holds for the sum."""
        return True

    def unmap_reward(self, reward: Tensor) -> Tensor:
        return reward * (self.moments.variance + self.epsilon).sqrt().to(reward.device, torch.float32)

    def reward(self, rollout: RolloutView, reward: Tensor) -> Tensor:
        self.update_rewards(rollout._replace(reward=reward))
        return super().reward(rollout, reward)

    def update_rewards(self, rollout: RolloutView) -> None:
        """Take the rewards of a rollout into the statistics; those are the ones that `map_reward` is to be given."""
        self.merge(self.delta(rollout))

    def delta(self, rollout: RolloutView) -> Delta:
        """Return the moments of the discounted returns of a rollout; see `Transform.delta`.

        The running return of each copy goes on to the next rollout, so each rollout is to be shown once.
        """
        return {"": moments_of(self._discounted_returns(rollout)[rollout.valid])}

    def merge(self, delta: Delta) -> None:
        for added in delta.values():
            self.moments.merge(added)

    def restart_episodes(self) -> None:
        self.running_return.zero_()

    def _discounted_returns(self, rollout: RolloutView) -> Tensor:
        """Return ``R_t = gamma * R_{t-1} + r_t`` of each copy, from 0 in each episode, ``[T, B]`` float64."""
        reward = rollout.reward.to(torch.float64)
        if self.running_return.shape != reward.shape[1:]:
            self.running_return = torch.zeros_like(reward[0])
        device = self.running_return.device
        goes_on = (rollout.valid & ~rollout.terminated & ~rollout.truncated).to(torch.float64)
        returns = torch.empty_like(reward)
        current = self.running_return.to(reward.device)
        for step in range(reward.shape[0]):
            returns[step] = self.gamma * current + reward[step]
            current = returns[step] * goes_on[step]
        self.running_return = current.to(device)
        return returns

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        stored = state_dict.get(f"{prefix}running_return")
        if stored is not None:
            self.running_return = torch.zeros_like(stored)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _leaf(observation: ObservationTensor, key: str) -> Tensor:
    return observation[key] if isinstance(observation, dict) else observation


def _spread(numbers: tuple[float, ...], shape: tuple[int, ...], name: str) -> Tensor:
    """Return one number, or one per element, in the shape of a leaf."""
    size = int(np.prod(shape))
    if len(numbers) not in (1, size):
        raise ConfigError(
            f"{name} of ObservationNorm has {len(numbers)} numbers for an observation of {size}",
            field=FIELD,
            value=list(numbers),
            remedy="give one number, or one per element",
        )
    return torch.tensor(numbers, dtype=torch.float32).expand(size).reshape(shape).clone()
