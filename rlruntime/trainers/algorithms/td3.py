"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477), algorithm 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.gradients import make_actor_gradient
from rlruntime.policies.policy import Policy
from rlruntime.policies.squashed import Deterministic
from rlruntime.spec.training.td3 import TD3Config
from rlruntime.storages.batch import Batch
from rlruntime.trainers.algorithms.actor_critics import ActorAndCritics
from rlruntime.trainers.algorithms.learner import BeforeStep, Means, Rows, Target

_CRITIC_METRICS = ("loss/critic", "critic/value_mean", "critic/target_mean", "optim/critic_grad_norm")
_ACTOR_METRICS = ("loss/actor", "optim/actor_grad_norm")


class TD3(ActorAndCritics[TD3Config, Deterministic]):
    """See `Learner`.

    Args:
        config: settings.
        policy: of kind `TD3`; its exploration noise is set.
        seed, timers, before_step: see `ActorAndCritics`.

    Attributes:
        target_policy: the slow copy of the policy.
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
        super().__init__(config, policy, Deterministic, seed=seed, timers=timers, before_step=before_step)
        self.distribution.exploration_noise = config.exploration_noise
        self.target_policy = Target(policy, self.actor_parameters)
        self.target_actor = make_actor_gradient(self.target_policy.module, self._scratch)
        self._critic_means = Means("td3", _CRITIC_METRICS, policy.device)
        self._actor_means = Means("td3", _ACTOR_METRICS, policy.device)

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
        with self._phases.loss:
            next_action = self.target_action(rows.next_observation, noise)
            next_value = self.target_critic.infer(rows.next_observation, next_action).amin(0)
        return self._regress_critics(rows, next_value)

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
            norm = self._step(self.actor_parameters, self.actor_optimizer, self._actor_rate)
        return -values.mean(), norm

    def metrics(self) -> dict[str, float]:
        """See `Learner.metrics`."""
        means = {**self._critic_means.take(), **self._actor_means.take()}
        return {**means, "optim/learning_rate": self._critic_rate} if means else means

    def state_dict(self) -> dict[str, Any]:
        """See `Learner.state_dict`."""
        return {**super().state_dict(), "target_policy": self.target_policy.module.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load_state_dict`."""
        super().load_state_dict(state)
        self.target_policy.module.load_state_dict(state["target_policy"])
