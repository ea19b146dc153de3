"""How the actions of one step are chosen and stored in the rollout, by where and how large the policy is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlruntime.collectors.memory import RecurrentMemory
from rlruntime.collectors.rollout import Rollout
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.fast_actor import FastActor, fast_actor
from rlruntime.policies.observations import ObservationTensor, map_observation
from rlruntime.policies.policy import Policy


class Chooser(Protocol):
    """Chooses actions for the steps of a rollout."""

    def start(self) -> Callable[[int], None]:
        """Draw the noise of a whole rollout and return what stores action and parameters of a step, by its number."""


def make_chooser(
    policy: Policy, rollout: Rollout, generator: torch.Generator, memory: RecurrentMemory | None = None
) -> Chooser:
    """Return the quickest chooser that fits; they agree to float32 rounding.

    Args:
        policy: acts.
        rollout: read from and written to.
        generator: of the noise, on the policy's device.
        memory: what a policy that has one remembers.
    """
    if memory is not None:
        return _RecurrentChooser(policy, rollout, generator, memory)
    if rollout.action_mask is None and fast_actor(policy, rollout.num_envs) is not None:
        return _FastChooser(policy, rollout, generator)
    return _TensorChooser(policy, rollout, generator)


class _FastChooser:
    """In NumPy, for small networks on the CPU."""

    def __init__(self, policy: Policy, rollout: Rollout, generator: torch.Generator) -> None:
        self._policy, self._generator, self._num_envs = policy, generator, rollout.num_envs
        distribution = policy.distribution
        self._noise = torch.empty((rollout.num_steps, rollout.num_envs, *distribution.noise_shape))
        assert isinstance(rollout.observation, Tensor)
        self._observations = list(rollout.observation.numpy())
        self._params = list(rollout.params.numpy())
        self._actions = list(rollout.action.numpy())
        self._noises = list(self._noise.numpy())
        self._actor: FastActor | None = None

    def start(self) -> Callable[[int], None]:
        self._policy.distribution.fill_noise(self._noise, self._generator)
        if self._actor is None or not self._actor.is_current:
            self._actor = fast_actor(self._policy, self._num_envs)
        act = self._actor
        assert act is not None
        sample = self._policy.distribution.sample_array
        observations, params, noises, actions = self._observations, self._params, self._noises, self._actions

        def choose(step: int) -> None:
            act(observations[step], params[step])
            sample(params[step], noises[step], actions[step])

        return choose


class _TensorChooser:
    """In PyTorch, on any device, for any network."""

    def __init__(self, policy: Policy, rollout: Rollout, generator: torch.Generator) -> None:
        self._policy, self._rollout, self._generator = policy, rollout, generator
        self._device = generator.device
        shape = (rollout.num_steps, rollout.num_envs, *policy.distribution.noise_shape)
        self._noise = torch.empty(shape, device=self._device)
        action_shape = (rollout.num_envs, *policy.distribution.action_shape)
        self._chosen = torch.zeros(action_shape, dtype=policy.distribution.action_dtype, device=self._device)

    def start(self) -> Callable[[int], None]:
        self._policy.distribution.fill_noise(self._noise, self._generator)
        return self._choose

    def _choose(self, step: int) -> None:
        rollout, distribution = self._rollout, self._policy.distribution
        observation = map_observation(lambda leaf: leaf[step].to(self._device), rollout.observation)
        mask = None if rollout.action_mask is None else rollout.action_mask[step].to(self._device)
        params = self._act(observation, step)
        distribution.sample(params, self._noise[step], mask, self._chosen)
        rollout.action[step].copy_(self._chosen)
        rollout.params[step].copy_(params)

    def _act(self, observation: ObservationTensor, step: int) -> Tensor:
        if self._policy.deferrable or not isinstance(self._policy, ActorCritic):
            return self._policy.action_params(observation)
        params, value = self._policy.params_and_values(observation)
        self._rollout.value[step].copy_(value)
        return params


class _RecurrentChooser(_TensorChooser):
    """In PyTorch, for policies with memory."""

    def __init__(self, policy: Policy, rollout: Rollout, generator: torch.Generator, memory: RecurrentMemory) -> None:
        super().__init__(policy, rollout, generator)
        self._memory = memory

    def _act(self, observation: ObservationTensor, step: int) -> Tensor:
        return self._memory.act(self._rollout, observation, step)


class RandomChooser:
    """Uniform actions, of those that are allowed, whatever the policy."""

    def __init__(self, policy: Policy, rollout: Rollout, generator: torch.Generator) -> None:
        self._policy, self._rollout, self._generator = policy, rollout, generator

    def start(self) -> Callable[[int], None]:
        return self._choose

    def _choose(self, step: int) -> None:
        rollout = self._rollout
        mask = None if rollout.action_mask is None else rollout.action_mask[step]
        self._policy.distribution.uniform(self._generator, mask, rollout.action[step])


def uniform_log_prob(policy: Policy, action: Tensor, mask: Tensor | None) -> Tensor:
    """Return the log-probabilities ``[...]`` of actions ``[..., *action_shape]`` that were drawn uniformly, as
    `ActionDistribution.uniform` does, of those that ``mask [..., n]`` allows.
    """
    space = policy.spaces.action
    leading = action.shape[: action.ndim - len(policy.distribution.action_shape)]
    if isinstance(space, gym.spaces.Box):  # from -1 to 1 in the policy's units; a standard normal without bounds
        flat = action.reshape(*leading, -1)
        with np.errstate(over="ignore"):
            is_bounded = torch.from_numpy(np.isfinite(np.float32(space.high) - np.float32(space.low)).reshape(-1))
        normal = flat.square() * -0.5 - 0.5 * math.log(2 * math.pi)
        return torch.where(is_bounded, -math.log(2.0), normal).sum(-1)
    sizes = space.nvec.reshape(-1).tolist() if isinstance(space, gym.spaces.MultiDiscrete) else [_num_actions(space)]
    if mask is None:
        return torch.full(leading, -sum(math.log(size) for size in sizes))
    allowed = torch.stack([part.sum(-1) for part in mask.split_with_sizes(sizes, -1)], -1)
    return -allowed.to(torch.float32).log().sum(-1)


def _num_actions(space: gym.Space[Any]) -> int:
    """Return the number of actions of a Discrete space."""
    assert isinstance(space, gym.spaces.Discrete)
    return int(space.n)
