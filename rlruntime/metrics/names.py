"""Every name that the runtime's metrics bear: in Prometheus, and in the records of ``metrics.jsonl``."""

from __future__ import annotations

from rlruntime.metrics.family import PROCESS, Family, by_name

_PHASE_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

# Prometheus. Counters count what this process did; gauges speak of the job, whatever process began it.

_AN_EPISODE = "an episode has ended"
_AN_EVALUATION = "an evaluation has ended"
_WORKERS = "environments are stepped by a collector of their own: `SyncProcess`, `AsyncProcess` or `AsyncEnv`"
_REPLAY = "there is a replay buffer: SAC, TD3, DQN"

BUILD_INFO = Family("rljob_build_info", "gauge", "1, with the version of the runtime as a label.", ("version",))
FRAMES_TOTAL = Family("rljob_frames_total", "counter", "Valid decisions of environments.")
ITERATIONS_TOTAL = Family("rljob_iterations_total", "counter", "Iterations of collecting and learning.")
EPISODES_TOTAL = Family("rljob_episodes_total", "counter", "Training episodes that ended.")
UPDATES_TOTAL = Family("rljob_updates_total", "counter", "Optimiser steps.", when="a step was taken")
EVALUATIONS_TOTAL = Family("rljob_evaluations_total", "counter", "Evaluations that ended, the final one left out.")
CHECKPOINTS_TOTAL = Family("rljob_checkpoints_total", "counter", "Checkpoints that were written.")
PROGRESS_FRAMES = Family("rljob_progress_frames", "gauge", "Frames of the job, those of earlier attempts included.")
TARGET_FRAMES = Family("rljob_target_frames", "gauge", "Frames after which training ends.")
FRAMES_PER_SECOND = Family(
    "rljob_frames_per_second", "gauge", "Frames per second of the last iteration.", when="an iteration has ended"
)
EPISODE_REWARD = Family(
    "rljob_episode_reward", "gauge", "Mean reward of the last 100 training episodes.", when=_AN_EPISODE
)
EPISODE_LENGTH_STEPS = Family(
    "rljob_episode_length_steps", "gauge", "Mean length of the last 100 training episodes, in steps.", when=_AN_EPISODE
)
EVALUATION_REWARD = Family(
    "rljob_evaluation_reward", "gauge", "Mean reward of the last evaluation.", when=_AN_EVALUATION
)
LEARNER_VALUE = Family(
    "rljob_learner_value",
    "gauge",
    "What the learner says of its last update, such as a loss; at most 64 names.",
    ("name",),
    when="the learner has said something",
)
PHASE_SECONDS = Family(
    "rljob_phase_seconds",
    "histogram",
    "Seconds of a phase in one iteration. Phases exclude each other: the rates of their sums add up to the wall time.",
    ("phase",),
    when="the phase has taken time",
    buckets=_PHASE_BUCKETS_S,
)
PHASE_PART_SECONDS_TOTAL = Family(
    "rljob_phase_part_seconds_total",
    "counter",
    "Seconds of a part of a phase. The phase `workers` is no time of this process: it sums that of worker processes.",
    ("phase", "part"),
    when="the part has taken time",
)
LAST_ITERATION_TIMESTAMP_SECONDS = Family(
    "rljob_last_iteration_timestamp_seconds",
    "gauge",
    "When the last iteration or evaluation ended, in Unix time.",
    when="one has ended",
)
LAST_CHECKPOINT_TIMESTAMP_SECONDS = Family(
    "rljob_last_checkpoint_timestamp_seconds",
    "gauge",
    "When this process last wrote a checkpoint, in Unix time.",
    when="it has written one",
)
WEIGHT_STALENESS_VERSIONS = Family(
    "rljob_weight_staleness_versions",
    "gauge",
    "Publications of weights that lie between the oldest action of the last rollout and its turn to be learned from.",
    when=_WORKERS,
)
WEIGHT_PUBLICATIONS_TOTAL = Family(
    "rljob_weight_publications_total",
    "counter",
    "Publications of weights. Their seconds are the phase `sync`.",
    when=_WORKERS,
)
WEIGHT_SYNC_BYTES_TOTAL = Family(
    "rljob_weight_sync_bytes_total",
    "counter",
    "Bytes of the weights that were published, once for each publication, however many take them.",
    when="weights are published to worker processes: `SyncProcess` or `AsyncProcess`",
)
ROWS_DROPPED_TOTAL = Family(
    "rljob_rows_dropped_total",
    "counter",
    "Rows that were collected and never learned from.",
    ("cause",),
    when="the collector is `AsyncProcess`",
)
ENV_WORKER_RESTARTS_TOTAL = Family(
    "rljob_env_worker_restarts_total",
    "counter",
    "Processes of environments that failed and were replaced.",
    when="`env.restartWorkers` is set, with the collector `Inline`",
)
REPLAY_ROWS = Family("rljob_replay_rows", "gauge", "Rows in the replay buffer.", when=_REPLAY)
REPLAY_FILL_RATIO = Family(
    "rljob_replay_fill_ratio", "gauge", "Rows in the replay buffer as a share of its capacity, 0 to 1.", when=_REPLAY
)
REPLAY_OLDEST_ROW_AGE_SECONDS = Family(
    "rljob_replay_oldest_row_age_seconds",
    "gauge",
    "Since when the replay buffer holds its oldest row; for rows of an earlier process, since this one's first record.",
    when=_REPLAY,
)

FAMILIES = by_name(
    *(value for value in list(globals().values()) if isinstance(value, Family)),
    *PROCESS,
)
"""All that a pod exports."""

LABELS = {
    "version": "of the package",
    "name": "`loss/...`, `policy/...`, `critic/...` or `optim/...`, as in `metrics.jsonl`; the first 64 that come",
    "phase": "`start`, `collect`, `learn`, `sync`, `evaluate`, `checkpoint`, `snapshot`, `log`; `workers` for parts",
    "part": "`env`, `policy`, `write`, `wait`, ...: as in `metrics.jsonl`, behind the slash; 64 with their phases",
    "cause": "`stale`: older than the collector's `maxStaleness`",
}
"""What the labels mean. Their values are bounded, whatever a job does."""

# Records: one flat mapping per iteration. A key may be absent.
ITERATION = "iteration"
FRAMES = "frames"
EPISODES = "episodes"
EPISODE_REWARD_MEAN = "train/episode_reward_mean"
EPISODE_LENGTH_MEAN = "train/episode_length_mean"
EVALUATION_REWARD_MEAN = "evaluation/reward_mean"
EVALUATION_REWARD_STD = "evaluation/reward_std"
EVALUATION_EPISODES = "evaluation/episodes"
EVALUATION_FRAMES = "evaluation/frames"
"""Those of what was evaluated, where training went on meanwhile; absent where they are the record's own."""
OPTIMISER_STEPS = "optim/steps"
STALENESS = "collect/staleness"
DROPPED_PREFIX = "collect/dropped_"
ENV_RESTARTS = "collect/env_restarts"
SYNC_PUBLICATIONS = "sync/publications"
SYNC_BYTES = "sync/bytes"
ROWS_AT_HAND = "replay/rows"
ROWS_WRITTEN = "replay/written"
REPLAY_FILL = "replay/fill"
TIME_FRAMES_PER_SECOND = "time/frames_per_second"
TIME_ELAPSED_S = "time/elapsed_s"

TIME_PREFIX = "time/"
"""Fields that may differ between two runs of one seed; no others may."""

LEARNER_PREFIXES = ("loss/", "policy/", "critic/", "optim/")
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
