"""What SAC and TD3 share: an actor, several critics with their targets, and how they are moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from rlruntime.losses.action_value import squared_td_loss, td_target
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.critics import build_critics, make_critic_gradient
from rlruntime.policies.distributions import ActionDistribution
from rlruntime.policies.flat import Adam, FlatParameters
from rlruntime.policies.gradients import make_actor_gradient
from rlruntime.policies.perceptron import Scratch
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.sac import SACConfig
from rlruntime.spec.training.td3 import TD3Config
from rlruntime.trainers.algorithms.learner import BeforeStep, Phases, RowReader, Rows, Target, noise_generator, nothing
from rlruntime.trainers.schedules import schedule_factor

_Config = TypeVar("_Config", SACConfig, TD3Config)
_Distribution = TypeVar("_Distribution", bound=ActionDistribution)


class ActorAndCritics(Generic[_Config, _Distribution]):
    """Base of learners of a policy and of critics that judge its actions; see `Learner`.

    Args:
        config: settings.
        policy: learned in place.
        distribution: what the policy's must be.
        seed: of the job; the streams ``critic`` and ``learning-noise`` are drawn from it.
        timers: told the phases ``transform``, ``loss``, ``backward`` and ``optimizer``.
        before_step: called before each optimiser step, with its gradients computed and clipped, and while none are
            recorded.

    Attributes:
        critics: their module.
        target_critics: its slow copy.
        num_updates: of the critics so far.
    """

    def __init__(
        self,
        config: _Config,
        policy: Policy,
        distribution: type[_Distribution],
        *,
        seed: int,
        timers: PhaseTimers | None,
        before_step: BeforeStep | None,
    ) -> None:
        if not isinstance(policy.distribution, distribution):
            kind = type(self).__name__
            raise TypeError(f"{kind} learns a policy of kind {kind}, not {policy.kind}")
        self.config: _Config = config
        self.policy, self.distribution = policy, policy.distribution
        self.before_step = nothing if before_step is None else before_step
        self.critics = build_critics(policy, num_critics=config.num_critics, seed=seed)
        self.actor_parameters, self.critic_parameters = FlatParameters(policy), FlatParameters(self.critics)
        self.target_critics = Target(self.critics, self.critic_parameters)
        self._scratch = Scratch()
        self.actor = make_actor_gradient(policy, self._scratch)
        self.critic = make_critic_gradient(self.critics, self._scratch)
        self.target_critic = make_critic_gradient(self.target_critics.module, self._scratch)
        self.actor_optimizer = Adam(self.actor_parameters, epsilon=config.adam_epsilon)
        self.critic_optimizer = Adam(self.critic_parameters, epsilon=config.adam_epsilon)
        self.num_updates = 0
        self._read, self._phases = RowReader(policy, config.gamma), Phases(timers)
        self._generator = noise_generator(seed, policy.device)
        self._td_error = torch.zeros(0, device=policy.device)
        self.schedule(0.0)

    def schedule(self, progress: float) -> None:
        """See `Learner.schedule`."""
        config = self.config
        self._actor_rate = self._rate(config.actor_learning_rate, progress)
        self._critic_rate = self._rate(config.critic_learning_rate, progress)

    def _rate(self, own: float | None, progress: float) -> float:
        """Return a step size, which is that of all where it has none of its own."""
        config = self.config
        return schedule_factor(config.schedule, progress) * (config.learning_rate if own is None else own)

    def _regress_critics(self, rows: Rows, next_value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Regress the critics on rewards and the values ``[N]`` that follow; return loss, mean value, mean target and
        norm of the gradient.
        """
        phases = self._phases
        with phases.loss:
            target = td_target(rows.reward, rows.discount, rows.terminated, next_value)
            values = self.critic.forward(rows.observation, rows.action)
            outcome = squared_td_loss(values, target, rows.weight)
            self._td_error = outcome.error
        with phases.backward:
            self.critic.backward(outcome.gradient)
        with phases.optimizer:
            norm = self._step(self.critic_parameters, self.critic_optimizer, self._critic_rate)
        return outcome.loss, values.mean(), target.mean(), norm

    def _step(self, flat: FlatParameters, optimizer: Adam, rate: float) -> Tensor:
        """Clip a gradient and move its parameters; return its norm before."""
        norm = flat.clip_grad_norm_(self.config.max_grad_norm)
        self.before_step()
        optimizer.step(rate)
        return norm

    def td_error(self) -> Tensor:
        """See `Learner.td_error`."""
        return self._td_error.mean(0)

    def state_dict(self) -> dict[str, Any]:
        """See `Learner.state_dict`."""
        return {
            "critics": self.critics.state_dict(),
            "target_critics": self.target_critics.module.state_dict(),
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "num_updates": self.num_updates,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load_state_dict`."""
        self.critics.load_state_dict(state["critics"])
        self.target_critics.module.load_state_dict(state["target_critics"])
        self.actor_optimizer.load_state_dict(state["actor_optimizer"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self.num_updates = int(state["num_updates"])
        self._generator.set_state(state["generator"])
