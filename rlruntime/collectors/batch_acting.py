"""Actions for any number of rows at a time, as they come."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlruntime.collectors.rollout import Rollout
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.fast_actor import FastActor, fast_actor
from rlruntime.policies.observations import ObservationTensor, map_observation
from rlruntime.policies.policy import Policy
from rlruntime.policies.recurrent import State, zeroed

_NOISE_ROWS = 1024


class Acted(NamedTuple):
    """What the policy chose for `N` rows.

    Attributes:
        action: ``[N, ...]`` in the policy's units.
        params: ``[N, P]`` of the distribution it was drawn from.
        value: ``[N]`` where the policy isn't ``deferrable`` and has values, else None.
    """

    action: np.ndarray
    params: np.ndarray
    value: np.ndarray | None


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
        self._action_dtype = torch.empty(0, dtype=policy.distribution.action_dtype).numpy().dtype
        self._noise, self._drawn = torch.empty(0), 0

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
        action = np.empty((num_rows, *distribution.action_shape), self._action_dtype)
        distribution.sample_array(params, self._draw(num_rows).numpy(), action)
        return Acted(action, params, None)

    def act_at_random(self, mask: Tensor | None, num_rows: int) -> Acted:
        """Choose uniform actions; their parameters are zeros."""
        distribution = self._policy.distribution
        action = torch.empty((num_rows, *distribution.action_shape), dtype=distribution.action_dtype)
        distribution.sample_uniform(self._draw(num_rows).cpu(), mask, action)
        return Acted(action.numpy(), np.zeros((num_rows, self._num_params), np.float32), None)

    def _draw(self, num_rows: int) -> Tensor:
        """Return noise for so many rows, of a supply that is drawn at once."""
        if self._drawn + num_rows > len(self._noise):
            count = max(_NOISE_ROWS, num_rows)
            self._noise = self._policy.distribution.draw_noise((count,), self._generator, self._generator.device)
            self._drawn = 0
        first, self._drawn = self._drawn, self._drawn + num_rows
        return self._noise[first : self._drawn]

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
        observation = map_observation(lambda leaf: leaf.to(device), observation)
        if isinstance(policy, ActorCritic) and not policy.deferrable:
            return self.sample(*policy.params_and_values(observation), mask)
        return self.sample(policy.action_params(observation), None, mask)

    def sample(self, params: Tensor, value: Tensor | None, mask: Tensor | None) -> Acted:
        """Draw actions from parameters ``[N, P]``; values ``[N]`` go with them."""
        num_rows, device = params.shape[0], self._generator.device
        distribution = self._policy.distribution
        noise = self._draw(num_rows)
        action = torch.empty((num_rows, *distribution.action_shape), dtype=distribution.action_dtype, device=device)
        distribution.sample(params, noise, None if mask is None else mask.to(device), action)
        return Acted(action.cpu().numpy(), params.cpu().numpy(), None if value is None else value.cpu().numpy())


class CopiesMemory:
    """What a policy with memory remembers of each of `B` environment copies that don't wait for each other.

    It is forgotten before the first step of an episode; the row that resets still belongs to the one that ended. Values
    go with the actions: they are those of the memory that acted.

    Args:
        policy: whose state; its weights may change at any step.
        num_envs: `B`.

    Attributes:
        begins: ``[B]`` bool, copies whose next row is the first of its episode.
    """

    def __init__(self, policy: ActorCritic, num_envs: int) -> None:
        self._policy = policy
        self._state = policy.initial_state(num_envs)
        self.begins = np.ones(num_envs, np.bool_)

    def restart(self) -> None:
        """Every copy begins a new episode."""
        self.begins[:] = True

    def note(self, rollout: Rollout, copies: np.ndarray, columns: np.ndarray) -> None:
        """Write what is remembered of copies before the first steps of columns, one for each."""
        if len(copies):
            for name, rows in self._rows(copies).items():
                rollout.initial_state[name][columns] = zeroed(rows, self._begins(copies)).cpu()

    def step(self, copies: np.ndarray, observation: ObservationTensor) -> tuple[Tensor, Tensor]:
        """Return parameters ``[N, P]`` and values ``[N]`` of rows, each of another copy, and remember what follows."""
        device = self._policy.device
        observation = map_observation(lambda leaf: leaf.to(device), observation)
        params, value, after = self._policy.step_with_value(observation, self._rows(copies), self._begins(copies))
        index = torch.from_numpy(copies).to(device)
        for name, rows in after.items():
            self._state[name][index] = rows
        return params, value

    def _rows(self, copies: np.ndarray) -> State:
        index = torch.from_numpy(copies).to(self._policy.device)
        return {name: rows[index] for name, rows in self._state.items()}

    def _begins(self, copies: np.ndarray) -> Tensor:
        return torch.from_numpy(self.begins[copies]).to(self._policy.device)
