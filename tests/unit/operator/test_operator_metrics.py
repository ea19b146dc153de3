"""What the operator exports of single jobs: from what it knows, bounded, and gone with the job."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rljob_operator.builders.owner import KubeObject
from rljob_operator.handlers.assembly import assemble
from rljob_operator.kube.connection import Connection
from rljob_operator.metrics import FAMILIES, JOB_FAMILIES, OperatorMetrics
from rljob_operator.reconcile.cache import Cache
from rljob_operator.reconcile.job_metrics import job_values, phases
from rljob_operator.settings import Options, Timing

MOST_SERIES_OF_A_JOB = 20
RUNNING: dict[str, Any] = {
    "phase": "Running",
    "startTime": "2026-01-01T00:00:00Z",
    "runningTime": "2026-01-01T00:01:00Z",
    "activation": {"time": "2026-01-01T00:00:00Z", "attempt": 0, "round": 0},
    "conditions": [
        {"type": "PodsReady", "status": "False", "reason": "BackOff"},
        {"type": "CheckpointDurable", "status": "True", "reason": "Stored"},
    ],
    "roles": [{"name": "trainer", "desired": 1, "ready": 1}, {"name": "collector", "desired": 8, "ready": 5}],
    "progress": {
        "frames": 250,
        "totalFrames": 1000,
        "reward": -3.5,
        "bestReward": 12.0,
        "framesPerSecond": 125.0,
        "remainingSeconds": 6,
    },
    "restarts": {"faults": 2, "disruptions": 1},
    "checkpoint": {"frames": 200, "path": "p", "time": "2026-01-01T00:05:00Z"},
}
AT_00_01_00 = 1767225660.0


def job(number: int = 0, *, status: dict[str, Any] | None = None, version: int = 1, **policy: Any) -> KubeObject:
    """Return a job as the API server has it, with deadlines."""
    training = {"algorithm": "PPO", "totalFrames": 1000, "env": {"id": "CartPole-v1"}}
    about = {"name": f"job-{number}", "namespace": "team-a", "uid": f"uid-{number}", "generation": 1}
    return {
        "metadata": {**about, "resourceVersion": str(version)},
        "spec": {"training": training, "runPolicy": {"activeDeadlineSeconds": 600, **policy}},
        "status": RUNNING if status is None else status,
    }


def exported(*jobs: KubeObject) -> tuple[Cache, CollectorRegistry]:
    """Return the registry of an operator that knows these jobs, and what it knows."""
    cache, registry = Cache(lambda: 0.0), CollectorRegistry()
    metrics = OperatorMetrics(registry)
    metrics.gauges_of(lambda: phases(cache.jobs()), lambda: {"pods": 7.0}, lambda: job_values(cache.jobs()))
    for item in jobs:
        cache.apply_job(item)
    return cache, registry


def series_of(registry: CollectorRegistry, name: str) -> dict[str, float]:
    """Return the series of a job, without the labels that all of them have."""
    found = {}
    for line in generate_latest(registry).decode().splitlines():
        if f'rljob_job="{name}"' in line:
            assert 'namespace="team-a"' in line
            series, value = line.rsplit(" ", 1)
            metric, _, labels = series.partition("{")
            rest = [part for part in labels.rstrip("}").split(",") if not part.startswith(("namespace=", "rljob_job="))]
            found[f"{metric} {' '.join(rest)}".strip()] = float(value)
    return found


def test_a_running_job_is_told_as_its_status_has_it() -> None:
    _, registry = exported(job())
    assert series_of(registry, "job-0") == {
        'rljob_job_info algorithm="PPO" storage="true" uid="uid-0"': 1.0,
        'rljob_job_phase phase="Running"': 1.0,
        'rljob_job_waiting reason="BackOff"': 1.0,
        'rljob_job_pods state="desired"': 9.0,
        'rljob_job_pods state="ready"': 6.0,
        'rljob_job_restarts budget="Faults"': 2.0,
        'rljob_job_restarts budget="Disruptions"': 1.0,
        "rljob_job_running_timestamp_seconds": AT_00_01_00,
        'rljob_job_deadline_timestamp_seconds deadline="Active"': AT_00_01_00 + 600,
        'rljob_job_deadline_limit_seconds deadline="Active"': 600.0,
        "rljob_job_progress_frames": 250.0,
        "rljob_job_progress_ratio": 0.25,
        "rljob_job_reward": -3.5,
        "rljob_job_best_reward": 12.0,
        "rljob_job_frames_per_second": 125.0,
        "rljob_job_remaining_seconds": 6.0,
        "rljob_job_checkpoint_timestamp_seconds": AT_00_01_00 + 240,
    }


def test_a_job_that_nobody_has_looked_at_yet_has_a_phase_and_nothing_that_is_unknown() -> None:
    _, registry = exported(job(status={}))
    series = series_of(registry, "job-0")
    assert series['rljob_job_phase phase="Unknown"'] == 1.0
    assert {name.split()[0] for name in series} == {
        "rljob_job_info", "rljob_job_phase", "rljob_job_pods", "rljob_job_restarts",
    }  # fmt: skip


def test_a_pending_job_counts_the_other_deadline() -> None:
    status = {**RUNNING, "phase": "Pending", "runningTime": None}
    _, registry = exported(job(status=status, preRunningDeadlineSeconds=90))
    series = series_of(registry, "job-0")
    assert series['rljob_job_deadline_timestamp_seconds deadline="PreRunning"'] == AT_00_01_00 - 60 + 90
    assert "rljob_job_frames_per_second" not in series


def test_a_finished_job_waits_for_nothing_and_has_no_deadline_and_no_speed() -> None:
    _, registry = exported(job(status={**RUNNING, "phase": "Succeeded"}))
    names = {name.split()[0] for name in series_of(registry, "job-0")}
    assert "rljob_job_reward" in names
    assert not names & {
        "rljob_job_waiting", "rljob_job_deadline_timestamp_seconds", "rljob_job_deadline_limit_seconds",
        "rljob_job_frames_per_second", "rljob_job_remaining_seconds",
    }  # fmt: skip


def test_words_that_the_operator_does_not_know_are_no_label() -> None:
    conditions = [{"type": "PodsReady", "status": "False", "reason": "MyOwnWord"}]
    _, registry = exported(job(status={**RUNNING, "phase": "Odd", "conditions": conditions}))
    series = series_of(registry, "job-0")
    assert series['rljob_job_phase phase="Unknown"'] == 1.0
    assert series['rljob_job_waiting reason="Other"'] == 1.0


def test_a_deleted_job_leaves_no_series() -> None:
    cache, registry = exported(job(0), job(1))
    cache.remove_job("uid-0")
    assert series_of(registry, "job-0") == {}
    assert len(series_of(registry, "job-1")) == 17
    cache.remove_job("uid-1")
    assert "team-a" not in generate_latest(registry).decode()


def test_a_thousand_jobs_have_at_most_twenty_series_each_and_nothing_else_grows() -> None:
    cache, registry = exported(*(job(number) for number in range(1000)))
    text = generate_latest(registry).decode()
    of_jobs = [line for line in text.splitlines() if "rljob_job=" in line]
    rest = [line for line in text.splitlines() if line and not line.startswith("#") and "rljob_job=" not in line]
    assert len(of_jobs) == 17 * 1000 <= MOST_SERIES_OF_A_JOB * 1000
    for number in range(1, 1000):
        cache.remove_job(f"uid-{number}")
    alone = generate_latest(registry).decode().splitlines()
    assert len(rest) == len([line for line in alone if line and not line.startswith("#") and "rljob_job=" not in line])
    assert len([line for line in alone if "rljob_job=" in line]) == 17


def test_only_gauges_bear_the_name_of_a_job() -> None:
    named = {family.name for family in FAMILIES.values() if "rljob_job" in family.labels}
    assert named == {family.name for family in JOB_FAMILIES}
    assert {family.kind for family in JOB_FAMILIES} == {"gauge"}


def test_the_operator_exports_what_the_docs_name_and_nothing_else() -> None:
    _, registry = exported(job())
    metrics = OperatorMetrics(CollectorRegistry())
    metrics.count_request("list", "pods", 200)
    metrics.count_restarts("Gang", "Faults", "OOMKilled", 1)
    metrics.count_end("Succeeded", "Completed")
    metrics.reconcile_errors.labels("KubeError").inc()
    metrics.resync_corrections.labels("pods").inc()
    seen = {
        sample.name
        for source in (registry, metrics.registry)
        for family in text_string_to_metric_families(generate_latest(source).decode())
        for sample in family.samples
    }
    assert seen == {series for family in FAMILIES.values() for series in family.series}


@pytest.mark.parametrize(("lease", "leads"), [(None, 1.0), (("rljob-system", "operator"), 0.0)])
def test_an_operator_leads_from_the_beginning_only_where_there_is_no_lease(
    lease: tuple[str, str] | None, leads: float
) -> None:
    async def main() -> None:
        parts = assemble(Options(lease=lease), Timing(), cast(Any, None), cast(Connection, None))
        assert parts.metrics.registry.get_sample_value("rljob_operator_leader") == leads
        if parts.leadership is not None:
            parts.leadership._until_s = float("inf")
            assert parts.metrics.registry.get_sample_value("rljob_operator_leader") == 1.0

    asyncio.run(main())
