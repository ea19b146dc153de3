"""What collectors have in common: they count what they hand out, and move the statistics of transforms by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, NoReturn, TypeVar

from rlruntime.collectors.accounting import Accounts, update_statistics
from rlruntime.collectors.episodes import FinishedEpisodes
from rlruntime.collectors.rollout import Rollout
from rlruntime.policies.policy import Policy

_Collected = TypeVar("_Collected", bound="Rollout | None")


class BaseCollector(Generic[_Collected]):
    """Base of the collectors; see `rlruntime.collectors.protocol.Collector`.

    Args:
        policy: the learner's.
        num_envs: copies of the environment.
        num_steps: `T`.
        random_frames: frames at the beginning whose actions are drawn uniformly.

    Attributes:
        rollout: that is filled, or was handed out last; None where there is none.
    """

    rollout: Rollout | None = None

    def __init__(self, policy: Policy, *, num_envs: int, num_steps: int, random_frames: int) -> None:
        self.policy = policy
        self.num_envs, self.num_steps, self.random_frames = num_envs, num_steps, random_frames
        self._accounts = Accounts(num_envs)
        self._is_paused = False
        self._learned_from = True

    @property
    def num_frames(self) -> int:
        """Valid rows that were handed out."""
        return self._accounts.num_frames

    @property
    def episodes(self) -> FinishedEpisodes:
        """Those that ended in the last rollout."""
        return self._accounts.episodes

    def collect(self) -> _Collected:
        """See `Collector.collect`."""
        raise NotImplementedError

    def rollouts(self, total_frames: int) -> Iterator[_Collected]:
        """Yield rollouts until ``total_frames`` valid rows are collected, or less than a rollout more.

        Learn from each inside the loop: the transforms' statistics move after its body.
        """
        while self.num_frames < total_frames:
            yield self.collect()
            self.update_transforms()

    def update_transforms(self) -> None:
        """Move the statistics of the policy's transforms by the last rollout. Call it once it has been learned from;
        who acts in another process has them with the next publication.
        """
        if not self._learned_from and self.rollout is not None:
            update_statistics(self.policy, self.rollout)
        self._learned_from = True

    def pause(self) -> None:
        """See `Collector.pause`: nothing steps between two rollouts."""
        self._is_paused = True

    def resume(self) -> None:
        """See `Collector.resume`."""
        self._is_paused = False

    @property
    def _acts_at_random(self) -> bool:
        """Whether the random frames at the beginning aren't over."""
        return self.num_frames < self.random_frames

    def _require_running(self) -> None:
        if self._is_paused:
            raise RuntimeError("the collector is paused")

    def _restart_transforms(self) -> None:
        """Every copy begins a new episode: what transforms keep of unfinished ones is gone."""
        for transform in self.policy.transforms:
            transform.restart_episodes()  # type: ignore[operator]


class WithoutSnapshots:
    """Of collectors whose environments don't wait for each other, and so are at no common point."""

    def snapshot(self) -> list[bytes] | None:
        """Return None: environments that don't wait for each other are at no common point."""
        return None

    def restore(self, snapshots: Sequence[bytes]) -> NoReturn:
        """Refuse; see `snapshot`."""
        raise RuntimeError("an asynchronous collector starts its episodes anew; call restart_episodes")
