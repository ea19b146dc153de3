"""What a policy with memory remembers of each environment copy while it collects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlruntime.collectors.rollout import Rollout
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.observations import ObservationTensor, flatten_time, map_observation, narrow_observation
from rlruntime.policies.policy import Policy
from rlruntime.policies.recurrent import State, zeroed

_MAX_ROWS = 16_384


class RecurrentMemory:
    """The recurrent state of `B` copies, from step to step and from rollout to rollout.

    It is forgotten before the first step of an episode: the row after one that isn't valid. That row itself, which
    looks at the final observation, still belongs to the episode that ended, whose value it is.

    Args:
        policy: whose state; its weights must not change within a rollout.
        num_envs: `B`.

    Attributes:
        state: ``[B, ...]`` by name, on the policy's device.
        begins: ``[B]`` bool on the CPU, copies whose next row is the first of its episode.
    """

    def __init__(self, policy: Policy, num_envs: int) -> None:
        self.policy = policy
        self.state: State = policy.initial_state(num_envs)
        self.begins = torch.ones(num_envs, dtype=torch.bool)
        self._device = policy.device

    def restart(self) -> None:
        """Every copy begins a new episode."""
        self.begins = torch.ones_like(self.begins)

    def begin(self, rollout: Rollout) -> None:
        """Note what is remembered before the first step of a rollout."""
        begins = self.begins.to(self._device)
        self.state = {name: zeroed(rows, begins) for name, rows in self.state.items()}
        for name, rows in self.state.items():
            rollout.initial_state[name].copy_(rows)

    def act(self, rollout: Rollout, observation: ObservationTensor, step: int) -> Tensor:
        """Return the parameters ``[B, P]`` of the actions of a step; values are written where they can't wait."""
        is_init = (~rollout.valid[step - 1] if step else self.begins).to(self._device)
        policy = self.policy
        if policy.deferrable or not isinstance(policy, ActorCritic):
            params, self.state = policy.step(observation, self.state, is_init)
            return params
        params, value, self.state = policy.step_with_value(observation, self.state, is_init)
        rollout.value[step].copy_(value)
        return params

    def finish(self, rollout: Rollout) -> None:
        """Write the values that are missing, and remember what comes before the next rollout."""
        num_steps = int(rollout.num_filled[0])
        resets = episode_starts(rollout, self.begins)
        if isinstance(self.policy, ActorCritic):
            if self.policy.deferrable:
                self._judge(self.policy, rollout, resets, num_steps)
            last = map_observation(lambda leaf: leaf[num_steps].to(self._device), rollout.observation)
            rollout.value[num_steps:] = self._last_value(self.policy, last, resets[num_steps])
        self.begins = resets[num_steps]

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes over."""
        return {"state": {name: rows.clone() for name, rows in self.state.items()}, "begins": self.begins.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self.state = {name: state["state"][name].to(rows) for name, rows in self.state.items()}
        self.begins = state["begins"].clone()

    def _judge(self, policy: ActorCritic, rollout: Rollout, resets: Tensor, num_steps: int) -> None:
        """Write the values of all steps; the state of a critic with memory of its own goes through them."""
        state = {name: rows.to(self._device) for name, rows in rollout.initial_state.items()}
        all_rows, num_envs = flatten_time(rollout.observation), rollout.num_envs
        chunk = max(1, _MAX_ROWS // num_envs)
        for start in range(0, num_steps, chunk):
            end = min(start + chunk, num_steps)
            rows = narrow_observation(all_rows, start * num_envs, (end - start) * num_envs)
            rows = map_observation(self._to_device, rows)
            value, state = policy.values_over(rows, state, resets[start:end].to(self._device))
            rollout.value[start:end] = value.view(end - start, num_envs)
        self.state |= {name: rows for name, rows in state.items() if name.startswith("critic.")}

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device)

    def _last_value(self, policy: ActorCritic, observation: ObservationTensor, is_init: Tensor) -> Tensor:
        value, _ = policy.values_over(observation, self.state, is_init.unsqueeze(0).to(self._device))
        return value.to(torch.device("cpu"))


def episode_starts(rollout: Rollout, first: Tensor) -> Tensor:
    """Return ``[T + 1, B]`` bool, where memory is forgotten before a row.

    Args:
        rollout: whose rows.
        first: ``[B]`` bool, whether that is before the first.
    """
    return torch.cat([first.unsqueeze(0), ~rollout.valid])
