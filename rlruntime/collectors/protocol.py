"""What all collectors have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlruntime.collectors.episodes import FinishedEpisodes
from rlruntime.collectors.rollout import Rollout
from rlruntime.policies.policy import Policy


@dataclass(frozen=True)
class CollectorStats:
    """What a collector did so far.

    Attributes:
        frames: valid rows that were handed out.
        steps: steps of single copies that were taken, handed out or not.
        policy_version: last one published.
        seconds: by phase, where it was spent: ``env`` and ``policy`` (of all workers together), ``write`` (into a
            replay buffer), ``sync`` (publishing and acquiring weights), ``wait`` (of the learner for data).
        staleness: of the last rollout, in publications: the version published last minus the oldest in the rollout.
        dropped: rows that were collected and not handed out, by cause.
        held_back: times that a worker was not asked for more, so that nothing becomes too stale.
        batches: passes of the policy, where it acts for whoever is ready.
    """

    frames: int
    steps: int
    policy_version: int
    seconds: Mapping[str, float]
    staleness: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    held_back: int = 0
    batches: int = 0


class Collector(Protocol):
    """Steps environments with a policy. For use by one thread.

    The environments of copy `i` draw from the same seed whatever the collector and its number of workers. A rollout
    that `collect` returned stays as it is until the next call.

    Attributes:
        policy: the learner's; `publish` makes what it has become act.
        num_envs: copies of the environment.
        num_frames: valid rows that were handed out, exactly.
        episodes: those that ended in the last rollout.
    """

    policy: Policy
    num_envs: int

    @property
    def num_frames(self) -> int:
        """Valid rows that were handed out."""

    @property
    def episodes(self) -> FinishedEpisodes:
        """Those that ended in the last rollout."""

    def start(self) -> None:
        """Begin the first episodes, unless there are some already. May be called often."""

    def collect(self) -> Rollout | None:
        """Return the next rollout, or None where rows went into a replay buffer instead.

        Raises:
            EnvironmentFault: an environment or a worker raised, died or took too long.
            RuntimeError: the collector is paused.
        """

    def rollouts(self, total_frames: int) -> Iterator[Rollout | None]:
        """Yield rollouts until ``total_frames`` valid rows are collected, or less than a rollout more.

        Learn from each inside the loop, and publish there: the transforms' statistics move after its body.
        """

    def update_transforms(self) -> None:
        """Move the statistics of the policy's transforms by the last rollout, once it has been learned from."""

    def publish(self) -> int:
        """Make the policy's present weights those that act in rollouts which begin from now on; return their version.

        Raises:
            WeightSyncError: they did not reach a worker.
        """

    def pause(self) -> None:
        """Return once no environment is being stepped; none is until `resume`. May be called twice."""

    def resume(self) -> None:
        """End a pause. May be called twice."""

    def close(self) -> None:
        """End workers and environments, and free memory, within seconds. May be called twice; never raises."""

    def stats(self) -> CollectorStats:
        """Return what was done so far."""

    def snapshot(self) -> list[bytes] | None:
        """Return the state of every environment copy, or None where it can't be had."""

    def restore(self, snapshots: Sequence[bytes]) -> None:
        """Put the environments into states that `snapshot` returned."""

    def state_dict(self) -> dict[str, Any]:
        """Return all but the environments' own state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned; the caller restores the environments."""

    def restart_episodes(self, seeds: Sequence[int], state: dict[str, Any]) -> None:
        """Take over the counters and generators of ``state``, and start new episodes with ``seeds``."""
