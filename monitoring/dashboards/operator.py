"""The operator: whether it keeps up, what it asks of the API server, and what goes wrong."""

from __future__ import annotations

from monitoring.grafana import Dashboard, Panel, Query, Row, Variable

_OPERATOR = 'namespace=~"$namespace"'


def _stat(title: str, expr: str, description: str, unit: str = "short", *, decimals: int | None = None) -> Panel:
    return Panel(title, (Query(expr),), unit, description, kind="stat", share=4, height=4, decimals=decimals)


def _quantiles(metric: str) -> tuple[Query, ...]:
    return tuple(
        Query(
            f"histogram_quantile({quantile}, sum by (le) (rate({metric}_bucket{{{_OPERATOR}}}[$__rate_interval])))",
            legend,
        )
        for quantile, legend in ((0.5, "median"), (0.99, "99 %"))
    )


_PASSES = f"sum(rate(rljob_operator_reconcile_duration_seconds_count{{{_OPERATOR}}}[$__rate_interval]))"
_FAILED = f"sum(rate(rljob_operator_reconcile_errors_total{{{_OPERATOR}}}[$__rate_interval]))"

_NOW = (
    Panel(
        "Version",
        (Query(f"max by (version) (rljob_operator_build_info{{{_OPERATOR}}})", "{{version}}"),),
        kind="stat",
        share=4,
        height=4,
        name_of="version",
    ),
    _stat("Jobs", f"sum(rljob_operator_jobs{{{_OPERATOR}}}) or vector(0)", "Jobs that exist.", decimals=0),
    _stat("Queue", f"sum(rljob_operator_queue_depth{{{_OPERATOR}}})", "Jobs that wait for a worker.", decimals=0),
    _stat(
        "Failed passes",
        f"(({_FAILED}) or vector(0)) / {_PASSES}",
        "Share of all passes.",
        "percentunit",
        decimals=1,
    ),
    _stat(
        "Silence of watches",
        f"time() - min(rljob_operator_watch_last_activity_timestamp_seconds{{{_OPERATOR}}})",
        "Of the most silent one. A bookmark comes every minute; after 150 s the operator is started anew.",
        "s",
        decimals=0,
    ),
    _stat(
        "Up for",
        f"time() - min(process_start_time_seconds{{{_OPERATOR}}} and on (instance) rljob_operator_build_info)",
        "Since the process began.",
        "s",
        decimals=0,
    ),
)

_WORK = (
    Panel(
        "Passes per second",
        (Query(_PASSES, "passes"),),
        description="Passes over jobs. A job that nothing happens to costs none.",
    ),
    Panel(
        "Failed passes per second",
        (
            Query(
                f"sum by (error) (rate(rljob_operator_reconcile_errors_total{{{_OPERATOR}}}[$__rate_interval]))",
                "{{error}}",
            ),
        ),
        description="By type of error; the log has the words.",
        empty="no pass has failed",
    ),
    Panel(
        "Duration of a pass",
        _quantiles("rljob_operator_reconcile_duration_seconds"),
        "s",
        "Its requests included.",
    ),
    Panel("Queue", (Query(f"sum(rljob_operator_queue_depth{{{_OPERATOR}}})", "jobs"),), decimals=0),
    Panel(
        "Wait in the queue",
        _quantiles("rljob_operator_queue_latency_seconds"),
        "s",
        "How long a job waited for a worker.",
    ),
    Panel(
        "Time to running",
        tuple(
            Query(
                f"histogram_quantile({quantile}, sum by (le) "
                f"(rate(rljob_operator_job_time_to_running_seconds_bucket{{{_OPERATOR}}}[1h])))",
                legend,
            )
            for quantile, legend in ((0.5, "median"), (0.95, "95 %"))
        ),
        "s",
        "Of jobs that ran for the first time in the last hour.",
    ),
)

_SERVER = (
    Panel(
        "Requests per second",
        (
            Query(
                f"sum by (verb, resource) (rate(rljob_operator_api_requests_total{{{_OPERATOR}}}[$__rate_interval]))",
                "{{verb}} {{resource}}",
            ),
        ),
        share=12,
    ),
    Panel(
        "Answers per second that are no success",
        (
            Query(
                f'sum by (code, resource) (rate(rljob_operator_api_requests_total{{{_OPERATOR}, code!~"2.."}}'
                f"[$__rate_interval]))",
                "{{code}} {{resource}}",
            ),
        ),
        description="404 and 409 happen in a healthy cluster: what is gone already, and what has changed meanwhile.",
        empty="every request succeeds",
        share=12,
    ),
    Panel(
        "Silence of watches",
        (
            Query(
                f"time() - min by (resource) (rljob_operator_watch_last_activity_timestamp_seconds{{{_OPERATOR}}})",
                "{{resource}}",
            ),
        ),
        "s",
        "Up to a minute in a quiet cluster: then a bookmark comes.",
    ),
    Panel(
        "Objects that watches had missed",
        (
            Query(
                f"sum by (resource) (rate(rljob_operator_resync_corrections_total{{{_OPERATOR}}}[$__rate_interval]))",
                "{{resource}}",
            ),
        ),
        description="Per second. Found when a watch was begun anew, and by the comparison every five minutes.",
    ),
    Panel(
        "Events that could not be written",
        (Query(f"sum(rate(rljob_operator_events_dropped_total{{{_OPERATOR}}}[$__rate_interval]))", "events"),),
        description="Per second.",
    ),
)

_PROCESS = (
    Panel(
        "Leader",
        (Query(f"max by (instance) (rljob_operator_leader{{{_OPERATOR}}})", "{{instance}}"),),
        description="1 for the process that acts on jobs. With several replicas the others stand by.",
        share=6,
        decimals=0,
    ),
    Panel(
        "Processor",
        (
            Query(
                f"sum(rate(process_cpu_seconds_total{{{_OPERATOR}}}[$__rate_interval])"
                f" and on (instance) rljob_operator_build_info)",
                "cores",
            ),
        ),
        share=6,
    ),
    Panel(
        "Memory",
        (
            Query(
                f"sum(process_resident_memory_bytes{{{_OPERATOR}}} and on (instance) rljob_operator_build_info)",
                "resident",
            ),
        ),
        "bytes",
        "About 100 MiB with a thousand jobs of one pod.",
        share=6,
    ),
    Panel(
        "Open files",
        (Query(f"sum(process_open_fds{{{_OPERATOR}}} and on (instance) rljob_operator_build_info)", "open"),),
        share=6,
        decimals=0,
    ),
)

OPERATOR = Dashboard(
    uid="rljob-operator",
    title="RLJob / Operator health",
    description="The operator's passes, its requests, its watches and its process.",
    variables=(
        Variable("namespace", "Namespace of the operator", "label_values(rljob_operator_build_info, namespace)", True),
    ),
    rows=(
        Row("Now", _NOW),
        Row("Work", _WORK),
        Row("API server", _SERVER),
        Row("Process", _PROCESS),
    ),
)
