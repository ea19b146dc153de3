"""Advantages and value targets of a rollout: the built-in ones, and those of a user's own.

One of your own is named in the manifest, under ``spec.training.ppo.advantage``, as ``package.module:Object``: a
function ``f(data, **config)``, or a class that is called with its config (as keyword arguments, or as its ``Config``
model) and whose objects are called with ``data``, an `AdvantageData`. It returns advantages and value targets, both
``[T, B]`` float32, and knows no setting but its own; what it says of rows that aren't valid is not looked at.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlruntime.collectors.memory import episode_starts
from rlruntime.collectors.rollout import Rollout
from rlruntime.errors import ConfigError
from rlruntime.losses.returns import generalized_advantage_estimation, v_trace
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.observations import flatten_time, map_observation, narrow_observation
from rlruntime.registry import build, register, resolve, validate_config
from rlruntime.spec.training.advantages import GAEConfig, VTraceConfig
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.ppo import PPOConfig

FIELD = "spec.training.ppo.advantage"
_BUILTIN = ("GAE", "VTrace")
_MAX_ROWS = 16_384


class Current(NamedTuple):
    """What the policy as it is now says of a rollout.

    Attributes:
        log_prob: ``[T, B]`` of the actions that were taken.
        value: ``[T + 1, B]``.
    """

    log_prob: Tensor
    value: Tensor


class AdvantageData:
    """What advantages are computed from, on the CPU.

    Attributes:
        reward: ``[T, B]`` float32, after the transforms of rewards.
        value: ``[T + 1, B]`` float32 at the time of collection; ``value[1:]`` are those of the next observations.
        terminated, truncated: ``[T, B]`` bool. An episode that terminated has no value after it, a truncated one has.
        valid: ``[T, B]`` bool; False where a step was a reset, which nothing may reach across.
        behaviour_log_prob: ``[T, B]`` float32 of the actions when they were taken.
    """

    def __init__(self, policy: ActorCritic, rollout: Rollout) -> None:
        self.reward, self.value = rollout.reward, rollout.value
        self.terminated, self.truncated, self.valid = rollout.terminated, rollout.truncated, rollout.valid
        self.behaviour_log_prob = rollout.behaviour_log_prob
        self._policy, self._rollout = policy, rollout
        self._current: Current | None = None

    def current(self) -> Current:
        """Return log-probabilities and values under the policy's present weights, which are others than those that
        acted where the rollout is stale. Computed at the first call.
        """
        if self._current is None:
            self._current = _current(self._policy, self._rollout)
        return self._current


Advantage = Callable[[AdvantageData], tuple[Tensor, Tensor]]
"""Returns advantages and value targets, ``[T, B]``."""


@register("advantage", "GAE")
class GAE:
    """Generalised advantage estimation with the values of the time of collection; targets are advantage plus value."""

    Config = GAEConfig

    def __init__(self, config: GAEConfig) -> None:
        self.gamma, self.gae_lambda = _given(config.gamma), _given(config.gae_lambda)

    def __call__(self, data: AdvantageData) -> tuple[Tensor, Tensor]:
        advantage = generalized_advantage_estimation(
            data.reward,
            data.value,
            data.terminated,
            data.truncated,
            data.valid,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )
        return advantage, advantage + data.value[:-1]


@register("advantage", "VTrace")
class VTrace:
    """V-trace with values and probabilities under the present weights; see `rlruntime.losses.returns.v_trace`."""

    Config = VTraceConfig

    def __init__(self, config: VTraceConfig) -> None:
        self.config, self.gamma = config, _given(config.gamma)

    def __call__(self, data: AdvantageData) -> tuple[Tensor, Tensor]:
        current = data.current()
        return v_trace(
            data.reward,
            current.value,
            current.log_prob - data.behaviour_log_prob,
            data.terminated,
            data.truncated,
            data.valid,
            gamma=self.gamma,
            trace_lambda=self.config.trace_lambda,
            rho_bar=self.config.rho_bar,
            c_bar=self.config.c_bar,
        )


def make_advantage(config: PPOConfig) -> Advantage:
    """Return what a manifest's ``ppo.advantage`` describes.

    Raises:
        ConfigError: there is no such thing, or it refuses its settings.
    """
    component = config.advantage or Component(type="GAE")
    if component.type in _BUILTIN:
        defaults = {"gamma": config.gamma}
        if component.type == "GAE":
            defaults["gaeLambda"] = config.gae_lambda
        given = {name: setting for name, setting in component.config.items() if setting is not None}
        component = component.model_copy(update={"config": {**defaults, **given}})
    target = resolve("advantage", component.type, field=FIELD)
    made: Any
    if inspect.isclass(target):
        made = build("advantage", component, field=FIELD)
    else:
        validate_config(target, component.config, num_args=1, field=f"{FIELD}.config")
        made = partial(target, **component.config) if callable(target) else None
    if not callable(made):
        raise ConfigError(
            "an advantage must be a function, or a class whose objects can be called",
            field=f"{FIELD}.type",
            value=component.type,
            remedy="define __call__(self, data), which returns advantages and value targets",
        )
    advantage: Advantage = made
    return advantage


def checked(outcome: Any, rollout: Rollout, type_name: str) -> tuple[Tensor, Tensor]:
    """Return what an advantage returned, detached and on the CPU.

    Raises:
        ConfigError: it is not two float tensors ``[T, B]``.
    """
    shape = tuple(rollout.reward.shape)
    is_pair = isinstance(outcome, tuple | list) and len(outcome) == 2
    if not is_pair or not all(_fits(tensor, shape) for tensor in outcome):
        raise ConfigError(
            f"an advantage must return two float tensors of shape {shape}, advantages and value targets",
            field=f"{FIELD}.type",
            value=type_name,
            remedy="return (advantage, target)",
        )
    advantage, target = (tensor.detach().to(rollout.reward) for tensor in outcome)
    return advantage, target


def _fits(tensor: object, shape: tuple[int, ...]) -> bool:
    return isinstance(tensor, Tensor) and tuple(tensor.shape) == shape and tensor.is_floating_point()


def _given(setting: float | None) -> float:
    if setting is None:
        raise ValueError("gamma and gaeLambda must be set where there is no spec.training.ppo to take them from")
    return setting


def _current(policy: ActorCritic, rollout: Rollout) -> Current:
    device, num_steps, num_envs = policy.device, rollout.num_steps, rollout.num_envs
    starts = episode_starts(rollout, rollout.is_init[0]).to(device)
    state = {name: rows.to(device) for name, rows in rollout.initial_state.items()}
    rows = map_observation(lambda leaf: leaf.to(device), flatten_time(rollout.observation))
    chunk, params, values = max(1, _MAX_ROWS // num_envs), [], []
    with torch.no_grad():
        for start in range(0, num_steps + 1, chunk):
            count = min(chunk, num_steps + 1 - start)
            part = narrow_observation(rows, start * num_envs, count * num_envs)
            p, v, state = policy.params_and_values_over(part, state, starts[start : start + count])
            params.append(p.cpu())
            values.append(v.cpu())
        all_params = torch.cat(params).view(num_steps + 1, num_envs, -1)[:-1]
        mask = None if rollout.action_mask is None else rollout.action_mask[:-1]
        log_prob = policy.distribution.evaluate(all_params, rollout.action, mask).log_prob
    return Current(log_prob, torch.cat(values).view(num_steps + 1, num_envs))
