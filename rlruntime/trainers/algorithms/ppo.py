"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347), algorithm 1 with the clipped objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rlruntime.collectors.rollout import Rollout
from rlruntime.errors import ConfigError, RLJobError
from rlruntime.losses.policy import clipped_surrogate
from rlruntime.losses.value import clipped_value_loss, squared_value_loss
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.flat import Adam, FlatParameters
from rlruntime.policies.gradients import make_gradient
from rlruntime.policies.sequence_gradient import SequenceGradient
from rlruntime.seeding import SHUFFLE, stream_seed
from rlruntime.spec.training.ppo import PPOConfig
from rlruntime.trainers.algorithms.advantages import AdvantageData, checked, make_advantage
from rlruntime.trainers.algorithms.batches import Batch, SequenceBatch, minibatch_bounds
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


class PPO:
    """Learns from rollouts of the current policy.

    A policy with memory learns from whole sequences: minibatches are environment copies, and parameters and values are
    computed anew over all their steps, from the state that was remembered before the first.

    Args:
        config: settings.
        policy: learned in place; its parameters become views of one flat tensor.
        seed: of the job; the stream ``shuffle`` orders the minibatches.
        on_minibatch: called with each minibatch, a `Batch` or a `SequenceBatch`, before its loss is computed.
        before_step: called before each optimiser step, with the gradients computed and clipped.
        timers: told the phases of an update: ``advantage``, ``loss``, ``backward`` and ``optimizer``.

    Attributes:
        optimizer: Adam over all parameters of the policy.

    Raises:
        ConfigError: the advantage can't be had, or a minibatch is less than one sequence of a policy with memory.
    """

    def __init__(
        self,
        config: PPOConfig,
        policy: ActorCritic,
        *,
        seed: int = 0,
        on_minibatch: Callable[[Batch | SequenceBatch], None] | None = None,
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
        self.advantage = make_advantage(config)
        self.gradient: Any = SequenceGradient(policy) if policy.is_recurrent else make_gradient(policy)
        if policy.is_recurrent and config.minibatch_size < config.num_steps:
            raise ConfigError(
                f"a network with memory learns from whole sequences of numSteps = {config.num_steps} rows",
                field="spec.training.ppo.minibatchSize",
                value=config.minibatch_size,
                remedy=f"set it to {config.num_steps} or more, or numSteps to less",
            )
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
        num_items, most = batch.num_items, self._most_items(rollout.num_steps)
        learning_rate = config.learning_rate * schedule_factor(config.schedule, progress)
        clip_epsilon = config.clip_epsilon * schedule_factor(config.clip_schedule, progress)
        entropy_coefficient = config.entropy_coefficient * schedule_factor(config.entropy_schedule, progress)

        diagnostics = torch.zeros(len(_DIAGNOSTICS), device=self.device)
        steps = epochs = 0
        stopped = False
        while epochs < config.num_epochs and not stopped:
            order = torch.randperm(num_items, generator=self._shuffle).to(self.device)
            shuffled = batch.select(order)
            for start, length in minibatch_bounds(num_items, most):
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
            "policy/explained_variance": _explained_variance(batch.rows),
            "optim/learning_rate": learning_rate,
            "optim/steps": float(steps),
        }

    def batch(self, rollout: Rollout) -> Batch | SequenceBatch:
        """Return the valid rows of a rollout with their advantages and value targets, or its sequences where the policy
        has memory, on the learner's device.

        Raises:
            ConfigError: the advantage returns something else than it must.
        """
        outcome = self.advantage(AdvantageData(self.policy, rollout))
        advantage, target = checked(
            outcome, rollout, "GAE" if self.config.advantage is None else self.config.advantage.type
        )
        kind = SequenceBatch if self.policy.is_recurrent else Batch
        batch = kind.of(rollout, advantage, target, self.device)
        if self.config.advantage_normalization == "Rollout":
            batch = batch.with_advantage(_normalised(advantage[rollout.valid].to(self.device)))
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return all but the policy's parameters: the optimiser's and the shuffle's state."""
        return {"optimizer": self.optimizer.state_dict(), "shuffle": self._shuffle.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        self._shuffle.set_state(state["shuffle"])

    def _minibatch_loss(
        self, minibatch: Batch | SequenceBatch, clip_epsilon: float, entropy_coefficient: float
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor]]:
        """Return the diagnostics of L = L_clip + c1 L_value - c2 H (equation 9), and its gradients by action
        parameters and values.
        """
        config, distribution = self.config, self.policy.distribution
        params, value = minibatch.forward(self.gradient)
        rows = minibatch.rows
        with torch.no_grad():
            advantage = rows.advantage
            if config.advantage_normalization == "Minibatch":
                advantage = _normalised(advantage)
            evaluation = distribution.evaluate(params, rows.action, rows.action_mask)
            surrogate = clipped_surrogate(
                evaluation.log_prob, rows.behaviour_log_prob, advantage, clip_epsilon=clip_epsilon
            )
            if config.value_clip_epsilon is None:
                value_loss = squared_value_loss(value, rows.target)
            else:
                value_loss = clipped_value_loss(
                    value, rows.behaviour_value, rows.target, clip_epsilon=config.value_clip_epsilon
                )
            d_entropy = -entropy_coefficient / advantage.shape[0]
            d_params = distribution.gradient(evaluation, surrogate.gradient, d_entropy)
            d_value = value_loss.gradient * config.value_loss_coefficient
        entropy = evaluation.entropy.mean()
        diagnostics = (surrogate.loss, value_loss.loss, entropy, surrogate.approx_kl, surrogate.clip_fraction)
        return diagnostics, (d_params, d_value)

    def _most_items(self, num_steps: int) -> int:
        """Return the most rows, or sequences of that many rows, in a minibatch."""
        size = self.config.minibatch_size
        return max(1, size // num_steps) if self.policy.is_recurrent else size

    def _kl_exceeded(self, outcome: tuple[Tensor, ...]) -> bool:
        limit = self.config.target_kl
        return limit is not None and float(outcome[3]) > limit


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
