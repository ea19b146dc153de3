"""Every name that the runtime's metrics bear: in Prometheus, and in the records of ``metrics.jsonl``."""

from __future__ import annotations

# Prometheus. Counters count what this process did; gauges speak of the job, whatever process began it.
FRAMES_TOTAL = "rljob_frames_total"
ITERATIONS_TOTAL = "rljob_iterations_total"
EPISODES_TOTAL = "rljob_episodes_total"
EVALUATIONS_TOTAL = "rljob_evaluations_total"
CHECKPOINTS_TOTAL = "rljob_checkpoints_total"
PROGRESS_FRAMES = "rljob_progress_frames"
TARGET_FRAMES = "rljob_target_frames"
PHASE_SECONDS = "rljob_phase_seconds"
FRAMES_PER_SECOND = "rljob_frames_per_second"
EPISODE_REWARD = "rljob_episode_reward"
EPISODE_LENGTH_STEPS = "rljob_episode_length_steps"
EVALUATION_REWARD = "rljob_evaluation_reward"
LEARNER_VALUE = "rljob_learner_value"
LAST_ITERATION_TIMESTAMP_SECONDS = "rljob_last_iteration_timestamp_seconds"
INFO = "rljob_build_info"

# Records: one flat mapping per iteration. A key may be absent.
ITERATION = "iteration"
FRAMES = "frames"
EPISODES = "episodes"
EPISODE_REWARD_MEAN = "train/episode_reward_mean"
EPISODE_LENGTH_MEAN = "train/episode_length_mean"
EVALUATION_REWARD_MEAN = "evaluation/reward_mean"
EVALUATION_REWARD_STD = "evaluation/reward_std"
EVALUATION_EPISODES = "evaluation/episodes"
TIME_FRAMES_PER_SECOND = "time/frames_per_second"
TIME_ELAPSED_S = "time/elapsed_s"

TIME_PREFIX = "time/"
"""Fields that may differ between two runs of one seed; no others may."""

LEARNER_PREFIXES = ("loss/", "policy/", "optim/")
"""Fields that describe the learner."""


def phase_of(key: str) -> str | None:
    """Return the phase whose seconds a field of a record holds: ``collect`` of ``time/collect_s``; else None."""
    if key.startswith(TIME_PREFIX) and key.endswith("_s") and key != TIME_ELAPSED_S:
        return key[len(TIME_PREFIX) : -len("_s")]
    return None


def whole_phase_of(key: str) -> str | None:
    """Return what `phase_of` does, but None for the part of a phase, such as ``collect/env``: it is within
    ``collect``.
    """
    phase = phase_of(key)
    return None if phase is None or "/" in phase else phase
