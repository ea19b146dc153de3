"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347), algorithm 1 with the clipped objective."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlruntime.collectors.rollout import Rollout
from rlruntime.errors import RLJobError
from rlruntime.losses.policy import clipped_surrogate
from rlruntime.losses.returns import generalized_advantage_estimation
from rlruntime.losses.value import clipped_value_loss, squared_value_loss
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.flat import Adam, FlatParameters
from rlruntime.policies.gradients import make_gradient
from rlruntime.policies.observations import (
    ObservationTensor,
    flatten_time,
    index_observation,
    map_observation,
    narrow_observation,
)
from rlruntime.seeding import SHUFFLE, stream_seed
from rlruntime.spec.training.ppo import PPOConfig
from rlruntime.trainers.schedules import schedule_factor

_ADVANTAGE_EPSILON = 1e-8
_DIAGNOSTICS = (
    "loss/policy",
    "loss/value",
    "policy/entropy",
    "policy/approx_kl",
    "policy/clip_fraction",
    "optim/grad_norm",
)


class Batch(NamedTuple):
    """`N` rows to learn from.

    Attributes:
        observation: ``[N, ...]``.
        action: ``[N, ...]``.
        behaviour_log_prob, behaviour_value, advantage, target: ``[N]``; the target is what values are regressed on.
        action_mask: ``[N, n]`` or None.
    """

    observation: ObservationTensor
    action: Tensor
    behaviour_log_prob: Tensor
    behaviour_value: Tensor
    advantage: Tensor
    target: Tensor
    action_mask: Tensor | None

    def select(self, rows: Tensor) -> Batch:
        """Return the rows, copied."""
        return self.map(lambda column: column.index_select(0, rows), index_observation(self.observation, rows))

    def narrow(self, start: int, length: int) -> Batch:
        """Return ``length`` rows from ``start``, as views."""
        rows = narrow_observation(self.observation, start, length)
        return self.map(lambda column: column.narrow(0, start, length), rows)

    def map(self, function: Callable[[Tensor], Tensor], observation: ObservationTensor) -> Batch:
        """Apply ``function`` to every column but the observation, which is given."""
        return Batch(
            observation=observation,
            action=function(self.action),
            behaviour_log_prob=function(self.behaviour_log_prob),
            behaviour_value=function(self.behaviour_value),
            advantage=function(self.advantage),
            target=function(self.target),
            action_mask=None if self.action_mask is None else function(self.action_mask),
        )


class PPO:
    """Learns from rollouts of the current policy.

    Args:
        config: settings.
        policy: learned in place; its parameters become views of one flat tensor.
        seed: of the job; the stream ``shuffle`` orders the minibatches.
        on_minibatch: called with each minibatch before its loss is computed.
        before_step: called before each optimiser step, with the gradients computed and clipped.
        timers: told the phases of an update: ``advantage``, ``loss``, ``backward`` and ``optimizer``.

    Attributes:
        optimizer: Adam over all parameters of the policy.
    """

    def __init__(
        self,
        config: PPOConfig,
        policy: ActorCritic,
        *,
        seed: int = 0,
        on_minibatch: Callable[[Batch], None] | None = None,
        before_step: Callable[[], None] | None = None,
        timers: PhaseTimers | None = None,
    ) -> None:
        self.config, self.policy = config, policy
        self.on_minibatch, self.before_step = on_minibatch, before_step
        timers = PhaseTimers() if timers is None else timers
        self._advantage_phase, self._loss_phase = timers("advantage"), timers("loss")
        self._backward_phase, self._optimizer_phase = timers("backward"), timers("optimizer")
        self.parameters = FlatParameters(policy)
        self.optimizer = Adam(self.parameters, epsilon=config.adam_epsilon)
        self.gradient = make_gradient(policy)
        self.device = self.parameters.data.device
        self._shuffle = torch.Generator().manual_seed(stream_seed(seed, SHUFFLE))

    def update(self, rollout: Rollout, progress: float = 0.0) -> dict[str, float]:
        """Learn from one rollout.

        Args:
            rollout: collected with the current parameters.
            progress: share of the run that lies behind, for the schedules.

        Returns:
            Means over the optimiser steps of losses and diagnostics, by metric name.

        Raises:
            RLJobError: a loss or a gradient is no longer finite.
        """
        config = self.config
        with self._advantage_phase:
            batch = self.batch(rollout)
        num_rows = batch.advantage.shape[0]
        learning_rate = config.learning_rate * schedule_factor(config.schedule, progress)
        clip_epsilon = config.clip_epsilon * schedule_factor(config.clip_schedule, progress)
        entropy_coefficient = config.entropy_coefficient * schedule_factor(config.entropy_schedule, progress)

        diagnostics = torch.zeros(len(_DIAGNOSTICS), device=self.device)
        steps = epochs = 0
        stopped = False
        while epochs < config.num_epochs and not stopped:
            order = torch.randperm(num_rows, generator=self._shuffle).to(self.device)
            shuffled = batch.select(order)
            for start, length in minibatch_bounds(num_rows, config.minibatch_size):
                minibatch = shuffled.narrow(start, length)
                if self.on_minibatch is not None:
                    self.on_minibatch(minibatch)
                with self._loss_phase:
                    outcome, gradients = self._minibatch_loss(minibatch, clip_epsilon, entropy_coefficient)
                if self._kl_exceeded(outcome):
                    stopped = True
                    break
                with self._backward_phase:
                    self.gradient.backward(*gradients)
                with self._optimizer_phase:
                    norm = self.parameters.clip_grad_norm_(config.max_grad_norm)
                    if self.before_step is not None:
                        self.before_step()
                    self.optimizer.step(learning_rate)
                diagnostics += torch.stack([*outcome, norm])
                steps += 1
            epochs += 1
        means = dict(zip(_DIAGNOSTICS, (diagnostics / max(steps, 1)).tolist(), strict=True))
        _require_finite(means)
        return {
            **means,
            "policy/explained_variance": _explained_variance(batch),
            "optim/learning_rate": learning_rate,
            "optim/steps": float(steps),
        }

    def batch(self, rollout: Rollout) -> Batch:
        """Return the valid rows of a rollout with their advantages and value targets, on the learner's device."""
        advantage = generalized_advantage_estimation(
            rollout.reward,
            rollout.value,
            rollout.terminated,
            rollout.truncated,
            rollout.valid,
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
        )
        value = rollout.value[:-1]
        mask = None if rollout.action_mask is None else rollout.action_mask[:-1].flatten(0, 1)
        observation = flatten_time(map_observation(lambda leaf: leaf[:-1], rollout.observation))
        rows = Batch(
            observation=observation,
            action=rollout.action.flatten(0, 1),
            behaviour_log_prob=rollout.behaviour_log_prob.flatten(),
            behaviour_value=value.flatten(),
            advantage=advantage.flatten(),
            target=(advantage + value).flatten(),
            action_mask=mask,
        )
        if rollout.num_valid != rollout.valid.numel():
            rows = rows.select(rollout.valid.flatten().nonzero().squeeze(1))
        if self.device.type != "cpu":
            on_device = map_observation(lambda leaf: leaf.to(self.device), rows.observation)
            rows = rows.map(lambda column: column.to(self.device), on_device)
        if self.config.advantage_normalization == "Rollout":
            rows = rows._replace(advantage=_normalised(rows.advantage))
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return all but the policy's parameters: the optimiser's and the shuffle's state."""
        return {"optimizer": self.optimizer.state_dict(), "shuffle": self._shuffle.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        self._shuffle.set_state(state["shuffle"])

    def _minibatch_loss(
        self, minibatch: Batch, clip_epsilon: float, entropy_coefficient: float
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor]]:
        """Return the diagnostics of L = L_clip + c1 L_value - c2 H (equation 9), and its gradients by action
        parameters and values.
        """
        config, distribution = self.config, self.policy.distribution
        params, value = self.gradient.forward(minibatch.observation)
        with torch.no_grad():
            advantage = minibatch.advantage
            if config.advantage_normalization == "Minibatch":
                advantage = _normalised(advantage)
            evaluation = distribution.evaluate(params, minibatch.action, minibatch.action_mask)
            surrogate = clipped_surrogate(
                evaluation.log_prob, minibatch.behaviour_log_prob, advantage, clip_epsilon=clip_epsilon
            )
            if config.value_clip_epsilon is None:
                value_loss = squared_value_loss(value, minibatch.target)
            else:
                value_loss = clipped_value_loss(
                    value, minibatch.behaviour_value, minibatch.target, clip_epsilon=config.value_clip_epsilon
                )
            d_entropy = -entropy_coefficient / advantage.shape[0]
            d_params = distribution.gradient(evaluation, surrogate.gradient, d_entropy)
            d_value = value_loss.gradient * config.value_loss_coefficient
        entropy = evaluation.entropy.mean()
        diagnostics = (surrogate.loss, value_loss.loss, entropy, surrogate.approx_kl, surrogate.clip_fraction)
        return diagnostics, (d_params, d_value)

    def _kl_exceeded(self, outcome: tuple[Tensor, ...]) -> bool:
        limit = self.config.target_kl
        return limit is not None and float(outcome[3]) > limit


def minibatch_bounds(num_rows: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield start and length of the fewest minibatches of at most ``most`` rows, whose lengths differ by at most
    one.
    """
    count = -(-num_rows // most)
    start = 0
    for number in range(count):
        length = num_rows // count + (number < num_rows % count)
        yield start, length
        start += length


def _normalised(advantage: Tensor) -> Tensor:
    if advantage.shape[0] < 2:
        return advantage
    std, mean = torch.std_mean(advantage)
    return (advantage - mean).div_(std + _ADVANTAGE_EPSILON)


def _explained_variance(batch: Batch) -> float:
    """Return 1 - Var(target - value) / Var(target), 1 where values are perfect; 0 where targets don't vary."""
    if batch.target.numel() == 0:
        return 0.0
    variance = float(batch.target.var(correction=0))
    residual = float((batch.target - batch.behaviour_value).var(correction=0))
    return 1.0 - residual / variance if variance > 0 else 0.0


def _require_finite(means: dict[str, float]) -> None:
    for name, value in means.items():
        if value != value or value in (float("inf"), float("-inf")):
            raise RLJobError(
                f"{name} is {value}: learning has diverged; lower spec.training.ppo.learningRate, set maxGradNorm, or "
                "normalise observations and rewards with the transforms ObservationNorm and RewardNorm"
            )
