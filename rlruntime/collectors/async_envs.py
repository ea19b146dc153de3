"""The asynchronous-environment collector: one policy that acts for whichever environments are ready."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlruntime.collectors.accounting import apply_reward_transforms
from rlruntime.collectors.acting import uniform_log_prob
from rlruntime.collectors.base import BaseCollector, WithoutSnapshots
from rlruntime.collectors.batch_acting import Acted, BatchActor, CopiesMemory
from rlruntime.collectors.episodes import FinishedEpisodes
from rlruntime.collectors.protocol import CollectorStats
from rlruntime.collectors.rollout import Rollout, take_columns
from rlruntime.envs.async_pool import AsyncEnvPool
from rlruntime.envs.protocol import StepSlot
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.observations import ObservationTensor, map_observation
from rlruntime.policies.policy import Policy
from rlruntime.registry import register
from rlruntime.seeding import ENVIRONMENT, POLICY, stream_seed, stream_seeds
from rlruntime.spec.training.collectors import AsyncEnvCollectorConfig
from rlruntime.spec.training.env import EnvConfig
from rlruntime.transforms.async_copies import TransformedCopies
from rlruntime.transforms.staging import split_transforms, with_copy_wrappers


@register("collector", "AsyncEnv")
class AsyncEnvCollector(WithoutSnapshots, BaseCollector[Rollout]):
    """Fills columns of ``num_steps`` steps, one per environment at a time, and yields rollouts of those that are full.

    No environment waits for another: the policy acts, in one pass, for all that are ready. A fast one may have several
    columns in a rollout, a slow one none; columns of one environment follow each other in time. A column that was
    begun before new weights were published is gone on with under the new ones: ``policy_version`` says so row by row,
    and values and log-probabilities are those of the weights that acted.

    Args:
        pool: stepped and, by `close`, closed by this collector.
        policy: acts; its weights must not change while `collect` runs.
        num_steps: `T`.
        seed: of the job; the streams ``environment`` and ``policy`` are drawn from it.
        columns: `b` of the rollouts; by default as many as there are environments.
        min_ready: environments that must be ready before the policy acts.
        random_frames: frames at the beginning whose actions are drawn uniformly, counted in whole rollouts.

    Attributes:
        rollout_copies: ``[b]`` int64, the environment of each column of the last rollout.
    """

    Config = AsyncEnvCollectorConfig
    rollout: Rollout

    def __init__(
        self,
        pool: AsyncEnvPool,
        policy: Policy,
        *,
        num_steps: int,
        seed: int = 0,
        columns: int | None = None,
        min_ready: int = 1,
        random_frames: int = 0,
    ) -> None:
        super().__init__(policy, num_envs=pool.num_envs, num_steps=num_steps, random_frames=random_frames)
        self.pool, self.seed = pool, seed
        self.num_columns, self.min_ready = columns or pool.num_envs, min_ready
        self.policy_version, self.steps, self.batches, self.staleness = 1, 0, 0, 0
        self.rollout_copies = np.zeros(0, np.int64)
        self._generator = torch.Generator(device=policy.device).manual_seed(stream_seed(seed, POLICY))
        self._seconds = {"policy": 0.0, "wait": 0.0}
        # Each environment fills one column; those that are full wait until there are enough. Columns of a single step
        # are full again after a pause, which takes steps under way to their end.
        num_staged = (2 if num_steps > 1 else 3) * self.num_envs + self.num_columns
        shapes = policy.state_shapes
        self._staged = Rollout(pool.spaces, policy.distribution, num_steps, num_staged, state_shapes=shapes)
        self.rollout = Rollout(pool.spaces, policy.distribution, num_steps, self.num_columns, state_shapes=shapes)
        self._actor = BatchActor(policy, self._generator, self._staged.params.shape[-1])
        self._memory: CopiesMemory | None = None
        if isinstance(policy, ActorCritic) and policy.is_recurrent:
            self._memory = CopiesMemory(policy, self.num_envs)
        self._arrays = _StepArrays(self._staged)
        self._free = list(range(num_staged))
        self._column = np.zeros(self.num_envs, np.int64)
        self._step = np.zeros(self.num_envs, np.int64)
        self._awaits_first = np.zeros(self.num_envs, np.bool_)
        self._num_awaited = 0
        self._full: list[tuple[int, int]] = []  # column and its environment, the first to be full first
        self._continued: dict[int, int] = {}  # by full column, the column that goes on from it
        self._acted: list[tuple[np.ndarray, np.ndarray]] = []  # steps and columns since the last judgement
        self._idle: list[np.ndarray] = []  # environments that are ready, and not acted for
        self._is_started = False

    @classmethod
    def from_config(
        cls,
        config: AsyncEnvCollectorConfig,
        env: EnvConfig,
        policy: Policy,
        *,
        num_steps: int,
        seed: int,
        random_frames: int = 0,
    ) -> AsyncEnvCollector:
        """Return the collector that a manifest describes; see `rlruntime.collectors.make.make_collector`."""
        if split_transforms(env.transforms).environment:  # each copy has its own, which remember its episode alone
            pool = AsyncEnvPool(env, workers=config.workers, copies=TransformedCopies())
        else:
            pool = AsyncEnvPool(with_copy_wrappers(env), workers=config.workers)
        return cls(
            pool,
            policy,
            num_steps=num_steps,
            seed=seed,
            columns=config.columns,
            min_ready=config.min_ready,
            random_frames=random_frames,
        )

    def start(self) -> None:
        """See `Collector.start`."""
        if not self._is_started:
            self._begin_episodes(stream_seeds(self.seed, ENVIRONMENT, self.num_envs))

    def collect(self) -> Rollout:
        """Return the next rollout ``[T, b]``; see `Collector.collect`."""
        self._require_running()
        self.start()
        self.update_transforms()
        at_random = self._acts_at_random
        with torch.no_grad():
            if len(self._full) < self.num_columns:  # else pauses would fill ever more columns
                idle, self._idle = self._idle, []
                for ids in idle:
                    self._act(ids, self._rows(ids), at_random)
            while len(self._full) < self.num_columns:
                started = perf_counter()
                ids, slot = self.pool.recv(self.min_ready)
                received = perf_counter()
                self._absorb(ids, slot)
                self._act(ids, _rows_of(slot, ids), at_random)
                self._seconds["wait"] += received - started
                self._seconds["policy"] += perf_counter() - received
                self.batches += 1
            self._judge(at_random)
            self._hand_out()
        self._learned_from = False
        return self.rollout

    def publish(self) -> int:
        """Give the weights that have been learned the next version number and return it; they act at once."""
        self.policy_version += 1
        return self.policy_version

    def pause(self) -> None:
        """See `Collector.pause`; steps under way are taken to their end."""
        super().pause()
        while self.pool.num_pending:
            ids, slot = self.pool.recv(self.pool.num_pending)
            self._absorb(ids, slot)
            self._idle.append(ids)

    def close(self) -> None:
        """See `Collector.close`."""
        self.pool.close()

    def stats(self) -> CollectorStats:
        """See `Collector.stats`."""
        return CollectorStats(
            frames=self.num_frames,
            steps=self.steps,
            policy_version=self.policy_version,
            seconds=dict(self._seconds),
            staleness=self.staleness,
            batches=self.batches,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the counters and the generator; columns that are not full are left to new episodes."""
        self.update_transforms()
        return {
            "generator": self._generator.get_state(),
            "policy_version": self.policy_version,
            **self._accounts.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over counters and generator; new episodes begin at the next `start`."""
        self._accounts.load_counters(state)
        self.policy_version = int(state.get("policy_version", 1))
        self._generator.set_state(state["generator"])
        self._learned_from = True

    def restart_episodes(self, seeds: Sequence[int], state: dict[str, Any]) -> None:
        """See `Collector.restart_episodes`."""
        self.load_state_dict(state)
        self._restart_transforms()
        self._begin_episodes(seeds)

    def _begin_episodes(self, seeds: Sequence[int]) -> None:
        self.pool.reset(seeds)
        self._accounts.restart()
        self._free = list(range(self._staged.num_envs))
        self._full.clear()
        self._continued.clear()
        self._acted.clear()
        self._idle.clear()
        self._column[:] = [self._free.pop() for _ in range(self.num_envs)]
        self._step[:] = 0
        self._awaits_first[:] = True
        self._num_awaited = self.num_envs
        if self._memory is not None:
            self._memory.restart()
        self._is_started = True

    def _absorb(self, ids: np.ndarray, slot: StepSlot) -> None:
        """Write the outcome of a step, or the first observation, of some environments where it belongs."""
        if self._num_awaited:
            first = self._awaits_first[ids]
            new = ids[first]
            self._num_awaited -= len(new)
            self._arrays.write_seen(slot, new, self._step[new], self._column[new])
            self._awaits_first[new] = False
            ids = ids[~first]
            if not len(ids):
                return
        steps, columns = self._step[ids], self._column[ids]
        self._arrays.write_outcome(slot, ids, steps, columns)
        self._arrays.write_seen(slot, ids, steps + 1, columns)
        if self._memory is not None:
            self._memory.begins[ids] = ~slot.valid[ids]
        self.steps += len(ids)
        self._step[ids] = steps + 1
        full = steps + 1 == self.num_steps
        if full.any():
            for copy, column in zip(ids[full].tolist(), columns[full].tolist(), strict=True):
                self._begin_column(copy, column)

    def _begin_column(self, copy: int, full: int) -> None:
        """Go on in a new column from the last observation of the full one."""
        fresh = self._free.pop()
        self._full.append((full, copy))
        self._continued[full] = fresh
        self._arrays.carry_over(full, fresh)
        self._column[copy], self._step[copy] = fresh, 0

    def _rows(self, ids: np.ndarray) -> tuple[ObservationTensor, Tensor | None]:
        """Return what environments that were absorbed before have seen last."""
        return self._arrays.seen(self._step[ids], self._column[ids])

    def _act(self, ids: np.ndarray, rows: tuple[ObservationTensor, Tensor | None], at_random: bool) -> None:
        """Choose actions for environments and send them."""
        observation, mask = rows
        steps, columns = self._step[ids], self._column[ids]
        if self._memory is not None:
            begun = steps == 0
            self._memory.note(self._staged, ids[begun], columns[begun])
        acted = self._chosen(ids, observation, mask, at_random)
        self._arrays.write_choice(acted, self.policy_version, steps, columns)
        self._acted.append((steps, columns))
        self.pool.send(ids, self.policy.distribution.to_env(acted.action))

    def _chosen(self, ids: np.ndarray, observation: ObservationTensor, mask: Tensor | None, at_random: bool) -> Acted:
        actor = self._actor
        if self._memory is None:
            return actor.act_at_random(mask, len(ids)) if at_random else actor.act(observation, mask)
        params, value = self._memory.step(ids, observation)
        if at_random:
            return actor.act_at_random(mask, len(ids))._replace(value=value.cpu().numpy())
        return actor.sample(params, value, mask)

    def _judge(self, at_random: bool) -> None:
        """Write log-probabilities, and values that can be deferred, of all actions since the last time, under the
        weights that chose them.
        """
        if not self._acted:
            return  # columns were left over from the last time, and nobody had to act for these
        staged, distribution = self._staged, self.policy.distribution
        steps = torch.from_numpy(np.concatenate([steps for steps, _ in self._acted]))
        columns = torch.from_numpy(np.concatenate([columns for _, columns in self._acted]))
        self._acted.clear()
        params, action = staged.params[steps, columns], staged.action[steps, columns]
        mask = None if staged.action_mask is None else staged.action_mask[steps, columns]
        if at_random:
            log_prob = uniform_log_prob(self.policy, action, mask)
        else:
            log_prob = distribution.evaluate(params, action, mask).log_prob
        staged.behaviour_log_prob[steps, columns] = log_prob
        if self._memory is None and isinstance(self.policy, ActorCritic) and self.policy.deferrable:
            device = self.policy.device
            observation = map_observation(lambda leaf: leaf[steps, columns].to(device), staged.observation)
            staged.value[steps, columns] = self.policy.values_in_chunks(observation, len(steps)).cpu()

    def _hand_out(self) -> None:
        """Move the first full columns into the rollout, and account for them."""
        chosen, self._full = self._full[: self.num_columns], self._full[self.num_columns :]
        for column, _ in chosen:  # its last observation is the first one of the column that goes on from it
            self._staged.value[-1, column] = self._staged.value[0, self._continued.pop(column)]
        rounds = _rounds([copy for _, copy in chosen])
        order = sorted(range(len(chosen)), key=lambda place: (rounds[place], chosen[place][1]))
        columns = [chosen[place][0] for place in order]
        self.rollout_copies = copies = np.array([chosen[place][1] for place in order], np.int64)
        rollout = self.rollout
        take_columns(self._staged, torch.tensor(columns), rollout)
        self._free += columns
        episodes = []
        rewards = []
        for number in range(max(rounds) + 1):
            first = sum(place < number for place in rounds)
            last = first + rounds.count(number)
            part = rollout.columns(first, last)
            self._accounts.add(part, copies[first:last])
            episodes.append(self._accounts.episodes)
            apply_reward_transforms(self.policy, part, copies[first:last], self.num_envs)
            rewards.append(part.reward)
        rollout.reward = rollout.env_reward if not len(self.policy.transforms) else torch.cat(rewards, 1)
        rollout.num_valid = int(rollout.valid.sum())
        self._accounts.episodes = FinishedEpisodes.joined(episodes)
        oldest = rollout.policy_version[rollout.valid]
        self.staleness = self.policy_version - int(oldest.min()) if len(oldest) else 0


class _StepArrays:
    """Single steps of single columns of a rollout, as arrays.

    Args:
        rollout: read from and written to.
    """

    def __init__(self, rollout: Rollout) -> None:
        observation = rollout.observation
        self._is_dict = isinstance(observation, dict)
        leaves = observation if isinstance(observation, dict) else {"": observation}
        self._leaves = {key: leaf.numpy() for key, leaf in leaves.items()}
        self._mask = None if rollout.action_mask is None else rollout.action_mask.numpy()
        self._reward, self._terminated = rollout.env_reward.numpy(), rollout.terminated.numpy()
        self._truncated, self._valid = rollout.truncated.numpy(), rollout.valid.numpy()
        self._action, self._params = rollout.action.numpy(), rollout.params.numpy()
        self._version, self._value = rollout.policy_version.numpy(), rollout.value.numpy()

    def write_seen(self, slot: StepSlot, ids: np.ndarray, steps: np.ndarray, columns: np.ndarray) -> None:
        """Write observations and masks."""
        for key, leaf in self._leaves.items():
            leaf[steps, columns] = (slot.observation[key] if isinstance(slot.observation, dict) else slot.observation)[
                ids
            ]
        if self._mask is not None:
            assert slot.action_mask is not None
            self._mask[steps, columns] = slot.action_mask[ids]

    def write_outcome(self, slot: StepSlot, ids: np.ndarray, steps: np.ndarray, columns: np.ndarray) -> None:
        """Write rewards and how the step counts."""
        self._reward[steps, columns] = slot.reward[ids]
        self._terminated[steps, columns] = slot.terminated[ids]
        self._truncated[steps, columns] = slot.truncated[ids]
        self._valid[steps, columns] = slot.valid[ids]

    def write_choice(self, acted: Acted, version: int, steps: np.ndarray, columns: np.ndarray) -> None:
        """Write what the policy chose."""
        self._action[steps, columns] = acted.action
        self._params[steps, columns] = acted.params
        self._version[steps, columns] = version
        if acted.value is not None:
            self._value[steps, columns] = acted.value

    def carry_over(self, full: int, fresh: int) -> None:
        """Make what was seen last in one column the first of another."""
        for leaf in self._leaves.values():
            leaf[0, fresh] = leaf[-1, full]
        if self._mask is not None:
            self._mask[0, fresh] = self._mask[-1, full]

    def seen(self, steps: np.ndarray, columns: np.ndarray) -> tuple[ObservationTensor, Tensor | None]:
        """Return observations and masks, copied."""
        leaves = {key: torch.from_numpy(leaf[steps, columns]) for key, leaf in self._leaves.items()}
        mask = None if self._mask is None else torch.from_numpy(self._mask[steps, columns])
        return (leaves if self._is_dict else leaves[""]), mask


def _rows_of(slot: StepSlot, ids: np.ndarray) -> tuple[ObservationTensor, Tensor | None]:
    """Return observations and masks of some environments, copied."""
    observation: ObservationTensor
    if isinstance(slot.observation, dict):
        observation = {key: torch.from_numpy(leaf[ids]) for key, leaf in slot.observation.items()}
    else:
        observation = torch.from_numpy(slot.observation[ids])
    return observation, None if slot.action_mask is None else torch.from_numpy(slot.action_mask[ids])


def _rounds(copies: list[int]) -> list[int]:
    """Return how often each copy has come before: columns of one round are of different copies."""
    seen: dict[int, int] = {}
    rounds = []
    for copy in copies:
        rounds.append(seen.get(copy, 0))
        seen[copy] = rounds[-1] + 1
    return rounds
