"""Off policy: steps of the environments go into a replay buffer, and updates draw from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from torch import Tensor

from rlruntime.collectors.episodes import FinishedEpisodes
from rlruntime.collectors.transitions import TransitionCollector, TransitionRows
from rlruntime.errors import ConfigError
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.policy import Policy
from rlruntime.seeding import SAMPLER, stream_seed
from rlruntime.spec.training.storages import TRAJECTORY_KEY
from rlruntime.spec.training.training import TrainingSpec
from rlruntime.storages.batch import Batch
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.lists import ListStorage
from rlruntime.storages.staleness import StalenessBoundedSampler
from rlruntime.storages.writers import ImmutableWriter
from rlruntime.trainers.algorithms.dqn import DQN
from rlruntime.trainers.algorithms.learner import Learner
from rlruntime.trainers.algorithms.sac import SAC
from rlruntime.trainers.algorithms.td3 import TD3
from rlruntime.trainers.checkpoint import ComponentRecord, ResumeClass
from rlruntime.trainers.methods.collecting import Collecting, Environments
from rlruntime.trainers.methods.method import Hooks
from rlruntime.trainers.methods.row_transforms import RowTransforms, check_rewards, example_rows
from rlruntime.trainers.methods.state import capture_parts, component_records, restore_parts
from rlruntime.trainers.state_tree import snapshot_tree

LEARNERS: dict[str, Callable[..., Learner]] = {"SAC": SAC, "TD3": TD3, "DQN": DQN}
"""By the manifest's name of the algorithm."""

_REPLAY_FIELD = "spec.training.replay"


class _AddedColumns(TypedDict):
    """What rows have besides; see `transitions`."""

    with_trajectory: bool
    version_key: str | None


class OffPolicy:
    """SAC, TD3 or DQN with replay; see `Method`.

    An iteration is ``iterationFrames`` frames: `trainEverySteps` steps of every copy, their rows into the buffer, and,
    once ``randomFrames`` are collected, ``updateToData`` updates a frame, over and over.

    Args:
        training: the effective section of the manifest.
        environments: as `open_environments` returned them; closed by `close`.
        policy: learns in place.
        hooks: who is told.
        timers: told the phases of an update.

    Attributes:
        buffer: what was experienced; rewards and observations as the environments gave them.
        num_updates: optimiser steps so far.
    """

    def __init__(
        self, training: TrainingSpec, environments: Environments, policy: Policy, hooks: Hooks, timers: PhaseTimers
    ) -> None:
        assert training.replay is not None
        config = training.sac or training.td3 or training.dqn
        assert config is not None
        self.training, self.config, self.policy, self.hooks = training, config, policy, hooks
        self.algorithm = LEARNERS[training.algorithm](
            config, policy, seed=training.seed, timers=timers.within("learn"), before_step=hooks.before_step
        )
        self.row_transforms = RowTransforms(training.replay.transforms, environments.spaces, policy.distribution)
        sums_steps = training.replay.n_step is not None
        check_rewards(policy.transforms, sums_steps=sums_steps)
        for read in self.row_transforms.read:
            check_rewards(read.transforms, sums_steps=sums_steps)
        self.buffer = ReplayBuffer.from_config(
            training.replay,
            seed=stream_seed(training.seed, SAMPLER),
            field=_REPLAY_FIELD,
            write_transforms=self.row_transforms.write,
            read_transforms=self.row_transforms.read,
        )
        followers = (training.replay.n_step, training.replay.hindsight)
        self._bounded = self.buffer.sampler if isinstance(self.buffer.sampler, StalenessBoundedSampler) else None
        added = _AddedColumns(
            with_trajectory=any(part is not None and part.trajectory_key == TRAJECTORY_KEY for part in followers),
            version_key=None if self._bounded is None else self._bounded.config.version_key,
        )
        try:
            rows = example_rows(environments.spaces, policy.distribution, **added)
        except ConfigError as error:
            raise error.within(f"{_REPLAY_FIELD}.sampler.config") from None
        self._check_replay(rows)
        self._rows = TransitionRows(**added)
        self._collecting = Collecting(
            training,
            environments,
            policy,
            inline=TransitionCollector,
            num_steps=config.train_every_steps,
            random_frames=config.random_frames,
            hooks=hooks,
            timers=timers,
        )
        self.collector = self._collecting.collector
        self.num_updates = 0
        self._updates_due = 0.0

    def _check_replay(self, rows: Mapping[str, Tensor]) -> None:
        """Refuse a buffer that ``rows`` couldn't be written into, or not be learned from."""
        buffer, replay, name = self.buffer, self.training.replay, self.training.algorithm
        assert replay is not None
        for refused, part, problem, remedy in (
            (
                buffer.sampler.rows_together > 1,
                "sampler",
                f"{name} learns from single rows, not from slices or groups of them",
                "use Uniform, Prioritized or WithoutReplacement",
            ),
            (
                isinstance(buffer.storage, ListStorage),
                "storage",
                "a List storage takes lists of objects, and a collector gives columns",
                "use Tensor, SharedTensor or MemoryMapped",
            ),
            (
                isinstance(buffer.writer, ImmutableWriter),
                "writer",
                "an Immutable writer takes none of the rows that are collected",
                "use RoundRobin or MaxValue",
            ),
        ):
            if refused:
                kind = getattr(replay, part).type
                raise ConfigError(problem, field=f"{_REPLAY_FIELD}.{part}.type", value=kind, remedy=remedy)
        if buffer.sampler.consumes and self.config.update_to_data * replay.batch_size > 1:
            raise ConfigError(
                f"updates would consume more rows than are collected: {replay.batch_size} each",
                field=f"spec.training.{name.lower()}.updateToData",
                value=self.config.update_to_data,
                remedy=f"set it to at most {1 / replay.batch_size:g}, or use another sampler",
            )

        try:
            buffer.check_columns(rows)
        except ConfigError as error:
            raise error.within(_REPLAY_FIELD) from None

    @property
    def num_frames(self) -> int:
        """See `Method`."""
        return self.collector.num_frames

    def start(self) -> None:
        """See `Method`."""
        self.collector.start()

    def iterate(self, progress: float, timers: PhaseTimers) -> tuple[dict[str, float], FinishedEpisodes]:
        """See `Method`."""
        collector, updates_before = self.collector, self.num_updates
        until = min(collector.num_frames + self.config.iteration_frames, self.training.total_frames)
        episodes: list[FinishedEpisodes] = []
        collect, write, learn = timers("collect"), timers("collect/write"), timers("learn")
        while collector.num_frames < until:
            frames_before = collector.num_frames
            self.algorithm.schedule(frames_before / self.training.total_frames)
            self.buffer.sampler.schedule(frames_before / self.training.total_frames)
            with collect:
                rollout = self._collecting.collect()
                if len(collector.episodes.returns):
                    episodes.append(collector.episodes)
                with write:
                    self.buffer.extend(self._rows(rollout))
                collector.update_transforms()
            if self.hooks.rollout is not None:
                self.hooks.rollout(rollout)
            if collector.num_frames > self.config.random_frames:
                self._updates_due += (collector.num_frames - frames_before) * self.config.update_to_data
                self.hooks.phase("learn")
                with learn:
                    self._learn(timers)
                self._collecting.publish()
        metrics = {
            **self.algorithm.metrics(),
            "optim/steps": float(self.num_updates - updates_before),
            **self._replay_metrics(),
            **({} if self._bounded is None else {"replay/left_out": float(self._bounded.num_left_out)}),
            **self._collecting.flush(),
        }
        return metrics, FinishedEpisodes.joined(episodes)

    def _learn(self, timers: PhaseTimers) -> None:
        """Do the updates that are due."""
        buffer, algorithm, sample = self.buffer, self.algorithm, timers("learn/sample")
        prioritised = buffer.sampler.has_priorities
        if self._bounded is not None:
            self._bounded.current_version = self.collector.stats().policy_version
        while self._updates_due >= 1.0:
            with sample:
                batch = self._transformed(buffer.sample())
            if self.hooks.batch is not None:
                self.hooks.batch(batch)
            algorithm.update(batch)
            if prioritised:
                with sample:
                    buffer.update_priorities(batch.positions, algorithm.td_error().abs())
            self.num_updates += 1
            self._updates_due -= 1.0

    def _replay_metrics(self) -> dict[str, float]:
        """Return how full the buffer is, and what was ever written into it."""
        rows = float(len(self.buffer))
        return {
            "replay/rows": rows,
            "replay/written": float(self.buffer.num_written),
            "replay/fill": rows / self.buffer.storage.capacity,
        }

    def _transformed(self, batch: Batch) -> Batch:
        """Give a batch the rewards to learn from; what is stored stays as the environments gave it."""
        reward: Tensor = batch["next.reward"]
        for transform in self.policy.transforms:
            reward = transform.map_reward(reward)  # type: ignore[operator]
        batch.extra["next.reward"] = reward
        return batch

    def components(self) -> dict[str, ComponentRecord]:
        """See `Method`."""
        return component_records(self.training, self.policy, self.algorithm)

    def capture(self, *, copy: bool) -> tuple[dict[str, Any], ResumeClass]:
        """See `Method`."""
        state, resume_class = capture_parts(self.policy, self.algorithm, self.collector)
        state["replay"] = self.buffer.snapshot() if copy else self.buffer.state_dict(copy=False)
        if self.row_transforms.modules.state_dict():
            state["row_transforms"] = snapshot_tree(self.row_transforms.modules.state_dict())
        state["updates"] = {"done": self.num_updates, "due": self._updates_due}
        return state, resume_class

    @property
    def state_bytes(self) -> int:
        """See `Method`."""
        layout = self.buffer.storage.layout
        return 0 if layout is None else len(self.buffer) * layout.row_bytes

    def restore(self, state: Mapping[str, Any], *, environments: bool, restart_seeds: Sequence[int]) -> ResumeClass:
        """See `Method`."""
        self.buffer.load_state_dict(state["replay"])
        self.row_transforms.modules.load_state_dict(state.get("row_transforms", {}))
        self.num_updates, self._updates_due = int(state["updates"]["done"]), float(state["updates"]["due"])
        return restore_parts(
            state, self.algorithm, self.collector, environments=environments, restart_seeds=restart_seeds
        )

    def close(self) -> None:
        """See `Method`."""
        self.buffer.close()
        self.collector.close()
