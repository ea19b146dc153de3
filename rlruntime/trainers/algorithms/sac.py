"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), algorithm 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlruntime.losses.action_value import temperature_gradient
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.flat import Adam, FlatParameters
from rlruntime.policies.policy import Policy
from rlruntime.policies.squashed import PathwiseSample, SquashedGaussian
from rlruntime.spec.training.sac import SACConfig
from rlruntime.storages.batch import Batch
from rlruntime.trainers.algorithms.actor_critics import ActorAndCritics
from rlruntime.trainers.algorithms.learner import BeforeStep, Means, Rows

_METRICS = (
    "loss/critic",
    "loss/actor",
    "critic/value_mean",
    "critic/target_mean",
    "policy/entropy",
    "policy/temperature",
    "optim/critic_grad_norm",
    "optim/actor_grad_norm",
)


class SAC(ActorAndCritics[SACConfig, SquashedGaussian]):
    """See `Learner`.

    Args:
        config: settings.
        policy: of kind `SAC`.
        seed, timers, before_step: see `ActorAndCritics`.

    Attributes:
        temperature: weight of the entropy in the objective, per nat.
        target_entropy: in nats.
    """

    Config = SACConfig

    def __init__(
        self,
        config: SACConfig,
        policy: Policy,
        *,
        seed: int = 0,
        timers: PhaseTimers | None = None,
        before_step: BeforeStep | None = None,
    ) -> None:
        super().__init__(config, policy, SquashedGaussian, seed=seed, timers=timers, before_step=before_step)
        self._log_temperature = FlatParameters(_Scalar(math.log(config.initial_temperature)).to(policy.device))
        self.temperature_optimizer = Adam(self._log_temperature, epsilon=config.adam_epsilon)
        self.target_entropy = -float(self.distribution.size) if config.target_entropy is None else config.target_entropy
        self._means = Means("sac", _METRICS, policy.device)

    @property
    def temperature(self) -> float:
        """See the class."""
        return math.exp(float(self._log_temperature.data))

    def schedule(self, progress: float) -> None:
        """See `Learner.schedule`."""
        super().schedule(progress)
        self._temperature_rate = self._rate(self.config.temperature_learning_rate, progress)

    @torch.no_grad()
    def update(self, batch: Batch) -> None:
        """See `Learner.update`."""
        phases = self._phases
        with phases.transform:
            rows = self._read(batch)
            num_rows, size = rows.action.shape
            noise = torch.randn((2 * num_rows, size), generator=self._generator, device=self.policy.device)
        temperature = self.temperature
        with phases.loss:
            # The actor stays as it is until its own step: one pass serves both of its uses.
            params = self.actor.forward_both(rows.observation, rows.next_observation)
            samples = self.distribution.pathwise(params, noise)
        critic = self._update_critics(rows, samples.narrow(num_rows, num_rows), temperature)
        actor = self._update_actor(rows, samples.narrow(0, num_rows), temperature)
        self.num_updates += 1
        if self.num_updates % self.config.target_update_interval == 0:
            with phases.optimizer:
                self.target_critics.follow(self.config.tau)
        self._means.add(critic[0], actor[0], critic[1], critic[2], actor[1], actor[2], critic[3], actor[3])

    def _update_critics(
        self, rows: Rows, following: PathwiseSample, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Regress the critics on the soft value of what follows (equations 5 and 3); the least critic judges it."""
        with self._phases.loss:
            next_values = self.target_critic.infer(rows.next_observation, following.action)
            next_value = next_values.amin(0).sub_(following.log_prob, alpha=temperature)
        return self._regress_critics(rows, next_value)

    def _update_actor(
        self, rows: Rows, sample: PathwiseSample, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Move the actor up the gradient of the least critic and of its entropy (equations 7 to 10), and the
        temperature towards the one that keeps the entropy at its target (equation 18).
        """
        phases = self._phases
        with phases.loss:
            values = self.critic.forward_action(rows.observation, sample.action)
            least, which = values.min(0)
            share = 1.0 / least.shape[0]
            d_values = torch.zeros_like(values).scatter_(0, which.unsqueeze(0), -share)
            mean_log_prob = sample.log_prob.mean()
            loss = mean_log_prob * temperature - least.mean()
        with phases.backward:
            d_action = self.critic.action_gradient(d_values)
            self.actor.backward(self.distribution.pathwise_gradient(sample, d_action, temperature * share))
        with phases.optimizer:
            norm = self._step(self.actor_parameters, self.actor_optimizer, self._actor_rate)
            if self.config.learn_temperature:
                self._log_temperature.grad.fill_(temperature_gradient(sample.log_prob, self.target_entropy))
                self.before_step()
                self.temperature_optimizer.step(self._temperature_rate)
        return loss, -mean_log_prob, torch.full_like(norm, temperature), norm

    def metrics(self) -> dict[str, float]:
        """See `Learner.metrics`."""
        means = self._means.take()
        return {**means, "optim/learning_rate": self._critic_rate} if means else means

    def state_dict(self) -> dict[str, Any]:
        """See `Learner.state_dict`."""
        return {
            **super().state_dict(),
            "log_temperature": self._log_temperature.data,
            "temperature_optimizer": self.temperature_optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load_state_dict`."""
        super().load_state_dict(state)
        self._log_temperature.data.copy_(state["log_temperature"])
        self.temperature_optimizer.load_state_dict(state["temperature_optimizer"])


class _Scalar(torch.nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.tensor([value]))
