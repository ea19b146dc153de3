"""Deep Q-learning (Mnih et al. 2015, doi:10.1038/nature14236), algorithm 1, with double Q-learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlruntime.losses.action_value import huber_td_loss, td_target
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.distributions import masked
from rlruntime.policies.epsilon_greedy import EpsilonGreedy
from rlruntime.policies.flat import Adam, FlatParameters
from rlruntime.policies.gradients import make_actor_gradient
from rlruntime.policies.perceptron import Scratch
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.dqn import DQNConfig
from rlruntime.storages.batch import Batch
from rlruntime.trainers.algorithms.learner import BeforeStep, Means, Phases, RowReader, Rows, Target, nothing
from rlruntime.trainers.schedules import schedule_factor

_METRICS = ("loss/critic", "critic/value_mean", "critic/target_mean", "optim/grad_norm")


class DQN:
    """See `Learner`.

    Args:
        config: settings.
        policy: of kind `DQN`; how often it acts at random is set.
        seed: of the job; nothing here is random.
        timers: told the phases ``transform``, ``loss``, ``backward`` and ``optimizer``.
        before_step: called before each optimiser step, with its gradients computed and clipped, and while none are
            recorded.

    Attributes:
        num_updates: so far.
    """

    Config = DQNConfig

    def __init__(
        self,
        config: DQNConfig,
        policy: Policy,
        *,
        seed: int = 0,
        timers: PhaseTimers | None = None,
        before_step: BeforeStep | None = None,
    ) -> None:
        if not isinstance(policy.distribution, EpsilonGreedy):
            raise TypeError(f"DQN learns a policy of kind DQN, not {policy.kind}")
        if policy.distribution.dueling != config.dueling:
            raise ValueError("the policy must be dueling where the config says so, and only there")
        self.config, self.policy, self.distribution = config, policy, policy.distribution
        self.before_step = nothing if before_step is None else before_step
        self.parameters = FlatParameters(policy)
        self.target = Target(policy, self.parameters)
        scratch = Scratch()
        self.values = make_actor_gradient(policy, scratch)
        self.target_values = make_actor_gradient(self.target.module, scratch)
        self.optimizer = Adam(self.parameters, epsilon=config.adam_epsilon)
        self.num_updates = 0
        self._read, self._phases = RowReader(policy, config.gamma), Phases(timers)
        self._means = Means("dqn", _METRICS, policy.device)
        self._td_error = torch.zeros(0, device=policy.device)
        self.schedule(0.0)

    def schedule(self, progress: float) -> None:
        """See `Learner.schedule`."""
        self._learning_rate = self.config.learning_rate * schedule_factor(self.config.schedule, progress)
        self.distribution.epsilon = self.epsilon(progress)

    def epsilon(self, progress: float) -> float:
        """Return the share of random actions once ``progress`` of the run lies behind."""
        config = self.config
        done = 1.0 if progress >= config.exploration_fraction else progress / config.exploration_fraction
        return config.initial_epsilon + max(done, 0.0) * (config.final_epsilon - config.initial_epsilon)

    @torch.no_grad()
    def update(self, batch: Batch) -> None:
        """See `Learner.update`."""
        phases, config = self._phases, self.config
        with phases.transform:
            rows = self._read(batch)
        with phases.loss:
            target = td_target(rows.reward, rows.discount, rows.terminated, self.next_value(rows))
            values = self.values.forward(rows.observation)
            index = rows.action.unsqueeze(1)
            taken = values.gather(1, index).squeeze(1)
            outcome = huber_td_loss(taken, target, rows.weight)
            self._td_error = outcome.error
            d_values = torch.zeros_like(values).scatter_(1, index, outcome.gradient.unsqueeze(1))
        with phases.backward:
            self.values.backward(d_values)
        with phases.optimizer:
            norm = self.parameters.clip_grad_norm_(config.max_grad_norm)
            self.before_step()
            self.optimizer.step(self._learning_rate)
            self.num_updates += 1
            if self.num_updates % config.target_update_interval == 0:
                self.target.follow(config.tau)
        self._means.add(outcome.loss, taken.mean(), target.mean(), norm)

    def next_value(self, rows: Rows) -> Tensor:
        """Return what the target network says of the best allowed action that follows, ``[N]``."""
        values = self.target_values.infer(rows.next_observation)
        if not self.config.double:
            return masked(values, rows.next_mask).amax(1)
        best = masked(self.values.infer(rows.next_observation), rows.next_mask).argmax(1, keepdim=True)
        return values.gather(1, best).squeeze(1)

    def td_error(self) -> Tensor:
        """See `Learner.td_error`."""
        return self._td_error

    def metrics(self) -> dict[str, float]:
        """See `Learner.metrics`."""
        means = self._means.take()
        if not means:
            return means
        return {**means, "policy/epsilon": self.distribution.epsilon, "optim/learning_rate": self._learning_rate}

    def state_dict(self) -> dict[str, Any]:
        """See `Learner.state_dict`."""
        return {
            "target": self.target.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "num_updates": self.num_updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load_state_dict`."""
        self.target.module.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.num_updates = int(state["num_updates"])
