"""The counters of a run, and when what is due."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # with numpy, which those that only watch a run don't need
    from rlruntime.collectors.episodes import FinishedEpisodes

_RECENT_EPISODES = 100


@dataclass
class Progress:
    """What a run remembers besides its parameters.

    Attributes:
        iteration: iterations finished.
        frames: valid decisions collected.
        episodes: training episodes that ended.
        num_records: lines of ``metrics.jsonl``.
        evaluations: evaluations that ended.
        checkpoints: checkpoints written.
        next_evaluation, next_checkpoint: frames at which the next is due; None for never.
        best_reward: best mean of an evaluation; None before the first.
        without_better: evaluations since the best one.
        last_reward: mean of the last evaluation.
        stop_goal: the reward to stop at that was reached, if it was.
        stop_reason, stop_message: why the run is to end before its last frame; empty while it isn't.
        recent_returns, recent_lengths: of the last 100 training episodes.
    """

    iteration: int = 0
    frames: int = 0
    episodes: int = 0
    num_records: int = 0
    evaluations: int = 0
    checkpoints: int = 0
    next_evaluation: int | None = None
    next_checkpoint: int | None = None
    best_reward: float | None = None
    without_better: int = 0
    last_reward: float | None = None
    stop_goal: float | None = None
    stop_reason: str = ""
    stop_message: str = ""
    recent_returns: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_EPISODES))
    recent_lengths: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT_EPISODES))

    def add_episodes(self, episodes: FinishedEpisodes) -> None:
        """Count episodes that ended."""
        self.episodes += len(episodes.returns)
        self.recent_returns.extend(episodes.returns.tolist())
        self.recent_lengths.extend(episodes.lengths.tolist())

    def episode_means(self) -> dict[str, float]:
        """Return mean reward and length of recent episodes as record fields; none before the first episode ended."""
        if not self.recent_returns:
            return {}
        return {
            "train/episode_reward_mean": sum(self.recent_returns) / len(self.recent_returns),
            "train/episode_length_mean": sum(self.recent_lengths) / len(self.recent_lengths),
        }

    def add_evaluation(self, mean: float) -> None:
        """Count an evaluation."""
        self.evaluations += 1
        self.last_reward = mean
        if self.best_reward is None or mean > self.best_reward:
            self.best_reward, self.without_better = mean, 0
        else:
            self.without_better += 1

    def reaches(self, goal: float | None) -> bool:
        """Return whether the last evaluation reached a mean, where there is one to reach."""
        return goal is not None and self.last_reward is not None and self.last_reward >= goal

    def forget_reward_reached(self) -> None:
        """Go on although a reward to stop at was reached: it is another one now."""
        self.stop_goal = None
        if self.stop_reason == "RewardReached":
            self.stop_reason = self.stop_message = ""

    def state_dict(self) -> dict[str, Any]:
        """Return all of it."""
        state = asdict(self)
        state["recent_returns"], state["recent_lengths"] = list(self.recent_returns), list(self.recent_lengths)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        for item in fields(self):
            if item.name in ("recent_returns", "recent_lengths"):
                setattr(self, item.name, deque(state[item.name], maxlen=_RECENT_EPISODES))
            elif item.name in state:  # an older state lacks a counter that came later
                setattr(self, item.name, state[item.name])


def next_due(previous: int | None, every: int | None, frames: int) -> int | None:
    """Return the first multiple of ``every`` above ``frames``; a threshold that was passed triggers once, however
    far.
    """
    if every is None:
        return None
    return max(previous or 0, (frames // every + 1) * every)


def first_due(restored: int | None, every: int | None, frames: int) -> int | None:
    """Return when something is due first, given when it was in the state that is gone on from: that, but no later than
    the next multiple of ``every``, and never where ``every`` is None.
    """
    due = next_due(None, every, frames)
    return due if due is None or restored is None else min(restored, due)
