"""Running normalisation of observations and rewards."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlruntime.errors import ConfigError
from rlruntime.registry import register
from rlruntime.spec.training.transforms import ObservationNormConfig, RewardNormConfig
from rlruntime.transforms.base import ObservationTensor, RolloutView, Transform
from rlruntime.transforms.moments import RunningMoments

_DEFAULT_GAMMA = 0.99  # that of PPO, where no trainer has filled in its own


@register("transform", "ObservationNorm")
class ObservationNorm(Transform):
    """Bring every number of an observation to mean 0 and variance 1 over what was seen so far, then clip.

    Categories (Discrete, MultiDiscrete, MultiBinary) stay as they are. An image keeps one mean and variance a channel
    element.
    """

    Config = ObservationNormConfig

    def __init__(self, config: ObservationNormConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self.clip, self.epsilon = config.clip, config.epsilon
        space = observation_space
        leaves = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {"": space}
        self.keys = [key for key, leaf in leaves.items() if isinstance(leaf, gym.spaces.Box)]
        if not self.keys:
            raise ConfigError(
                "ObservationNorm needs a Box observation",
                field="spec.training.env.transforms",
                value=observation_space,
                remedy="remove the transform: categories need no normalisation",
            )
        self.moments = torch.nn.ModuleList(RunningMoments(tuple(leaves[key].shape or ())) for key in self.keys)
        for number, key in enumerate(self.keys):
            shape = tuple(leaves[key].shape or ())
            self.register_buffer(f"shift_{number}", torch.zeros(shape))
            self.register_buffer(f"factor_{number}", torch.ones(shape))

    def observation_space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        def normalised(leaf: gym.Space[Any]) -> gym.Space[Any]:
            if not isinstance(leaf, gym.spaces.Box):
                return leaf
            return gym.spaces.Box(-self.clip, self.clip, leaf.shape, np.float32)

        if isinstance(space, gym.spaces.Dict):
            return gym.spaces.Dict({key: normalised(leaf) for key, leaf in space.spaces.items()})
        return normalised(space)

    def _normalise(self, number: int, leaf: Tensor) -> Tensor:
        shift, factor = getattr(self, f"shift_{number}"), getattr(self, f"factor_{number}")
        normalised: Tensor = (leaf - shift) * factor
        return normalised.clamp(-self.clip, self.clip)

    def forward(self, observation: ObservationTensor) -> ObservationTensor:
        if not isinstance(observation, dict):
            return self._normalise(0, observation)
        changed = {key: self._normalise(number, observation[key]) for number, key in enumerate(self.keys)}
        return {**observation, **changed}

    def update(self, rollout: RolloutView) -> None:
        for number, (key, moments) in enumerate(zip(self.keys, self.moments, strict=True)):
            leaf = rollout.observation[key] if isinstance(rollout.observation, dict) else rollout.observation
            assert isinstance(moments, RunningMoments)
            moments.add(leaf[rollout.valid].to(moments.mean.device))
            getattr(self, f"shift_{number}").copy_(moments.mean)
            getattr(self, f"factor_{number}").copy_((moments.variance + self.epsilon).rsqrt())


@register("transform", "RewardNorm")
class RewardNorm(Transform):
    """Divide rewards by the running standard deviation of the discounted return, then clip (Engstrom et al. 2020,
    "Implementation matters in deep policy gradients"). The mean is kept, so that the sign of a reward is too.
    """

    Config = RewardNormConfig
    resizable_buffers = frozenset({"running_return"})
    running_return: Tensor

    def __init__(self, config: RewardNormConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self.clip, self.epsilon = config.clip, config.epsilon
        self.gamma = _DEFAULT_GAMMA if config.gamma is None else config.gamma
        self.moments = RunningMoments(())
        self.register_buffer("running_return", torch.zeros(0, dtype=torch.float64))

    def reward(self, rollout: RolloutView, reward: Tensor) -> Tensor:
        returns = self._discounted_returns(rollout, reward)[rollout.valid]
        self.moments.add(returns.to(self.moments.mean.device))
        scale = (self.moments.variance + self.epsilon).rsqrt().to(reward.device, torch.float32)
        return (reward * scale).clamp(-self.clip, self.clip)

    def restart_episodes(self) -> None:
        self.running_return.zero_()

    def _discounted_returns(self, rollout: RolloutView, reward: Tensor) -> Tensor:
        """Return ``R_t = gamma * R_{t-1} + r_t`` of each copy, from 0 in each episode, ``[T, B]`` float64."""
        reward = reward.to(torch.float64)
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
