"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477), algorithm 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlruntime.losses.action_value import squared_td_loss, td_target
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.critics import build_critics, make_critic_gradient
from rlruntime.policies.flat import Adam, FlatParameters
from rlruntime.policies.gradients import make_actor_gradient
from rlruntime.policies.policy import Policy
from rlruntime.policies.squashed import Deterministic
from rlruntime.spec.training.td3 import TD3Config
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

_CRITIC_METRICS = ("loss/critic", "critic/value_mean", "critic/target_mean", "optim/critic_grad_norm")
_ACTOR_METRICS = ("loss/actor", "optim/actor_grad_norm")


class TD3:
    """See `Learner`.

    Args:
        config: settings.
        policy: of kind `TD3`; its exploration noise is set.
        seed: of the job; the streams ``critic`` and ``learning-noise`` are drawn from it.
        timers: told the phases ``transform``, ``loss``, ``backward`` and ``optimizer``.
        before_step: called before each optimiser step, with its gradients computed and clipped, and while none are
            recorded.

    Attributes:
        critics: their module.
        num_updates: of the critics so far.
    """

    Config = TD3Config

    def __init__(
        self,
        config: TD3Config,
        policy: Policy,
        *,
        seed: int = 0,
        timers: PhaseTimers | None = None,
        before_step: BeforeStep | None = None,
    ) -> None:
        if not isinstance(policy.distribution, Deterministic):
            raise TypeError(f"TD3 learns a policy of kind TD3, not {policy.kind}")
        self.config, self.policy, self.distribution = config, policy, policy.distribution
        self.distribution.exploration_noise = config.exploration_noise
        self.before_step = nothing if before_step is None else before_step
        self.critics = build_critics(policy, num_critics=config.num_critics, seed=seed)
        self.actor_parameters, self.critic_parameters = FlatParameters(policy), FlatParameters(self.critics)
        self.target_policy = Target(policy, self.actor_parameters)
        self.target_critics = Target(self.critics, self.critic_parameters)
        self.actor, self.target_actor = make_actor_gradient(policy), make_actor_gradient(self.target_policy.module)
        self.critic = make_critic_gradient(self.critics)
        self.target_critic = make_critic_gradient(self.target_critics.module)
        self.actor_optimizer = Adam(self.actor_parameters, epsilon=config.adam_epsilon)
        self.critic_optimizer = Adam(self.critic_parameters, epsilon=config.adam_epsilon)
        self.num_updates = 0
        device = policy.device
        self._read, self._phases = RowReader(policy, config.gamma), Phases(timers)
        self._critic_means = Means("td3", _CRITIC_METRICS, device)
        self._actor_means = Means("td3", _ACTOR_METRICS, device)
        self._generator = noise_generator(seed, device)
        self._td_error = torch.zeros(0, device=device)
        self.schedule(0.0)

    def schedule(self, progress: float) -> None:
        """See `Learner.schedule`."""
        config, factor = self.config, schedule_factor(self.config.schedule, progress)
        rates = (config.actor_learning_rate, config.critic_learning_rate)
        self._rates = [factor * (config.learning_rate if rate is None else rate) for rate in rates]

    @torch.no_grad()
    def update(self, batch: Batch) -> None:
        """See `Learner.update`."""
        phases, config = self._phases, self.config
        with phases.transform:
            rows = self._read(batch)
            noise = torch.randn(rows.action.shape, generator=self._generator, device=self.policy.device)
        self._critic_means.add(*self._update_critics(rows, noise))
        self.num_updates += 1
        if self.num_updates % config.policy_delay == 0:
            self._actor_means.add(*self._update_actor(rows))
            with phases.optimizer:
                self.target_policy.follow(config.tau)
                self.target_critics.follow(config.tau)

    def target_action(self, next_observation: Any, noise: Tensor) -> Tensor:
        """Return the target policy's actions ``[N, A]`` with clipped noise, held within the bounds (section 5.3).

        Args:
            next_observation: ``[N, ...]`` that went through `Policy.preprocess`.
            noise: standard normal, ``[N, A]``; it is written over.
        """
        config = self.config
        smoothing = noise.mul_(config.target_noise).clamp_(-config.target_noise_clip, config.target_noise_clip)
        return smoothing.add_(torch.tanh(self.target_actor.infer(next_observation))).clamp_(-1.0, 1.0)

    def _update_critics(self, rows: Rows, noise: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Regress the critics on the least of the target critics (clipped double Q-learning, equation 10)."""
        phases = self._phases
        with phases.loss:
            next_action = self.target_action(rows.next_observation, noise)
            next_value = self.target_critic.infer(rows.next_observation, next_action).amin(0)
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

    def _update_actor(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Move the actor up the gradient of the first critic (the deterministic policy gradient, algorithm 1)."""
        phases = self._phases
        with phases.loss:
            action = torch.tanh(self.actor.forward(rows.observation))
            values = self.critic.forward_action(rows.observation, action, count=1)
            d_values = torch.full_like(values, -1.0 / values.shape[1])
        with phases.backward:
            d_action = self.critic.action_gradient(d_values)
            self.actor.backward(self.distribution.action_gradient(action, d_action))
        with phases.optimizer:
            norm = self.actor_parameters.clip_grad_norm_(self.config.max_grad_norm)
            self.before_step()
            self.actor_optimizer.step(self._rates[0])
        return -values.mean(), norm

    def td_error(self) -> Tensor:
        """See `Learner.td_error`."""
        return self._td_error.mean(0)

    def metrics(self) -> dict[str, float]:
        """See `Learner.metrics`."""
        means = {**self._critic_means.take(), **self._actor_means.take()}
        return {**means, "optim/learning_rate": self._rates[1]} if means else means

    def state_dict(self) -> dict[str, Any]:
        """See `Learner.state_dict`."""
        return {
            "critics": self.critics.state_dict(),
            "target_critics": self.target_critics.module.state_dict(),
            "target_policy": self.target_policy.module.state_dict(),
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "num_updates": self.num_updates,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load_state_dict`."""
        self.critics.load_state_dict(state["critics"])
        self.target_critics.module.load_state_dict(state["target_critics"])
        self.target_policy.module.load_state_dict(state["target_policy"])
        self.actor_optimizer.load_state_dict(state["actor_optimizer"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self.num_updates = int(state["num_updates"])
        self._generator.set_state(state["generator"])
