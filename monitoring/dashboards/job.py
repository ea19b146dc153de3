"""One job: reward, throughput, where its time goes, weights, replay, restarts."""

from __future__ import annotations

from monitoring.grafana import Dashboard, Panel, Query, Row, Variable

_JOB = 'namespace="$namespace", rljob_job="$job"'
_NO_WORKERS = "environments are stepped in the trainer's process"
_ON_POLICY = "the algorithm has no replay buffer"


def _stat(
    title: str, expr: str, unit: str = "short", *, empty: str = "", decimals: int | None = None, name_of: str = ""
) -> Panel:
    legend = f"{{{{{name_of}}}}}" if name_of else ""
    return Panel(
        title,
        (Query(expr, legend),),
        unit,
        kind="stat",
        share=3,
        height=4,
        empty=empty,
        decimals=decimals,
        name_of=name_of,
        low=None,
    )


_UNSAID = "its trainer hasn't said anything yet"

_NOW = (
    _stat("Phase", f"max by (phase) (rljob_job_phase{{{_JOB}}})", name_of="phase"),
    _stat("Progress", f"max(rljob_job_progress_ratio{{{_JOB}}})", "percentunit", empty=_UNSAID, decimals=1),
    _stat("Reward", f"max(rljob_job_reward{{{_JOB}}})", empty=_UNSAID, decimals=1),
    _stat("Best evaluation", f"max(rljob_job_best_reward{{{_JOB}}})", empty="nothing was evaluated", decimals=1),
    _stat("Frames per second", f"max(rljob_job_frames_per_second{{{_JOB}}})", empty="it doesn't run", decimals=0),
    _stat("Remaining", f"max(rljob_job_remaining_seconds{{{_JOB}}})", "s", empty="it doesn't run"),
    _stat("Restarts", f"sum(rljob_job_restarts{{{_JOB}}})", decimals=0),
    _stat(
        "Checkpoint age",
        f"time() - max(rljob_job_checkpoint_timestamp_seconds{{{_JOB}}})",
        "s",
        empty="there is no checkpoint",
    ),
)

_LEARNING = (
    Panel(
        "Reward",
        (
            Query(f"max(rljob_episode_reward{{{_JOB}}})", "training, last 100 episodes"),
            Query(f"max(rljob_evaluation_reward{{{_JOB}}})", "last evaluation"),
        ),
        description="Of training episodes, with exploration; and of evaluations, where there are any.",
        share=12,
        low=None,
    ),
    Panel(
        "Episode length",
        (Query(f"max(rljob_episode_length_steps{{{_JOB}}})", "steps"),),
        description="Mean of the last 100 training episodes.",
        share=12,
    ),
    Panel(
        "Losses",
        (Query(f'max by (name) (rljob_learner_value{{{_JOB}, name=~"loss/.*"}})', "{{name}}"),),
        description="Of the last iteration's updates.",
        share=12,
        low=None,
    ),
    Panel(
        "Policy and critic",
        (Query(f'max by (name) (rljob_learner_value{{{_JOB}, name=~"policy/.*|critic/.*"}})', "{{name}}"),),
        description="Entropy, divergence, clipping, temperature, values: whatever the algorithm tells.",
        share=12,
        low=None,
    ),
)

_THROUGHPUT = (
    Panel(
        "Frames per second",
        (
            Query(f"sum(rate(rljob_frames_total{{{_JOB}}}[$__rate_interval]))", "over all time"),
            Query(f"max(rljob_frames_per_second{{{_JOB}}})", "last iteration"),
        ),
        description="The first falls where evaluations, checkpoints and restarts take time; the second doesn't.",
    ),
    Panel(
        "Updates per second",
        (Query(f"sum(rate(rljob_updates_total{{{_JOB}}}[$__rate_interval]))", "optimiser steps"),),
    ),
    Panel(
        "Frames",
        (
            Query(f"max(rljob_progress_frames{{{_JOB}}})", "so far"),
            Query(f"max(rljob_target_frames{{{_JOB}}})", "in all"),
        ),
        description="Those of earlier attempts included. It falls where a restart goes back to a checkpoint.",
    ),
)

_TIME = (
    Panel(
        "Where time goes",
        (Query(f"sum by (phase) (rate(rljob_phase_seconds_sum{{{_JOB}}}[$__rate_interval]))", "{{phase}}"),),
        "percentunit",
        "Share of the trainer's wall time. Phases exclude each other; what is missing to 100 % is in none of them. A "
        "phase that is longer than the interval shows when it ends, above 100 %.",
        share=12,
        stack=True,
    ),
    Panel(
        "Parts of phases",
        (
            Query(
                f"sum by (phase, part) (rate(rljob_phase_part_seconds_total{{{_JOB}}}[$__rate_interval]))",
                "{{phase}}: {{part}}",
            ),
        ),
        "percentunit",
        "Share of the trainer's wall time. Those of `workers` are of all worker processes together, and may exceed it.",
        share=12,
    ),
    Panel(
        "Longest phases",
        (
            Query(
                f"histogram_quantile(0.95, sum by (le, phase) "
                f"(rate(rljob_phase_seconds_bucket{{{_JOB}}}[$__rate_interval])))",
                "{{phase}}",
            ),
        ),
        "s",
        "Seconds of a phase in an iteration, of which 95 % are shorter.",
        share=12,
    ),
    Panel(
        "Wall time accounted for",
        (Query(f"sum(rate(rljob_phase_seconds_sum{{{_JOB}}}[$__rate_interval]))", "all phases"),),
        "percentunit",
        "Near 100 % while a trainer trains; less while it starts, restarts or has ended.",
        share=12,
    ),
)

_WEIGHTS = (
    Panel(
        "Weight staleness",
        (Query(f"max(rljob_weight_staleness_versions{{{_JOB}}})", "versions behind"),),
        description="Publications between the oldest action of a rollout and its turn to be learned from.",
        empty=_NO_WORKERS,
    ),
    Panel(
        "Seconds per publication",
        (
            Query(
                f'sum(rate(rljob_phase_seconds_sum{{{_JOB}, phase="sync"}}[$__rate_interval])) / '
                f"sum(rate(rljob_weight_publications_total{{{_JOB}}}[$__rate_interval]))",
                "mean",
            ),
        ),
        "s",
        "How long the learner waits until new weights are available to all workers.",
        empty=_NO_WORKERS,
    ),
    Panel(
        "Weights published",
        (Query(f"sum(rate(rljob_weight_sync_bytes_total{{{_JOB}}}[$__rate_interval]))", "bytes"),),
        "Bps",
        "Bytes of weights, once for each publication.",
        empty=f"{_NO_WORKERS}, or the policy stays in it",
    ),
    Panel(
        "Publications per second",
        (Query(f"sum(rate(rljob_weight_publications_total{{{_JOB}}}[$__rate_interval]))", "publications"),),
        empty=_NO_WORKERS,
        share=12,
    ),
    Panel(
        "Rows dropped per second",
        (Query(f"sum by (cause) (rate(rljob_rows_dropped_total{{{_JOB}}}[$__rate_interval]))", "{{cause}}"),),
        description="Collected and never learned from: their weights were too old.",
        empty="the collector isn't AsyncProcess",
        share=12,
    ),
)

_REPLAY = (
    Panel("Rows", (Query(f"max(rljob_replay_rows{{{_JOB}}})", "rows"),), empty=_ON_POLICY),
    Panel(
        "Fill",
        (Query(f"max(rljob_replay_fill_ratio{{{_JOB}}})", "of capacity"),),
        "percentunit",
        empty=_ON_POLICY,
        high=1.0,
    ),
    Panel(
        "Age of the oldest row",
        (Query(f"max(rljob_replay_oldest_row_age_seconds{{{_JOB}}})", "oldest row"),),
        "s",
        "Rows of an earlier attempt count from the first record of this one.",
        empty=_ON_POLICY,
    ),
)

_PODS = (
    Panel(
        "Pods",
        (Query(f"max by (state) (rljob_job_pods{{{_JOB}}})", "{{state}}"),),
        share=6,
        decimals=0,
    ),
    Panel(
        "Restarts",
        (Query(f"max by (budget) (rljob_job_restarts{{{_JOB}}})", "{{budget}}"),),
        description="Faults and disruptions so far, as charged to the job's budgets.",
        share=6,
        decimals=0,
    ),
    Panel(
        "Processor",
        (Query(f"sum by (pod) (rate(process_cpu_seconds_total{{{_JOB}}}[$__rate_interval]))", "{{pod}}"),),
        description="Cores that the pod's main process uses; worker processes aren't counted in.",
        share=6,
    ),
    Panel(
        "Memory",
        (Query(f"sum by (pod) (process_resident_memory_bytes{{{_JOB}}})", "{{pod}}"),),
        "bytes",
        "Resident memory of the pod's main process; worker processes aren't counted in.",
        share=6,
    ),
    Panel(
        "Age of the newest checkpoint",
        (Query(f"time() - max(rljob_job_checkpoint_timestamp_seconds{{{_JOB}}})", "checkpoint"),),
        "s",
        "What a restart would lose.",
        empty="there is no checkpoint",
        share=12,
    ),
    Panel(
        "Environment workers replaced, per minute",
        (Query(f"60 * sum(rate(rljob_env_worker_restarts_total{{{_JOB}}}[$__rate_interval]))", "processes"),),
        description="Processes of environments that failed and were started anew.",
        empty="`env.restartWorkers` isn't set",
        share=12,
    ),
)

JOB = Dashboard(
    uid="rljob-job",
    title="RLJob / Job",
    description="One job, from its own pods and from the operator.",
    variables=(
        Variable("namespace", "Namespace", "label_values(rljob_job_info, namespace)"),
        Variable("job", "Job", 'label_values(rljob_job_info{namespace="$namespace"}, rljob_job)'),
    ),
    rows=(
        Row("Now", _NOW),
        Row("Learning", _LEARNING),
        Row("Throughput", _THROUGHPUT),
        Row("Where time goes", _TIME),
        Row("Weights", _WEIGHTS),
        Row("Replay", _REPLAY),
        Row("Pods and restarts", _PODS),
    ),
)
