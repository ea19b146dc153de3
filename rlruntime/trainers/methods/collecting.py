"""Collecting, as every method does it: told to who listens, timed, published to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rlruntime.collectors.inline import InlineCollector
from rlruntime.collectors.make import make_collector
from rlruntime.collectors.protocol import Collector, CollectorStats
from rlruntime.collectors.rollout import Rollout
from rlruntime.envs.process_pool import ProcessPool
from rlruntime.envs.protocol import EnvSpaces, VectorEnv
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.training import TrainingSpec
from rlruntime.trainers.methods.method import Hooks
from rlruntime.transforms.environment import TransformedEnv
from rlruntime.transforms.staging import make_transformed_env

INLINE, _ASYNC_ENV = "Inline", "AsyncEnv"
_PUBLISHES = ("SyncProcess", "AsyncProcess")
"""Collectors whose worker processes have copies of the policy."""


class Environments(NamedTuple):
    """What a policy is made for.

    Attributes:
        spaces: behind the transforms that work in environments.
        env: all copies, where this process steps them; None where the collector makes its own.
    """

    spaces: EnvSpaces
    env: VectorEnv | None

    def close(self) -> None:
        """Close the copies, if they are here."""
        if self.env is not None:
            self.env.close()


def open_environments(training: TrainingSpec) -> Environments:
    """Return the environments of a job, or where other processes step them, their spaces.

    Raises:
        ConfigError: they can't be built.
        EnvironmentFault: one failed as it was built.
    """
    if training.collector.type == INLINE:
        env = make_transformed_env(training.env)
        return Environments(env.spaces, env)
    probe = make_transformed_env(training.env, num_envs=1)
    try:
        return Environments(probe.spaces, None)
    finally:
        probe.close()


class Collecting:
    """A collector of a method.

    Args:
        training: the effective section of the manifest.
        environments: as `open_environments` returned them.
        policy: acts.
        inline: class of the collector `Inline`, which steps ``environments.env``.
        num_steps: `T`.
        random_frames: frames at the beginning whose actions are drawn uniformly.
        hooks: who is told.
        timers: told the phases.

    Attributes:
        collector: what collects.
    """

    def __init__(
        self,
        training: TrainingSpec,
        environments: Environments,
        policy: Policy,
        *,
        inline: type[InlineCollector],
        num_steps: int,
        random_frames: int = 0,
        hooks: Hooks,
        timers: PhaseTimers,
    ) -> None:
        self.hooks, self.timers = hooks, timers
        self.is_inline = environments.env is not None
        self.collector: Collector
        if environments.env is not None:
            self.collector = inline(
                environments.env, policy, num_steps=num_steps, seed=training.seed, random_frames=random_frames
            )
        else:
            self.collector = make_collector(
                training.collector,
                training.env,
                policy,
                num_steps=num_steps,
                seed=training.seed,
                random_frames=random_frames,
            )
        self._before = self.collector.stats()
        self._acts_here = self.is_inline or training.collector.type == _ASYNC_ENV
        self._pool = _process_pool(environments.env) if training.env.restart_workers else None
        self._restarts = self._publications = 0
        self._weight_bytes = weight_bytes(policy) if training.collector.type in _PUBLISHES else 0
        self._staleness = 0

    def collect(self) -> Rollout:
        """Return the next rollout."""
        self.hooks.phase("collect")
        rollout = self.collector.collect()
        assert rollout is not None  # no collector of a method writes into a buffer by itself
        self._staleness = max(self._staleness, getattr(self.collector, "staleness", 0))
        return rollout

    def publish(self) -> None:
        """Make what has been learned act, with the statistics of the last rollout."""
        with self.timers("sync"):
            self.collector.publish()
        self._publications += 1

    def flush(self) -> dict[str, float]:
        """Add the time within `collect` to the timers, and return metrics; both since the last call."""
        now, before = self.collector.stats(), self._before
        self._before = now
        for name, seconds in now.seconds.items():
            if name == "sync":
                continue  # in `publish` for who learns; what workers take of theirs is in their own time
            where = "collect" if self._acts_here or name == "wait" else "workers"
            self.timers.add(f"{where}/{name}", seconds - before.seconds[name])
        staleness, self._staleness = self._staleness, 0
        return self._of_restarts() if self.is_inline else {**_metrics(now, before, staleness), **self._of_weights()}

    def _of_weights(self) -> dict[str, float]:
        count, self._publications = self._publications, 0
        published = {"sync/publications": float(count)}
        return {**published, "sync/bytes": float(count * self._weight_bytes)} if self._weight_bytes else published

    def _of_restarts(self) -> dict[str, float]:
        if self._pool is None:
            return {}
        before, self._restarts = self._restarts, self._pool.restarts
        return {"collect/env_restarts": float(self._restarts - before)}


def weight_bytes(policy: Policy) -> int:
    """Return how much a publication of a policy's weights carries."""
    return sum(value.numel() * value.element_size() for value in policy.state_dict().values())


def _process_pool(env: VectorEnv | None) -> ProcessPool | None:
    """Return what steps the copies, where processes do."""
    while isinstance(env, TransformedEnv):
        env = env.env
    return env if isinstance(env, ProcessPool) else None


def _metrics(now: CollectorStats, before: CollectorStats, staleness: int) -> dict[str, float]:
    dropped: Mapping[str, int] = now.dropped
    return {
        "collect/staleness": float(staleness),  # the largest of the iteration's rollouts
        **{f"collect/dropped_{cause}": float(rows - before.dropped.get(cause, 0)) for cause, rows in dropped.items()},
    }
