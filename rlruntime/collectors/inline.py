"""The inline collector: environments and policy take turns in one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlruntime.collectors.acting import make_chooser
from rlruntime.collectors.episodes import EpisodeTracker, FinishedEpisodes
from rlruntime.collectors.rollout import Rollout
from rlruntime.envs.protocol import VectorEnv
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.observations import flatten_time, map_observation
from rlruntime.seeding import ENVIRONMENT, POLICY, stream_seed, stream_seeds
from rlruntime.transforms.base import RolloutView, Transform


class InlineCollector:
    """Fills rollouts of ``num_steps`` steps of every copy of ``env`` with the actions of ``policy``.

    The inner loop computes only what the next step needs, the action, and writes into preallocated tensors. Values
    come from one pass over the finished rollout where the policy is ``deferrable``, else step by step;
    log-probabilities always come from the very parameters that the actions were drawn from.

    Args:
        env: stepped and, by `close`, closed by this collector.
        policy: acts; its weights and its transforms' statistics must not change while `collect` runs.
        num_steps: `T`.
        seed: of the job; the streams ``environment`` and ``policy`` are drawn from it.

    Attributes:
        num_frames: valid rows collected so far.
        steps: steps of all copies together, counted as they are taken: it moves while `collect` runs.
        episodes: those that ended in the last rollout.
        env_seconds, policy_seconds: time spent in environments and in choosing actions so far.
    """

    def __init__(self, env: VectorEnv, policy: ActorCritic, *, num_steps: int, seed: int = 0) -> None:
        self.env, self.policy, self.seed = env, policy, seed
        self.device = policy.actor_head.weight.device
        self.rollout = Rollout(env.spaces, policy.distribution, num_steps, env.num_envs)
        self.num_frames = 0
        self.steps = 0
        self.episodes = FinishedEpisodes(np.zeros(0), np.zeros(0, np.int64))
        self.env_seconds = self.policy_seconds = 0.0
        self._generator = torch.Generator(device=self.device).manual_seed(stream_seed(seed, POLICY))
        self._tracker = EpisodeTracker(env.num_envs)
        self._slots = self.rollout.slots()
        self._first_slot = self.rollout.first_slot()
        self._action_arrays = list(self.rollout.action.numpy())
        self._chooser = make_chooser(policy, self.rollout, self._generator)
        self._has_observation = False
        self._last_row = 0  # the row that holds the newest observation: 0 before the first rollout, then T
        self._learned_from = True

    def reset(self) -> None:
        """Start new episodes in every copy, seeded from the stream ``environment``."""
        self.env.reset(stream_seeds(self.seed, ENVIRONMENT, self.env.num_envs), self._first_slot)
        self._tracker = EpisodeTracker(self.env.num_envs)
        self._has_observation, self._last_row = True, 0

    def start(self) -> None:
        """Do what `reset` does, unless there are episodes already; `collect` does it by itself."""
        if not self._has_observation:
            self.reset()

    def collect(self) -> Rollout:
        """Return the next rollout; it stays valid until the next call.

        Raises:
            EnvironmentFault: an environment failed.
        """
        rollout = self.rollout
        if self._has_observation:
            if not self._learned_from:
                self.update_transforms()
            if self._last_row:
                rollout.carry_over()
        else:
            self.reset()
        with torch.no_grad():
            self._fill(rollout)
            self._complete(rollout)
        self._learned_from, self._last_row = False, rollout.num_steps
        return rollout

    def rollouts(self, total_frames: int) -> Iterator[Rollout]:
        """Yield rollouts until ``total_frames`` valid rows are collected, or less than a rollout more.

        Learn from each inside the loop: the transforms' statistics move after its body.
        """
        while self.num_frames < total_frames:
            yield self.collect()
            self.update_transforms()

    def update_transforms(self) -> None:
        """Move the statistics of the policy's transforms by the last rollout. Call it once it has been learned from."""
        if not self._learned_from:
            with torch.no_grad():
                self._update_transforms()
        self._learned_from = True

    def _update_transforms(self) -> None:
        """Show each transform that has statistics what it saw in the rollout: what those before it made of it."""
        rollout = self.rollout
        view, pending = _view(rollout), []
        moving = [number for number, part in enumerate(self.policy.transforms) if _has_statistics(part)]
        for number, transform in enumerate(self.policy.transforms):
            if number in moving:
                pending.append((transform, view))
            if any(later > number for later in moving):
                rows = transform(map_observation(self._to_device, flatten_time(view.observation)))
                view = view._replace(observation=map_observation(self._with_time, rows))
        for transform, seen_by_it in pending:
            transform.update(seen_by_it)  # type: ignore[operator]

    def _with_time(self, rows: Tensor) -> Tensor:
        """Return rows ``[T * B, ...]`` as ``[T, B, ...]`` on the CPU."""
        return rows.reshape(self.rollout.num_steps, self.rollout.num_envs, *rows.shape[1:]).cpu()

    def close(self) -> None:
        """Close the environments."""
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        """Return all but the environments' own state: what a checkpoint needs to go on bit for bit."""
        self.update_transforms()
        last, rollout = self._last_row, self.rollout
        return {
            "observation": map_observation(lambda leaf: leaf[last].clone(), rollout.observation),
            "action_mask": None if rollout.action_mask is None else rollout.action_mask[last].clone(),
            "num_frames": self.num_frames,
            "generator": self._generator.get_state(),
            "episodes": self._tracker.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` returned, whatever the number of steps of the rollouts it comes from.

        The caller restores the environments, or calls `reset`.
        """
        rollout = self.rollout
        self.num_frames = int(state["num_frames"])
        if isinstance(rollout.observation, dict):
            for key, leaf in rollout.observation.items():
                leaf[0].copy_(state["observation"][key])
        else:
            rollout.observation[0].copy_(state["observation"])
        if rollout.action_mask is not None:
            rollout.action_mask[0].copy_(state["action_mask"])
        self._last_row = 0
        self._generator.set_state(state["generator"])
        self._tracker.load_state_dict(state["episodes"])
        self._has_observation = self._learned_from = True

    def restart_episodes(self, seeds: Sequence[int], state: dict[str, Any]) -> None:
        """Take over the counters and the generator of ``state``, and start new episodes with ``seeds``."""
        self.num_frames = int(state["num_frames"])
        self._generator.set_state(state["generator"])
        self.env.reset(seeds, self._first_slot)
        self._tracker = EpisodeTracker(self.env.num_envs)
        for transform in self.policy.transforms:
            transform.restart_episodes()  # type: ignore[operator]
        self._has_observation, self._last_row, self._learned_from = True, 0, True

    def _fill(self, rollout: Rollout) -> None:
        """Step every copy `T` times."""
        choose, step_env, to_env = self._chooser.start(), self.env.step, self.policy.distribution.to_env
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

    def _complete(self, rollout: Rollout) -> None:
        """Add what is computed over the whole rollout: log-probabilities, values, rewards, counts."""
        mask = None if rollout.action_mask is None else rollout.action_mask[:-1]
        evaluation = self.policy.distribution.evaluate(rollout.params, rollout.action, mask)
        rollout.behaviour_log_prob.copy_(evaluation.log_prob)
        if self.policy.deferrable:
            flat = map_observation(self._to_device, flatten_time(rollout.observation))
            value = self.policy.values_in_chunks(flat, (rollout.num_steps + 1) * rollout.num_envs)
            rollout.value.copy_(value.view_as(rollout.value))
        else:
            last = map_observation(lambda leaf: self._to_device(leaf[-1]), rollout.observation)
            rollout.value[-1].copy_(self.policy.values(last))
        self.episodes = self._tracker.add(
            rollout.env_reward.numpy(), rollout.terminated.numpy(), rollout.truncated.numpy(), rollout.valid.numpy()
        )
        rollout.num_valid = int(np.count_nonzero(rollout.valid.numpy()))
        self.num_frames += rollout.num_valid
        rollout.reward = rollout.env_reward
        view = _view(rollout)
        for transform in self.policy.transforms:
            rollout.reward = transform.reward(view, rollout.reward)  # type: ignore[operator]

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=False)


def _has_statistics(transform: nn.Module) -> bool:
    return isinstance(transform, Transform) and type(transform).update is not Transform.update


def _view(rollout: Rollout) -> RolloutView:
    return RolloutView(
        observation=map_observation(lambda leaf: leaf[:-1], rollout.observation),
        reward=rollout.env_reward,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        valid=rollout.valid,
    )
