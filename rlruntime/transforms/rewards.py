"""Rewards: scale, bounds and sign of each, and what becomes of all those of a rollout.

An environment's rewards stay what they are for statistics and evaluation: in a job these work on the finished rollout,
or on rows sampled from a buffer.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from rlruntime.errors import ConfigError
from rlruntime.losses.returns import discounted_returns
from rlruntime.registry import register
from rlruntime.spec.training.transforms import (
    BinarizeRewardConfig,
    LineariseRewardsConfig,
    RewardClippingConfig,
    RewardScalingConfig,
    RewardSignConfig,
    RewardToGoConfig,
)
from rlruntime.transforms.base import FIELD, RolloutView, Seat, Transform


class _RewardTransform(Transform):
    """One that maps each reward by itself."""

    seats: frozenset[Seat] = frozenset({"environment", "rollout", "write", "read"})

    def __init__(self, config: Any, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self.config = config


@register("transform", "RewardScaling")
class RewardScaling(_RewardTransform):
    """Return ``scale * reward + loc``."""

    Config = RewardScalingConfig

    def map_reward(self, reward: Tensor) -> Tensor:
        scaled: Tensor = reward * self.config.scale + self.config.loc
        return scaled

    @property
    def scales_rewards(self) -> bool:
        """See `Transform.scales_rewards`."""
        return bool(self.config.loc == 0.0)

    def unmap_reward(self, reward: Tensor) -> Tensor:
        unscaled: Tensor = (reward - self.config.loc) / self.config.scale
        return unscaled


@register("transform", "RewardClipping")
class RewardClipping(_RewardTransform):
    """Cut rewards off at two bounds."""

    Config = RewardClippingConfig

    def map_reward(self, reward: Tensor) -> Tensor:
        return reward.clamp(self.config.low, self.config.high)


@register("transform", "RewardSign")
class RewardSign(_RewardTransform):
    """Keep the sign of a reward alone: -1, 0 or 1 (Mnih et al. 2015)."""

    Config = RewardSignConfig

    def map_reward(self, reward: Tensor) -> Tensor:
        return reward.sign()


@register("transform", "BinarizeReward")
class BinarizeReward(_RewardTransform):
    """Return 1 for a reward above 0, else 0."""

    Config = BinarizeRewardConfig

    def map_reward(self, reward: Tensor) -> Tensor:
        return (reward > 0).to(reward.dtype)


@register("transform", "LineariseRewards")
class LineariseRewards(_RewardTransform):
    """Return the weighted sum of the last dimension of rewards ``[..., k]``.

    An environment gives one reward a step; rows of a buffer may come from elsewhere.
    """

    Config = LineariseRewardsConfig
    seats: frozenset[Seat] = frozenset({"write", "read"})

    def map_reward(self, reward: Tensor) -> Tensor:
        weights = torch.tensor(self.config.weights, dtype=reward.dtype, device=reward.device)
        if reward.shape[-1:] != weights.shape:
            raise ConfigError(
                f"LineariseRewards has {len(weights)} weights for rewards of shape {tuple(reward.shape)}",
                field=FIELD,
                value=list(self.config.weights),
                remedy="give one weight for each reward of a row",
            )
        return (reward * weights).sum(-1)


@register("transform", "RewardToGo")
class RewardToGo(Transform):
    """Return for each step the discounted sum of the rewards from it to the end of its episode, or of the rollout."""

    Config = RewardToGoConfig
    seats: frozenset[Seat] = frozenset({"rollout"})

    def __init__(self, config: RewardToGoConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self.config = config

    def reward(self, rollout: RolloutView, reward: Tensor) -> Tensor:
        flags = rollout.terminated, rollout.truncated, rollout.valid
        return discounted_returns(reward, torch.zeros_like(reward), *flags, gamma=self.config.gamma)
