"""On policy: an iteration is one rollout of the current policy, and the update from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlruntime.collectors.episodes import FinishedEpisodes
from rlruntime.collectors.inline import InlineCollector
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.spec.training.training import TrainingSpec
from rlruntime.trainers.algorithms.ppo import PPO
from rlruntime.trainers.checkpoint import ComponentRecord, ResumeClass
from rlruntime.trainers.methods.collecting import Collecting, Environments
from rlruntime.trainers.methods.method import Hooks
from rlruntime.trainers.methods.state import capture_parts, component_records, restore_parts


class OnPolicy:
    """PPO with any collector; see `Method`.

    Args:
        training: the effective section of the manifest.
        environments: as `open_environments` returned them; closed by `close`.
        policy: learns in place.
        hooks: who is told.
        timers: told the phases.
    """

    def __init__(
        self,
        training: TrainingSpec,
        environments: Environments,
        policy: ActorCritic,
        hooks: Hooks,
        timers: PhaseTimers,
    ) -> None:
        assert training.ppo is not None
        self.training, self.policy, self.hooks = training, policy, hooks
        self.algorithm = PPO(
            training.ppo,
            policy,
            seed=training.seed,
            on_minibatch=hooks.batch,
            before_step=hooks.before_step,
            timers=timers.within("learn"),
        )
        self._collecting = Collecting(
            training,
            environments,
            policy,
            inline=InlineCollector,
            num_steps=training.ppo.num_steps,
            hooks=hooks,
            timers=timers,
        )
        self.collector = self._collecting.collector

    @property
    def num_frames(self) -> int:
        """See `Method`."""
        return self.collector.num_frames

    def start(self) -> None:
        """See `Method`."""
        self.collector.start()

    def iterate(self, progress: float, timers: PhaseTimers) -> tuple[dict[str, float], FinishedEpisodes]:
        """See `Method`."""
        with timers("collect"):
            rollout = self._collecting.collect()
        if self.hooks.rollout is not None:
            self.hooks.rollout(rollout)
        self.hooks.phase("learn")
        with timers("learn"):
            metrics = self.algorithm.update(rollout, progress)
            self.collector.update_transforms()
        self._collecting.publish()
        return {**metrics, **self._collecting.flush()}, self.collector.episodes

    def components(self) -> dict[str, ComponentRecord]:
        """See `Method`."""
        return component_records(self.training, self.policy, self.algorithm)

    def capture(self, *, copy: bool) -> tuple[dict[str, Any], ResumeClass]:
        """See `Method`."""
        return capture_parts(self.policy, self.algorithm, self.collector)

    @property
    def state_bytes(self) -> int:
        """See `Method`."""
        return 3 * sum(parameter.numel() * parameter.element_size() for parameter in self.policy.parameters())

    def restore(self, state: Mapping[str, Any], *, environments: bool, restart_seeds: Sequence[int]) -> ResumeClass:
        """See `Method`."""
        return restore_parts(
            state, self.algorithm, self.collector, environments=environments, restart_seeds=restart_seeds
        )

    def close(self) -> None:
        """See `Method`."""
        self.collector.close()
