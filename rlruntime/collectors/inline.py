"""The inline collector: environments and policy take turns in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from rlruntime.collectors.accounting import apply_reward_transforms
from rlruntime.collectors.acting import Chooser, RandomChooser, make_chooser, uniform_log_prob
from rlruntime.collectors.base import BaseCollector
from rlruntime.collectors.memory import RecurrentMemory
from rlruntime.collectors.protocol import CollectorStats
from rlruntime.collectors.rollout import Rollout
from rlruntime.envs.protocol import VectorEnv
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.observations import flatten_time, map_observation
from rlruntime.policies.policy import Policy
from rlruntime.registry import register
from rlruntime.seeding import ENVIRONMENT, POLICY, stream_seed
from rlruntime.spec.training.collectors import InlineCollectorConfig
from rlruntime.spec.training.env import EnvConfig
from rlruntime.transforms.staging import make_transformed_env


@register("collector", "Inline")
class InlineCollector(BaseCollector[Rollout]):
    """Fills rollouts of ``num_steps`` steps of every copy of ``env`` with the actions of ``policy``.

    The inner loop computes only what the next step needs, the action, and writes into preallocated tensors. Values
    come from one pass over the finished rollout where the policy is ``deferrable``, else step by step; what a policy
    with memory remembers of each copy is kept from rollout to rollout, and forgotten where an episode begins;
    log-probabilities always come from the very parameters that the actions were drawn from. See
    `rlruntime.collectors.protocol.Collector` for what all collectors have.

    Args:
        env: stepped and, by `close`, closed by this collector.
        policy: acts; its weights and its transforms' statistics must not change while `collect` runs.
        num_steps: `T`.
        seed: of the job; the streams ``environment`` and ``policy`` are drawn from it.
        random_frames: frames at the beginning whose actions are drawn uniformly, counted in whole rollouts.
        rollout: to fill; one of its own by default.
        first_copy: number of the first copy, for a part of a larger set.

    Attributes:
        num_frames: valid rows collected so far.
        steps: steps of all copies together, counted as they are taken: it moves while `collect` runs.
        episodes: those that ended in the last rollout.
        env_seconds, policy_seconds: time spent in environments and in choosing actions so far.
    """

    Config = InlineCollectorConfig
    rollout: Rollout

    def __init__(
        self,
        env: VectorEnv,
        policy: Policy,
        *,
        num_steps: int,
        seed: int = 0,
        random_frames: int = 0,
        rollout: Rollout | None = None,
        first_copy: int = 0,
    ) -> None:
        super().__init__(policy, num_envs=env.num_envs, num_steps=num_steps, random_frames=random_frames)
        self.env, self.seed = env, seed
        self.device = policy.device
        self.policy_version = 1
        self.steps = 0
        self.env_seconds = self.policy_seconds = 0.0
        self._first_copy = first_copy
        self._memory: RecurrentMemory | None = None
        if isinstance(policy, ActorCritic) and policy.is_recurrent:
            self._memory = RecurrentMemory(policy, env.num_envs)
        self._generator = torch.Generator(device=self.device).manual_seed(stream_seed(seed, POLICY))
        if rollout is None:
            shapes = policy.state_shapes
            rollout = Rollout(env.spaces, policy.distribution, num_steps, env.num_envs, state_shapes=shapes)
        self.use(rollout)
        self._previous = self.rollout
        self._has_observation = False
        self._goes_on = False  # from the last observation of the previous rollout, not from the first of this one

    @classmethod
    def from_config(
        cls,
        config: InlineCollectorConfig,
        env: EnvConfig,
        policy: Policy,
        *,
        num_steps: int,
        seed: int,
        random_frames: int = 0,
    ) -> InlineCollector:
        """Return the collector that a manifest describes; see `rlruntime.collectors.make.make_collector`."""
        return cls(make_transformed_env(env), policy, num_steps=num_steps, seed=seed, random_frames=random_frames)

    def use(self, rollout: Rollout) -> None:
        """Fill ``rollout`` from now on; the one before stays as it is, and is gone on from."""
        self.rollout = rollout
        self._slots, self._first_slot = rollout.slots(), rollout.first_slot()
        self._action_arrays = list(rollout.action.numpy())
        self._chooser = make_chooser(self.policy, rollout, self._generator, self._memory)
        self._random_chooser: Chooser = RandomChooser(self.policy, rollout, self._generator)

    def reset(self) -> None:
        """Start new episodes in every copy, seeded from the stream ``environment``."""
        copies = range(self._first_copy, self._first_copy + self.num_envs)
        self._begin_episodes([stream_seed(self.seed, ENVIRONMENT, copy) for copy in copies])

    def start(self) -> None:
        """Do what `reset` does, unless there are episodes already; `collect` does it by itself."""
        if not self._has_observation:
            self.reset()

    def collect(self) -> Rollout:
        """Return the next rollout; it stays valid until the next call.

        Raises:
            EnvironmentFault: an environment failed.
        """
        self._require_running()
        rollout = self.rollout
        if self._has_observation:
            self.update_transforms()
            if self._goes_on:
                rollout.begin_after(self._previous)
        else:
            self.reset()
        if self._memory is not None:
            self._memory.begin(rollout)
        with torch.no_grad():
            if self._acts_at_random:
                self._fill(rollout, self._random_chooser.start())
                self._judge(rollout)
                self._judge_random(rollout)
            else:
                self._fill(rollout, self._chooser.start())
                self._judge(rollout)
        self._account(rollout)
        self._learned_from, self._goes_on, self._previous = False, True, rollout
        return rollout

    def publish(self) -> int:
        """Give the weights that have been learned the next version number and return it; they act at once."""
        self.policy_version += 1
        return self.policy_version

    def close(self) -> None:
        """Close the environments."""
        self.env.close()

    def stats(self) -> CollectorStats:
        """See `Collector.stats`."""
        return CollectorStats(
            frames=self.num_frames,
            steps=self.steps * self.num_envs,
            policy_version=self.policy_version,
            seconds={"env": self.env_seconds, "policy": self.policy_seconds},
        )

    def snapshot(self) -> list[bytes] | None:
        """Return the state of every environment copy, or None where it can't be had."""
        return self.env.snapshot()

    def restore(self, snapshots: Sequence[bytes]) -> None:
        """Put the environments into states that `snapshot` returned."""
        self.env.restore(snapshots)

    def state_dict(self) -> dict[str, Any]:
        """Return all but the environments' own state: what a checkpoint needs to go on bit for bit."""
        self.update_transforms()
        last, rollout = (-1, self._previous) if self._goes_on else (0, self.rollout)
        return {
            "observation": map_observation(lambda leaf: leaf[last].clone(), rollout.observation),
            "action_mask": None if rollout.action_mask is None else rollout.action_mask[last].clone(),
            "generator": self._generator.get_state(),
            "policy_version": self.policy_version,
            **({} if self._memory is None else {"memory": self._memory.state_dict()}),
            **self._accounts.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` returned, whatever the number of steps of the rollouts it comes from.

        The caller restores the environments, or calls `reset`.
        """
        rollout = self.rollout
        if isinstance(rollout.observation, dict):
            for key, leaf in rollout.observation.items():
                leaf[0].copy_(state["observation"][key])
        else:
            rollout.observation[0].copy_(state["observation"])
        if rollout.action_mask is not None:
            rollout.action_mask[0].copy_(state["action_mask"])
        self._generator.set_state(state["generator"])
        if self._memory is not None:
            self._memory.load_state_dict(state["memory"])
        self._accounts.load_state_dict(state)
        self.policy_version = int(state.get("policy_version", 1))
        self._goes_on = False
        self._has_observation = self._learned_from = True

    def restart_episodes(self, seeds: Sequence[int], state: dict[str, Any]) -> None:
        """Take over the counters and the generator of ``state``, and start new episodes with ``seeds``."""
        self._accounts.load_counters(state)
        self.policy_version = int(state.get("policy_version", 1))
        self._generator.set_state(state["generator"])
        self._begin_episodes(seeds)
        self._restart_transforms()
        self._learned_from = True

    def _begin_episodes(self, seeds: Sequence[int]) -> None:
        self.env.reset(seeds, self._first_slot)
        self._accounts.restart()
        if self._memory is not None:
            self._memory.restart()
        self._has_observation, self._goes_on = True, False

    def _fill(self, rollout: Rollout, choose: Callable[[int], None]) -> None:
        """Step every copy `T` times."""
        step_env, to_env = self.env.step, self.policy.distribution.to_env
        actions = self._action_arrays
        env_seconds, started = 0.0, perf_counter()
        for step, slot in enumerate(self._slots):
            choose(step)
            before = perf_counter()
            step_env(to_env(actions[step]), slot)
            env_seconds += perf_counter() - before
            self.steps += 1
        self.env_seconds += env_seconds
        self.policy_seconds += perf_counter() - started - env_seconds
        rollout.policy_version.fill_(self.policy_version)

    def _judge(self, rollout: Rollout) -> None:
        """Add what is learned from besides what happened: log-probabilities, values, rewards."""
        self._evaluate(rollout)
        apply_reward_transforms(self.policy, rollout)

    def _evaluate(self, rollout: Rollout) -> None:
        """Add log-probabilities, and the values that have not been written step by step."""
        mask = None if rollout.action_mask is None else rollout.action_mask[:-1]
        evaluation = self.policy.distribution.evaluate(rollout.params, rollout.action, mask)
        rollout.behaviour_log_prob.copy_(evaluation.log_prob)
        if self._memory is not None:
            self._memory.finish(rollout, acted=not self._acts_at_random)
            return
        if not isinstance(self.policy, ActorCritic):
            return
        if self.policy.deferrable:
            flat = map_observation(self._to_device, flatten_time(rollout.observation))
            value = self.policy.values_in_chunks(flat, (rollout.num_steps + 1) * rollout.num_envs)
            rollout.value.copy_(value.view_as(rollout.value))
        else:
            last = map_observation(lambda leaf: self._to_device(leaf[-1]), rollout.observation)
            rollout.value[-1].copy_(self.policy.values(last))

    def _judge_random(self, rollout: Rollout) -> None:
        """Put the log-probabilities of uniform actions in place of the policy's."""
        mask = None if rollout.action_mask is None else rollout.action_mask[:-1]
        rollout.behaviour_log_prob.copy_(uniform_log_prob(self.policy, rollout.action, mask))

    def _account(self, rollout: Rollout) -> None:
        """Count what was collected."""
        self._accounts.add(rollout)

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=False)
