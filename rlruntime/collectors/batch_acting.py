"""Actions for any number of rows at a time, as they come."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.fast_actor import FastActor, fast_actor
from rlruntime.policies.observations import ObservationTensor, map_observation
from rlruntime.policies.policy import Policy


class Acted:
    """What the policy chose for `N` rows.

    Attributes:
        action: ``[N, ...]`` in the policy's units.
        params: ``[N, P]`` of the distribution it was drawn from.
        value: ``[N]`` where the policy isn't ``deferrable`` and has values, else None.
    """

    __slots__ = ("action", "params", "value")

    def __init__(self, action: Tensor, params: Tensor, value: Tensor | None) -> None:
        self.action, self.params, self.value = action, params, value


class BatchActor:
    """Acts for rows as they come; one that fits is used in NumPy, as for whole rollouts.

    Args:
        policy: acts.
        generator: of the noise, on the policy's device.
        num_params: `P`, of the complete parameters of an action.
    """

    def __init__(self, policy: Policy, generator: torch.Generator, num_params: int) -> None:
        self._policy, self._generator, self._num_params = policy, generator, num_params
        self._fast: dict[int, FastActor] = {}
        self._unfit: set[int] = set()

    def act(self, observation: ObservationTensor, mask: Tensor | None) -> Acted:
        """Choose actions for rows ``[N, ...]`` on the CPU."""
        num_rows = next(iter(observation.values())).shape[0] if isinstance(observation, dict) else observation.shape[0]
        fast = self._fast_actor(num_rows) if mask is None and isinstance(observation, Tensor) else None
        if fast is None:
            return self._act_in_torch(observation, mask, num_rows)
        assert isinstance(observation, Tensor)
        distribution = self._policy.distribution
        params = np.empty((num_rows, self._num_params), np.float32)
        fast(observation.numpy(), params)
        noise = distribution.draw_noise((num_rows,), self._generator, self._generator.device)
        action = torch.empty((num_rows, *distribution.action_shape), dtype=distribution.action_dtype)
        distribution.sample_array(params, noise.numpy(), action.numpy())
        return Acted(action, torch.from_numpy(params), None)

    def act_at_random(self, mask: Tensor | None, num_rows: int) -> Acted:
        """Choose uniform actions; their parameters are zeros."""
        distribution = self._policy.distribution
        action = torch.empty((num_rows, *distribution.action_shape), dtype=distribution.action_dtype)
        distribution.uniform(self._generator, mask, action)
        return Acted(action, torch.zeros(num_rows, self._num_params), None)

    def _fast_actor(self, num_rows: int) -> FastActor | None:
        if num_rows in self._unfit:
            return None
        fast = self._fast.get(num_rows)
        if fast is None or not fast.is_current:  # an optimiser may have moved the parameters to other memory
            fast = fast_actor(self._policy, num_rows)
            if fast is None:
                self._unfit.add(num_rows)
            else:
                self._fast[num_rows] = fast
        return fast

    def _act_in_torch(self, observation: ObservationTensor, mask: Tensor | None, num_rows: int) -> Acted:
        policy, device = self._policy, self._generator.device
        distribution = policy.distribution
        observation = map_observation(lambda leaf: leaf.to(device), observation)
        value: Tensor | None = None
        if isinstance(policy, ActorCritic) and not policy.deferrable:
            params, value = policy.params_and_values(observation)
            value = value.cpu()
        else:
            params = policy.action_params(observation)
        noise = distribution.draw_noise((num_rows,), self._generator, device)
        action = torch.empty((num_rows, *distribution.action_shape), dtype=distribution.action_dtype, device=device)
        distribution.sample(params, noise, None if mask is None else mask.to(device), action)
        return Acted(action.cpu(), params.cpu(), value)
