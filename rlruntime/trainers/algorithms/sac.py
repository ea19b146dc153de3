"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), algorithm 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlruntime.losses.action_value import squared_td_loss, td_target, temperature_gradient
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.critics import build_critics, make_critic_gradient
from rlruntime.policies.flat import Adam, FlatParameters
from rlruntime.policies.gradients import make_actor_gradient
from rlruntime.policies.policy import Policy
from rlruntime.policies.squashed import PathwiseSample, SquashedGaussian
from rlruntime.spec.training.sac import SACConfig
from rlruntime.storages.batch import Batch
from rlruntime.trainers.algorithms.learner import (
    BeforeStep,
    Means,
    Phases,
    RowReader,
    Rows,
    Target,
    noise_generator,
    nothing,
)
from rlruntime.trainers.schedules import schedule_factor

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


class SAC:
    """See `Learner`.

    Args:
        config: settings.
        policy: of kind `SAC`.
        seed: of the job; the streams ``critic`` and ``learning-noise`` are drawn from it.
        timers: told the phases ``transform``, ``loss``, ``backward`` and ``optimizer``.
        before_step: called before each optimiser step, with its gradients computed and clipped, and while none are
            recorded.

    Attributes:
        critics: their module.
        temperature: weight of the entropy in the objective, per nat.
        target_entropy: in nats.
        num_updates: so far.
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
        if not isinstance(policy.distribution, SquashedGaussian):
            raise TypeError(f"SAC learns a policy of kind SAC, not {policy.kind}")
        self.config, self.policy, self.distribution = config, policy, policy.distribution
        self.before_step = nothing if before_step is None else before_step
        self.critics = build_critics(policy, num_critics=config.num_critics, seed=seed)
        self.actor_parameters, self.critic_parameters = FlatParameters(policy), FlatParameters(self.critics)
        self.target = Target(self.critics, self.critic_parameters)
        self.actor = make_actor_gradient(policy)
        self.critic, self.target_critic = make_critic_gradient(self.critics), make_critic_gradient(self.target.module)
        self.actor_optimizer = Adam(self.actor_parameters, epsilon=config.adam_epsilon)
        self.critic_optimizer = Adam(self.critic_parameters, epsilon=config.adam_epsilon)
        device = policy.device
        self._log_temperature = FlatParameters(_Scalar(math.log(config.initial_temperature)).to(device))
        self.temperature_optimizer = Adam(self._log_temperature, epsilon=config.adam_epsilon)
        self.target_entropy = -float(self.distribution.size) if config.target_entropy is None else config.target_entropy
        self.num_updates = 0
        self._read = RowReader(policy, config.gamma)
        self._phases, self._means = Phases(timers), Means("sac", _METRICS, device)
        self._generator = noise_generator(seed, device)
        self._td_error = torch.zeros(0, device=device)
        self.schedule(0.0)

    @property
    def temperature(self) -> float:
        """See the class."""
        return math.exp(float(self._log_temperature.data))

    def schedule(self, progress: float) -> None:
        """See `Learner.schedule`."""
        config, factor = self.config, schedule_factor(self.config.schedule, progress)
        rates = (config.actor_learning_rate, config.critic_learning_rate, config.temperature_learning_rate)
        self._rates = [factor * (config.learning_rate if rate is None else rate) for rate in rates]

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
                self.target.follow(self.config.tau)
        self._means.add(critic[0], actor[0], critic[1], critic[2], actor[1], actor[2], critic[3], actor[3])

    def _update_critics(
        self, rows: Rows, following: PathwiseSample, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Regress the critics on the soft value of what follows (equations 5 and 3); the least critic judges it."""
        phases = self._phases
        with phases.loss:
            next_values = self.target_critic.infer(rows.next_observation, following.action)
            next_value = next_values.amin(0).sub_(following.log_prob, alpha=temperature)
            target = td_target(rows.reward, rows.discount, rows.terminated, next_value)
            values = self.critic.forward(rows.observation, rows.action)
            outcome = squared_td_loss(values, target, rows.weight)
            self._td_error = outcome.error
        with phases.backward:
            self.critic.backward(outcome.gradient)
        with phases.optimizer:
            norm = self.critic_parameters.clip_grad_norm_(self.config.max_grad_norm)
            self.before_step()
            self.critic_optimizer.step(self._rates[1])
        return outcome.loss, values.mean(), target.mean(), norm

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
            norm = self.actor_parameters.clip_grad_norm_(self.config.max_grad_norm)
            self.before_step()
            self.actor_optimizer.step(self._rates[0])
            if self.config.learn_temperature:
                self._log_temperature.grad.fill_(temperature_gradient(sample.log_prob, self.target_entropy))
                self.before_step()
                self.temperature_optimizer.step(self._rates[2])
        return loss, -mean_log_prob, torch.full_like(norm, temperature), norm

    def td_error(self) -> Tensor:
        """See `Learner.td_error`."""
        return self._td_error.mean(0)

    def metrics(self) -> dict[str, float]:
        """See `Learner.metrics`."""
        means = self._means.take()
        return {**means, "optim/learning_rate": self._rates[1]} if means else means

    def state_dict(self) -> dict[str, Any]:
        """See `Learner.state_dict`."""
        return {
            "critics": self.critics.state_dict(),
            "target_critics": self.target.module.state_dict(),
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "log_temperature": self._log_temperature.data,
            "temperature_optimizer": self.temperature_optimizer.state_dict(),
            "num_updates": self.num_updates,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load_state_dict`."""
        self.critics.load_state_dict(state["critics"])
        self.target.module.load_state_dict(state["target_critics"])
        self.actor_optimizer.load_state_dict(state["actor_optimizer"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self._log_temperature.data.copy_(state["log_temperature"])
        self.temperature_optimizer.load_state_dict(state["temperature_optimizer"])
        self.num_updates = int(state["num_updates"])
        self._generator.set_state(state["generator"])


class _Scalar(torch.nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.tensor([value]))
