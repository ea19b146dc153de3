"""What a policy with memory remembers of each environment copy while it collects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlruntime.collectors.rollout import Rollout
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.observations import ObservationTensor, flatten_time, map_observation, narrow_observation
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

    def __init__(self, policy: ActorCritic, num_envs: int) -> None:
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
        if policy.deferrable:
            params, self.state = policy.step(observation, self.state, is_init)
            return params
        params, value, self.state = policy.step_with_value(observation, self.state, is_init)
        rollout.value[step].copy_(value)
        return params

    def finish(self, rollout: Rollout, *, acted: bool) -> None:
        """Write the values that are missing, and remember what comes before the next rollout.

        Args:
            rollout: whose steps were taken.
            acted: whether `act` chose its actions; else the state is still that before the first step.
        """
        num_steps = int(rollout.num_filled[0])
        resets = episode_starts(rollout, self.begins)
        if self.policy.deferrable or not acted:
            self._judge(rollout, resets, num_steps, acted=acted)
        last = map_observation(lambda leaf: leaf[num_steps].to(self._device), rollout.observation)
        is_init = resets[num_steps : num_steps + 1].to(self._device)
        rollout.value[num_steps:] = self.policy.values_over(last, self.state, is_init)[0].cpu()
        self.begins = resets[num_steps]

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes over."""
        return {"state": {name: rows.clone() for name, rows in self.state.items()}, "begins": self.begins.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self.state = {name: state["state"][name].to(rows) for name, rows in self.state.items()}
        self.begins = state["begins"].clone()

    def _judge(self, rollout: Rollout, resets: Tensor, num_steps: int, *, acted: bool) -> None:
        """Write the values of all steps; what has not gone through them goes now."""
        policy = self.policy
        state = {name: rows.to(self._device) for name, rows in rollout.initial_state.items()}
        all_rows, num_envs = flatten_time(rollout.observation), rollout.num_envs
        chunk = max(1, _MAX_ROWS // num_envs)
        for start in range(0, num_steps, chunk):
            end = min(start + chunk, num_steps)
            rows = narrow_observation(all_rows, start * num_envs, (end - start) * num_envs)
            rows = map_observation(self._to_device, rows)
            is_init = resets[start:end].to(self._device)
            if acted:
                value, state = policy.values_over(rows, state, is_init)
            else:
                _, value, state = policy.params_and_values_over(rows, state, is_init)
            rollout.value[start:end] = value.view(end - start, num_envs)
        late = state if not acted else {name: rows for name, rows in state.items() if name.startswith("critic.")}
        self.state = {**self.state, **late}

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device)


def episode_starts(rollout: Rollout, first: Tensor) -> Tensor:
    """Return ``[T + 1, B]`` bool, where memory is forgotten before a row.

    Args:
        rollout: whose rows.
        first: ``[B]`` bool, whether that is before the first.
    """
    return torch.cat([first.unsqueeze(0), ~rollout.valid])
