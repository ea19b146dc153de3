"""How the actions of one step are chosen and stored in the rollout, by where and how large the policy is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from rlruntime.collectors.rollout import Rollout
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.fast_actor import fast_actor
from rlruntime.policies.observations import ObservationTensor, map_observation


class Chooser(Protocol):
    """Chooses actions for the steps of a rollout."""

    def start(self) -> Callable[[int], None]:
        """Draw the noise of a whole rollout and return what stores action and parameters of a step, by its number."""


def make_chooser(policy: ActorCritic, rollout: Rollout, generator: torch.Generator) -> Chooser:
    """Return the quickest chooser that fits; they agree to float32 rounding.

    Args:
        policy: acts.
        rollout: read from and written to.
        generator: of the noise, on the policy's device.
    """
    if rollout.action_mask is None and fast_actor(policy, rollout.num_envs) is not None:
        return _FastChooser(policy, rollout, generator)
    return _TensorChooser(policy, rollout, generator)


class _FastChooser:
    """In NumPy, for small networks on the CPU."""

    def __init__(self, policy: ActorCritic, rollout: Rollout, generator: torch.Generator) -> None:
        self._policy, self._generator, self._num_envs = policy, generator, rollout.num_envs
        distribution = policy.distribution
        self._noise = torch.empty((rollout.num_steps, rollout.num_envs, *distribution.noise_shape))
        assert isinstance(rollout.observation, Tensor)
        self._observations = list(rollout.observation.numpy())
        self._params = list(rollout.params.numpy())
        self._actions = list(rollout.action.numpy())
        self._noises = list(self._noise.numpy())

    def start(self) -> Callable[[int], None]:
        self._policy.distribution.fill_noise(self._noise, self._generator)
        # Built anew for each rollout: an optimiser may have moved the parameters to other memory in between.
        actor = fast_actor(self._policy, self._num_envs)
        assert actor is not None
        act = actor
        sample = self._policy.distribution.sample_array
        observations, params, noises, actions = self._observations, self._params, self._noises, self._actions

        def choose(step: int) -> None:
            act(observations[step], params[step])
            sample(params[step], noises[step], actions[step])

        return choose


class _TensorChooser:
    """In PyTorch, on any device, for any network."""

    def __init__(self, policy: ActorCritic, rollout: Rollout, generator: torch.Generator) -> None:
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
        if self._policy.deferrable:
            return self._policy.action_params(observation)
        params, value = self._policy.params_and_values(observation)
        self._rollout.value[step].copy_(value)
        return params
