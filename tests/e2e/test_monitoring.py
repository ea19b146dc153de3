"""A real Prometheus beside a real operator and real jobs: every panel has data, and every alert fires for its fault.

One run of two minutes serves all tests: jobs that are well beside jobs of which each has a fault of its own, and at
the end the operator loses a right. Durations of alerts are shortened; `tests/unit/metrics/test_alert_rules.py` has
those that are shipped. A watch that falls silent is in `test_silent_watches.py`, where one does.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import watched_jobs
from cluster_harness.cluster import wait_for
from cluster_harness.fixtures import RealNodes, programs
from cluster_harness.prometheus import PrometheusServer, pod_scrape, service_scrape
from operator_place import JOBS, Place
from operator_process import DEPLOY, OperatorProcess
from rljob_operator import metrics as operator_metrics

from monitoring.alerts import Times, alerts, rules
from monitoring.dashboards import DASHBOARDS, JOB, OPERATOR, OVERVIEW
from monitoring.grafana import Dashboard, Panel
from monitoring.prometheus import Prometheus, expanded
from rlruntime.metrics import names as runtime_metrics
from rlruntime.metrics.family import Family

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.programs("prometheus")]

SHORT = Times(
    pending=60, storm=300, stalled=50, stalled_for=1, stale=20, stale_for=2, checkpoint=60, errors=30, errors_for=2
)
NAMESPACE = "rljob-system"
DEADLINE_S = 60
FAULTS = {
    "RLJobPendingTooLong": "stuck",
    "RLJobRestartStorm": "broken",
    "RLJobProgressStalled": "frozen",
    "RLJobWeightsStale": "stale",
    "RLJobNearDeadline": "sac",
    "RLJobCheckpointTooOld": "frozen",
}
"""Alert, and the job whose fault it is."""
SCRAPE = re.compile(r"up|scrape_.*|ALERTS.*")


@dataclass(frozen=True)
class Watched:
    """What was seen.

    Attributes:
        place: where the jobs were.
        source: the Prometheus.
        start_s, end_s: from when to when.
    """

    place: Place
    source: Prometheus
    start_s: float
    end_s: float

    def fired(self, alert: str) -> set[str]:
        """Return the jobs, or the empty text for the operator, for which an alert has fired at any time."""
        found = self.source.query_range(
            f'ALERTS{{alertname="{alert}", alertstate="firing"}}', self.start_s, time.time(), 1.0
        )
        here = [item for item in found if item.labels.get("namespace") in (self.place.namespace, NAMESPACE)]
        return {item.labels.get("rljob_job", "") for item in here}


@pytest.fixture(scope="module")
def watched(real_nodes: RealNodes, shared_operator: OperatorProcess) -> Iterator[Watched]:
    """All jobs, from their creation until each fault has been seen."""
    programs(["prometheus"])
    plane = real_nodes.plane
    shared_operator.wait_ready()
    place = Place(plane, plane.create_namespace("watched"))
    plane.api.create(f"/api/v1/namespaces/{place.namespace}/configmaps", watched_jobs.code(place.namespace))
    for document in (watched_jobs.well(), watched_jobs.stale(), watched_jobs.frozen()):
        plane.api.create(JOBS.format(place.namespace), document)
    for name in ("ppo", "stale", "frozen"):  # that they take their time to start is no fault of theirs
        place.wait_phase("Running", name, deadline_s=240.0)
    scrapes = [service_scrape(shared_operator.address, NAMESPACE), pod_scrape(plane.kubeconfig)]
    with PrometheusServer(scrapes, rules=rules(SHORT)) as server:
        start_s, source = time.time(), Prometheus(server.url)
        sac = watched_jobs.sac_job("sac", runPolicy={"activeDeadlineSeconds": DEADLINE_S})
        for document in (watched_jobs.stuck(), sac, watched_jobs.broken()):
            plane.api.create(JOBS.format(place.namespace), document)
        seen = Watched(place, source, start_s, 0.0)
        for alert, job in FAULTS.items():
            wait_for(
                f"{alert} fires for {job}",
                lambda alert=alert, job=job: job in seen.fired(alert),  # type: ignore[misc]
                deadline_s=240.0,
                every_s=1.0,
                describe=lambda job=job: place.status(job),  # type: ignore[misc]
            )
        place.wait_phase("Failed", "sac", deadline_s=60.0)
        _lose_a_right(place, seen)
        yield Watched(place, source, start_s, time.time())
    plane.delete_namespace(place.namespace)


def _lose_a_right(place: Place, seen: Watched) -> None:
    """Take the right to write statuses from the operator until its alert fires, and give it back."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/rljob-operator"
    kept = [rule for rule in place.cluster.api.get(path)["rules"] if rule["resources"] != ["rljobs/status"]]
    place.cluster.api.patch(path, {"rules": kept})
    try:
        wait_for(
            "RLJobOperatorReconcileErrors fires",
            lambda: seen.fired("RLJobOperatorReconcileErrors"),
            deadline_s=120.0,
            every_s=1.0,
        )
    finally:
        place.cluster.apply(DEPLOY / "rbac.yaml")


def has_data(watched: Watched, panel: Panel, variables: dict[str, str]) -> list[bool]:
    """Return for each query of a panel whether it had data at any time."""
    found = []
    for query in panel.queries:
        expr = expanded(query.expr, variables, interval="20s")
        found.append(bool(watched.source.query_range(expr, watched.start_s, watched.end_s, 2.0)))
    return found


def choices(watched: Watched, board: Dashboard) -> list[dict[str, str]]:
    """Return what is chosen on a dashboard, one choice after the other."""
    here = watched.place.namespace
    if board is OVERVIEW:
        return [{"namespace": here, "job": ".*"}]
    if board is OPERATOR:
        return [{"namespace": NAMESPACE}]
    return [{"namespace": here, "job": job} for job in ("ppo", "sac", "stale")]


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.uid)
def test_every_panel_of_a_dashboard_has_data(watched: Watched, board: Dashboard) -> None:
    without = set()
    for panel in board.panels:
        answers = [has_data(watched, panel, variables) for variables in choices(watched, board)]
        if not all(any(of_query) for of_query in zip(*answers, strict=True)):
            without.add(panel.title)
        if not panel.empty and board is JOB:
            assert all(any(of_job) for of_job in answers), f"{panel.title} is empty for a job that is well"
    assert without == set()


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.uid)
def test_every_variable_of_a_dashboard_has_choices(watched: Watched, board: Dashboard) -> None:
    chosen = choices(watched, board)[0]
    for variable in board.variables:
        values = watched.source.label_values(expanded(variable.query, chosen, interval="20s"))
        assert chosen[variable.name] in {*values, ".*"}
        assert values


@pytest.mark.parametrize("alert", [*FAULTS, "RLJobOperatorReconcileErrors"])
def test_an_alert_fires_for_the_job_whose_fault_was_made_and_for_no_other(watched: Watched, alert: str) -> None:
    assert watched.fired(alert) == {FAULTS.get(alert, "")}


def test_no_other_alert_fires(watched: Watched) -> None:
    assert {alert.name for alert in alerts() if watched.fired(alert.name)} == {*FAULTS, "RLJobOperatorReconcileErrors"}


def test_what_is_exported_is_what_the_docs_name(watched: Watched) -> None:
    both: tuple[tuple[str, dict[str, Family]], ...] = (
        ("rljob-operator", operator_metrics.FAMILIES),
        ("rljob-system/rljob-pods", runtime_metrics.FAMILIES),
    )
    for job, families in both:
        exported = {name for name in watched.source.names(f'{{job="{job}"}}') if not SCRAPE.fullmatch(name)}
        assert exported == {series for family in families.values() for series in family.series}


def test_phases_of_a_job_make_up_its_wall_time(watched: Watched) -> None:
    for job in ("ppo", "sac", "stale"):
        of_job = f'namespace="{watched.place.namespace}", rljob_job="{job}"'
        total = f"sum(rljob_phase_seconds_sum{{{of_job}}})"
        (series,) = watched.source.query_range(total, watched.start_s, watched.end_s, 1.0)
        moments, seconds = zip(
            *series.points[5:], strict=True
        )  # the first records hold what came before the first scrape
        assert 0.95 <= statistics.linear_regression(moments, seconds).slope <= 1.05, job


def test_no_job_has_more_than_twenty_series_of_the_operator(watched: Watched) -> None:
    counts = watched.source.query(
        'count by (namespace, rljob_job) ({job="rljob-operator", rljob_job!=""})', watched.end_s
    )
    assert len(counts) >= 6
    assert max(series.last for series in counts) <= 20


def test_the_series_of_a_deleted_job_vanish(watched: Watched) -> None:
    place, source = watched.place, watched.source
    own = f'{{namespace="{place.namespace}", rljob_job="ppo", __name__=~"rljob_.*|process_.*"}}'
    jobs = {series.labels["job"] for series in source.query(f"count by (job) ({own})")}
    assert jobs == {"rljob-operator", "rljob-system/rljob-pods"}
    place.cluster.api.delete(f"{JOBS.format(place.namespace)}/ppo")
    wait_for("its series are gone", lambda: not source.query(own), deadline_s=90.0, every_s=0.5)
    others = source.query(f'count(rljob_job_phase{{namespace="{place.namespace}"}})')
    assert others[0].last == 5
