"""All jobs at a glance: what runs, what waits and why, what it yields."""

from __future__ import annotations

from monitoring.alerts import restarts_within
from monitoring.grafana import Dashboard, Panel, Query, Row, Variable

_JOBS = 'namespace=~"$namespace", rljob_job=~"$job"'
_OWN = "by (namespace, rljob_job)"
_NAME = "{{namespace}}/{{rljob_job}}"


def _number(title: str, expr: str, description: str, *, unit: str = "short", decimals: int | None = 0) -> Panel:
    return Panel(title, (Query(expr),), unit, description, kind="stat", share=4, height=4, decimals=decimals)


def in_the_last_hour(counter: str, by: str) -> str:
    """Return an expression for how much a counter of the operator grew within an hour, by labels.

    A series begins with the first of its kind, at 1: where it wasn't there an hour ago, all that it says is new.
    """
    return f"sum by ({by}) (({counter} unless {counter} offset 1h) or increase({counter}[1h]))"


_NOW = (
    _number(
        "Running",
        f'sum(rljob_job_phase{{phase="Running", {_JOBS}}}) or vector(0)',
        "Jobs all of whose pods are ready.",
    ),
    _number(
        "Waiting",
        f'sum(rljob_job_phase{{phase=~"Pending|Restarting", {_JOBS}}}) or vector(0)',
        "Jobs whose pods aren't all ready yet, or again.",
    ),
    _number("Failed", f'sum(rljob_job_phase{{phase="Failed", {_JOBS}}}) or vector(0)', "Jobs that failed and exist."),
    _number(
        "Frames per second",
        f"sum(rate(rljob_frames_total{{{_JOBS}}}[$__rate_interval]))",
        "Decisions of environments, of all jobs together.",
    ),
    _number(
        "Restarts, last hour",
        restarts_within("1h", by="", of=_JOBS),
        "Restarts that were charged to jobs that exist.",
    ),
    _number(
        "Median time to running",
        "histogram_quantile(0.5, sum by (le) (rate(rljob_operator_job_time_to_running_seconds_bucket[1h])))",
        "From first sight of a job until all its pods were ready, over the last hour.",
        unit="s",
        decimals=1,
    ),
)

_LIST = Panel(
    "Jobs",
    (
        Query(f"max by (namespace, rljob_job, phase) (rljob_job_phase{{{_JOBS}}})"),
        Query(f"max {_OWN} (rljob_job_progress_ratio{{{_JOBS}}})", "progress"),
        Query(f"max {_OWN} (rljob_job_reward{{{_JOBS}}})", "reward"),
        Query(f"max {_OWN} (rljob_job_best_reward{{{_JOBS}}})", "best"),
        Query(f"max {_OWN} (rljob_job_frames_per_second{{{_JOBS}}})", "frames/s"),
        Query(f"max {_OWN} (rljob_job_remaining_seconds{{{_JOBS}}})", "remaining"),
        Query(f"sum {_OWN} (rljob_job_restarts{{{_JOBS}}})", "restarts"),
        Query(f"time() - max {_OWN} (rljob_job_checkpoint_timestamp_seconds{{{_JOBS}}})", "checkpoint age"),
    ),
    description="Every job that exists, as the operator sees it.",
    kind="table",
    share=24,
    height=9,
    low=None,
    units={"progress": "percentunit", "remaining": "s", "checkpoint age": "s", "frames/s": "short"},
)

_PHASE_COLOURS = {
    "Running": "#3274d9",
    "Succeeded": "#37872d",
    "Failed": "#c4162a",
    "Pending": "#b7930b",
    "Restarting": "#e0752d",
    "Suspended": "#6b7280",
}

_STATE = (
    Panel(
        "Jobs by phase",
        (Query(f"sum by (phase) (rljob_job_phase{{{_JOBS}}})", "{{phase}}"),),
        description="Jobs that exist, finished ones included until they are deleted.",
        stack=True,
        decimals=0,
        colours=_PHASE_COLOURS,
    ),
    Panel(
        "What jobs wait for",
        (Query(f"sum by (reason) (rljob_job_waiting{{{_JOBS}}})", "{{reason}}"),),
        description="Active jobs whose pods aren't all ready, by the reason of PodsReady.",
        empty="no job waits",
        stack=True,
        decimals=0,
    ),
    Panel(
        "Restarts by reason, per hour",
        (Query(in_the_last_hour("rljob_operator_restarts_total", "budget, reason"), "{{budget}}: {{reason}}"),),
        description="Restarts that were charged, of all namespaces.",
        empty="nothing was restarted",
    ),
)

_YIELD = (
    Panel(
        "Progress",
        (Query(f"max {_OWN} (rljob_job_progress_ratio{{{_JOBS}}})", _NAME),),
        "percentunit",
        "Frames as a share of totalFrames. A job that reaches its reward early ends below 100 %.",
        high=1.0,
    ),
    Panel(
        "Reward",
        (Query(f"max {_OWN} (rljob_job_reward{{{_JOBS}}})", _NAME),),
        description="Mean of recent training episodes; of the final evaluation once a job has succeeded.",
        low=None,
    ),
    Panel(
        "Frames per second",
        (Query(f"sum {_OWN} (rate(rljob_frames_total{{{_JOBS}}}[$__rate_interval]))", _NAME),),
        description="Evaluations and checkpoints count as time in which no frame is collected.",
    ),
)

_USE = (
    Panel(
        "Processor",
        (Query(f"sum {_OWN} (rate(process_cpu_seconds_total{{{_JOBS}}}[$__rate_interval]))", _NAME),),
        description="Cores that the main process of each pod uses; worker processes aren't counted in.",
    ),
    Panel(
        "Memory",
        (Query(f"sum {_OWN} (process_resident_memory_bytes{{{_JOBS}}})", _NAME),),
        "bytes",
        "Resident memory of the main process of each pod; worker processes aren't counted in.",
    ),
    Panel(
        "Jobs that ended, per hour",
        (Query(in_the_last_hour("rljob_operator_jobs_finished_total", "phase, reason"), "{{phase}}: {{reason}}"),),
        description="Of all namespaces.",
        empty="no job has ended",
    ),
)

OVERVIEW = Dashboard(
    uid="rljob-overview",
    title="RLJob / Platform overview",
    description="All jobs of the platform.",
    variables=(
        Variable("namespace", "Namespace", "label_values(rljob_job_info, namespace)", multi=True),
        Variable("job", "Job", 'label_values(rljob_job_info{namespace=~"$namespace"}, rljob_job)', multi=True),
    ),
    rows=(
        Row("Now", _NOW),
        Row("Jobs", (_LIST, *_STATE)),
        Row("What they yield", _YIELD),
        Row("What they use", _USE),
    ),
)
