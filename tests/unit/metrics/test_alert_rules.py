"""The alerts that are shipped, by `promtool test rules`: each fires when its fault has lasted, and not before, nor
without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster_harness import products
from cluster_harness.fixtures import programs
from cluster_harness.prometheus import failed_rule_tests, promtool
from prometheus_client import CollectorRegistry, generate_latest
from rljob_operator.metrics import OperatorMetrics

from monitoring.__main__ import FILES
from monitoring.alerts import alerts
from rlruntime.metrics import names
from rlruntime.metrics.exporter import MetricsExporter
from rlruntime.metrics.family import export_process

pytestmark = pytest.mark.programs("promtool")

OWN = 'namespace="ml", rljob_job="ppo"'
JOB = {"namespace": "ml", "rljob_job": "ppo"}
RUNNING = f'rljob_job_phase{{{OWN}, phase="Running"}}'


def steady(value: float, minutes: int = 240) -> str:
    """Return a series that keeps a value, in promtool's words."""
    return f"{value}x{minutes}"


@dataclass(frozen=True)
class Case:
    """Series, a sample a minute, and when the alert is to be seen.

    Attributes:
        alert: its name.
        words: what the case is.
        series: by name and labels, in promtool's words.
        quiet: moments at which nothing fires, in minutes.
        firing: moments at which the alert fires.
        labels: of the alert that fires, beside its name and severity.
    """

    alert: str
    words: str
    series: dict[str, str]
    quiet: tuple[int, ...] = ()
    firing: tuple[int, ...] = ()
    labels: tuple[tuple[str, str], ...] = tuple(JOB.items())


_PENDING = f'rljob_job_phase{{{OWN}, phase="Pending"}}'
_RESTARTS = f'rljob_job_restarts{{{OWN}, budget="Faults"}}'
_FRAMES = f"rljob_job_progress_frames{{{OWN}}}"
_STALENESS = f'rljob_weight_staleness_versions{{{OWN}, pod="p"}}'
_DROPPED = f'rljob_rows_dropped_total{{{OWN}, pod="p", cause="stale"}}'
_KEPT = f'rljob_frames_total{{{OWN}, pod="p"}}'
_DEADLINE = f'rljob_job_deadline_timestamp_seconds{{{OWN}, deadline="Active"}}'
_LIMIT = f'rljob_job_deadline_limit_seconds{{{OWN}, deadline="Active"}}'
_REMAINING = f"rljob_job_remaining_seconds{{{OWN}}}"
_CHECKPOINT = f"rljob_job_checkpoint_timestamp_seconds{{{OWN}}}"
_SINCE = f"rljob_job_running_timestamp_seconds{{{OWN}}}"
_STORED = f'rljob_job_info{{{OWN}, uid="u", algorithm="PPO", storage="true"}}'
_UNSTORED = f'rljob_job_info{{{OWN}, uid="u", algorithm="PPO", storage="false"}}'
_OPERATOR = 'namespace="rljob-system", instance="i"'
_LEADER = f"rljob_operator_leader{{{_OPERATOR}}}"
_WATCH = f'rljob_operator_watch_last_activity_timestamp_seconds{{{_OPERATOR}, resource="pods"}}'
_ERRORS = f'rljob_operator_reconcile_errors_total{{{_OPERATOR}, error="Forbidden"}}'
_PASSES = f"rljob_operator_reconcile_duration_seconds_count{{{_OPERATOR}}}"
_OF_OPERATOR = (("namespace", "rljob-system"), ("instance", "i"))

CASES = (
    Case("RLJobPendingTooLong", "pending for long", {_PENDING: steady(1)}, quiet=(14,), firing=(15, 60)),
    Case("RLJobPendingTooLong", "pending, then running", {_PENDING: "1x10 _x50", RUNNING: "_x10 1x50"}, quiet=(20, 40)),
    Case(
        "RLJobPendingTooLong",
        "restarting after pending counts on",
        {_PENDING: "1x10 _x50", f'rljob_job_phase{{{OWN}, phase="Restarting"}}': "_x10 1x50"},
        quiet=(14,),
        firing=(16,),
    ),
    Case("RLJobRestartStorm", "three within the hour", {_RESTARTS: "0x9 1x9 2x9 3x120"}, quiet=(20, 120), firing=(35,)),
    Case("RLJobRestartStorm", "one every half hour", {_RESTARTS: "0x29 1x29 2x29 3x29 4x60"}, quiet=(30, 60, 95, 125)),
    Case("RLJobRestartStorm", "old restarts, and a new operator", {_RESTARTS: "_x30 7x120"}, quiet=(31, 60, 90)),
    Case("RLJobRestartStorm", "a new job of the same name", {_RESTARTS: "5x30 0x120"}, quiet=(20, 32, 60, 90)),
    Case("RLJobRestartStorm", "a job that is gone", {_RESTARTS: "0x9 4x9 _x120"}, quiet=(26, 60), firing=(15,)),
    Case(
        "RLJobRestartStorm",
        "one operator takes over from another",
        {
            f'rljob_job_restarts{{{OWN}, budget="Faults", instance="a"}}': "0x9 2x9 stale _x120",
            f'rljob_job_restarts{{{OWN}, budget="Faults", instance="b"}}': "_x20 2x9 3x120",
        },
        quiet=(25, 120),
        firing=(32, 60),
    ),
    Case("RLJobProgressStalled", "no frames", {RUNNING: steady(1), _FRAMES: steady(500)}, quiet=(19,), firing=(21, 60)),
    Case("RLJobProgressStalled", "it never said any", {RUNNING: steady(1)}, quiet=(19,), firing=(21,)),
    Case("RLJobProgressStalled", "frames go on", {RUNNING: steady(1), _FRAMES: "0+100x120"}, quiet=(21, 60, 110)),
    Case(
        "RLJobProgressStalled", "it has just begun to run", {RUNNING: "_x30 1x14 _x60", _FRAMES: steady(5)}, quiet=(44,)
    ),
    Case(
        "RLJobProgressStalled",
        "it has ended",
        {'rljob_job_phase{namespace="ml", rljob_job="ppo", phase="Succeeded"}': steady(1), _FRAMES: steady(500)},
        quiet=(21, 60),
    ),
    Case("RLJobWeightsStale", "far behind", {_STALENESS: steady(30), _KEPT: "0+60x240"}, quiet=(4,), firing=(6, 60)),
    Case("RLJobWeightsStale", "soon over", {_STALENESS: "30x2 stale", _KEPT: "0+60x2 stale"}, quiet=(6, 8)),
    Case("RLJobWeightsStale", "a little behind", {_STALENESS: steady(3), _KEPT: "0+60x120"}, quiet=(6, 60)),
    Case("RLJobWeightsStale", "half is dropped", {_DROPPED: "0+60x120", _KEPT: "0+60x120"}, quiet=(4,), firing=(8, 60)),
    Case("RLJobWeightsStale", "a tenth is dropped", {_DROPPED: "0+6x120", _KEPT: "0+54x120"}, quiet=(8, 60)),
    Case(
        "RLJobNearDeadline",
        "six minutes of an hour left",
        {_DEADLINE: steady(6000), _LIMIT: steady(3600)},
        quiet=(50, 93),
        firing=(95, 99),
    ),
    Case(
        "RLJobNearDeadline",
        "it is expected to end before",
        {_DEADLINE: steady(6000), _LIMIT: steady(3600), _REMAINING: "6000-60x90 20x60"},
        quiet=(95, 98),
    ),
    Case(
        "RLJobNearDeadline",
        "it is expected to end too late",
        {_DEADLINE: steady(6000), _LIMIT: steady(3600), _REMAINING: steady(7000)},
        firing=(95,),
    ),
    Case(
        "RLJobCheckpointTooOld",
        "none for an hour",
        {RUNNING: steady(1), _STORED: steady(1), _CHECKPOINT: steady(600), _SINCE: steady(0)},
        quiet=(60, 69),
        firing=(71,),
    ),
    Case(
        "RLJobCheckpointTooOld",
        "none at all since it began to run",
        {RUNNING: steady(1), _STORED: steady(1), _SINCE: steady(0)},
        quiet=(59,),
        firing=(61,),
    ),
    Case(
        "RLJobCheckpointTooOld",
        "an old one, but resumed a while ago",
        {RUNNING: steady(1), _STORED: steady(1), _CHECKPOINT: steady(0), _SINCE: steady(6000)},
        quiet=(100, 150),
    ),
    Case(
        "RLJobCheckpointTooOld",
        "no storage, where checkpoints go with their pod",
        {RUNNING: steady(1), _UNSTORED: steady(1), _CHECKPOINT: steady(0), _SINCE: steady(0)},
        quiet=(100,),
    ),
    Case(
        "RLJobOperatorDown",
        "it ends, and begins again",
        {_LEADER: "1x9 stale _x9 1x60"},
        quiet=(14, 21),
        firing=(16,),
        labels=(),
    ),
    Case("RLJobOperatorDown", "all stand by", {_LEADER: steady(0)}, quiet=(4,), firing=(6, 60), labels=()),
    Case(
        "RLJobOperatorDown",
        "one takes over from another",
        {_LEADER: "1x9 stale", 'rljob_operator_leader{namespace="rljob-system", instance="j"}': "0x11 1x60"},
        quiet=(10, 16, 60),
    ),
    Case(
        "RLJobOperatorWatchSilent",
        "nothing is said",
        {_WATCH: steady(600)},
        quiet=(11, 12),
        firing=(13,),
        labels=(*_OF_OPERATOR, ("resource", "pods")),
    ),
    Case("RLJobOperatorWatchSilent", "a bookmark a minute", {_WATCH: "0+60x120"}, quiet=(10, 60, 120)),
    Case(
        "RLJobOperatorReconcileErrors",
        "a fifth fails",
        {_ERRORS: "0+2x60", _PASSES: "0+10x60"},
        quiet=(9,),
        firing=(13, 40),
        labels=(("namespace", "rljob-system"),),
    ),
    Case(
        "RLJobOperatorReconcileErrors", "one in twenty fails", {_ERRORS: "0+1x60", _PASSES: "0+20x60"}, quiet=(15, 40)
    ),
    Case("RLJobOperatorReconcileErrors", "nothing has ever failed", {_PASSES: "0+20x60"}, quiet=(15, 40)),
)


@pytest.fixture(scope="module", autouse=True)
def _promtool() -> None:
    programs(products.PROMETHEUS)


def as_test(case: Case) -> dict[str, Any]:
    """Return a case in promtool's words."""
    severity = next(alert.severity for alert in alerts() if alert.name == case.alert)
    labels = {"__name__": "ALERTS", "alertname": case.alert, "alertstate": "firing", "severity": severity}
    words = ", ".join(f'{name}="{value}"' for name, value in {**labels, **dict(case.labels)}.items())
    samples = {True: [{"labels": f"{{{words}}}", "value": 1}], False: []}
    moves = {_LEADER: steady(1)}
    if RUNNING in case.series and case.alert != "RLJobProgressStalled":
        moves[_FRAMES] = "0+100x240"
    moments = [*((at, False) for at in case.quiet), *((at, True) for at in case.firing)]
    return {
        "name": f"{case.alert}: {case.words}",
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in {**moves, **case.series}.items()],
        "promql_expr_test": [
            {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{at}m", "exp_samples": samples[fires]}
            for at, fires in moments
        ],
    }


def run(folder: Path, *tests: dict[str, Any]) -> str:
    """Run tests of the shipped rules, and return what promtool says; empty where all pass."""
    return failed_rule_tests(folder, *tests, rules=[FILES / "alerts.yaml"])


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_all_is_well() -> None:
    for alert in alerts():
        cases = [case for case in CASES if case.alert == alert.name]
        assert any(case.firing for case in cases), alert.name
        assert any(not case.firing for case in cases), alert.name


def test_alerts_fire_when_their_fault_has_lasted_and_never_else(tmp_path: Path) -> None:
    assert run(tmp_path, *(as_test(case) for case in CASES)) == ""


def test_promtool_sees_a_case_that_is_wrong(tmp_path: Path) -> None:
    wrong = Case("RLJobPendingTooLong", "too early", {_PENDING: steady(1)}, firing=(5,))
    assert "FAILED" in run(tmp_path, as_test(wrong))


def test_the_words_of_an_alert_name_the_job_and_what_it_waits_for(tmp_path: Path) -> None:
    waiting = f'rljob_job_waiting{{{OWN}, reason="Unschedulable"}}'
    expected = {
        "exp_labels": {"severity": "warning", **JOB},
        "exp_annotations": {
            "summary": "RLJob ml/ppo doesn't get to run",
            "description": "Its pods haven't all been ready for 15m. It waits for: Unschedulable.",
            "runbook_url": "docs/alerts.md#rljobpendingtoolong",
        },
    }
    series = [{"series": _PENDING, "values": steady(1)}, {"series": waiting, "values": steady(1)}]
    asked = {"eval_time": "20m", "alertname": "RLJobPendingTooLong", "exp_alerts": [expected]}
    assert run(tmp_path, {"interval": "1m", "input_series": series, "alert_rule_test": [asked]}) == ""


def test_names_and_types_keep_to_the_conventions() -> None:
    runtime = CollectorRegistry()
    export_process(runtime, names.BUILD_INFO, "1")
    exporter = MetricsExporter(runtime, target_frames=1)
    exporter.observe_iteration(
        {
            "frames": 1,
            "optim/steps": 1,
            "loss/a": 1.0,
            "time/collect_s": 1.0,
            "time/collect/env_s": 1.0,
            "collect/staleness": 1,
            "collect/dropped_stale": 1,
            "collect/env_restarts": 1,
            "sync/publications": 1,
            "sync/bytes": 1,
            "replay/rows": 1,
            "replay/written": 1,
            "replay/fill": 1.0,
            "train/episode_reward_mean": 1.0,
            "train/episode_length_mean": 1.0,
            "evaluation/reward_mean": 1.0,
            "time/frames_per_second": 1.0,
        }
    )
    exporter.checkpoint_written()
    operator = OperatorMetrics(CollectorRegistry()).registry
    for registry in (runtime, operator):
        done = promtool("check", "metrics", stdin=generate_latest(registry).decode())
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
