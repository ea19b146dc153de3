"""Watches that are held open and say nothing: the operator notices, opens others, and says so where it can't."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from api_proxy import ApiProxy
from cluster_harness import products
from cluster_harness.cluster import wait_for
from cluster_harness.control_plane import ControlPlane
from cluster_harness.fixtures import programs
from cluster_harness.prometheus import PrometheusServer, service_scrape
from operator_place import JOBS, Place
from operator_process import SYSTEM_NAMESPACE, OperatorProcess, account_for_one
from played_kubelet import run_all

from monitoring.alerts import Times, rules
from monitoring.dashboards import OPERATOR
from monitoring.prometheus import Prometheus, expanded

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ACTED_WITHIN_S = 90.0
HEALTHY_FOR_S, UNHEALTHY_AFTER_S = 140.0, 175.0
QUIET_FOR_S = 60.0
"""The last words before the silence are at most that old when it begins, and the alert waits for twice as long."""
WELL_WITHIN_S = 160.0
"""A watch is given up after 70 s, and the next one says something within 60."""
DOWN_FOR_S = 15


@pytest.fixture
def quiet_plane(api_server_programs: None) -> Iterator[ControlPlane]:
    """A control plane without nodes."""
    with ControlPlane() as plane:
        plane.install_crds()
        yield plane


def test_a_change_made_while_the_watches_were_silent_is_acted_on_within_ninety_seconds(
    quiet_plane: ControlPlane,
) -> None:
    place = Place(quiet_plane, quiet_plane.create_namespace())
    with ApiProxy(account_for_one(quiet_plane, place.namespace)) as proxy:
        kubeconfig = proxy.kubeconfig(quiet_plane.folder / "silent.kubeconfig")
        with OperatorProcess(kubeconfig, "--namespace", place.namespace) as operator:
            place.create()
            run_all(quiet_plane, place.namespace, 1)
            place.wait_phase("Running")
            proxy.silence_watches(also_new=False)
            place.patch("ppo", {"runPolicy": {"suspend": True}})
            place.wait_pods(deadline_s=ACTED_WITHIN_S)
            place.wait_phase("Suspended")
            assert operator.get("/healthz")[0] == 200


def delete_unseen(place: Place) -> None:
    """Delete the job and its pod; there is no controller here that does that."""
    place.cluster.api.delete(f"{JOBS.format(place.namespace)}/ppo")
    for pod in place.pods():
        place.delete_pod(pod)


def missed(source: Prometheus) -> dict[str, float]:
    """Return how many objects watches had missed, by resource."""
    found = source.query("rljob_operator_resync_corrections_total")
    return {series.labels["resource"]: series.last for series in found}


def shown(source: Prometheus) -> list[str]:
    """Return the resources of which the dashboard's panel shows that something was missed."""
    (panel,) = (panel for panel in OPERATOR.panels if panel.title == "Objects that watches had missed")
    (query,) = panel.queries
    found = source.query(expanded(query.expr, {"namespace": SYSTEM_NAMESPACE}, interval="1m"))
    return [series.labels["resource"] for series in found if series.last > 0]


@pytest.mark.programs(*products.PROMETHEUS)
def test_the_probe_fails_after_two_and_a_half_silent_minutes_an_alert_before_it_and_another_once_the_operator_ended(
    quiet_plane: ControlPlane,
) -> None:
    programs(products.PROMETHEUS)
    namespace = quiet_plane.create_namespace()
    place = Place(quiet_plane, namespace)
    with ApiProxy(account_for_one(quiet_plane, namespace)) as proxy:
        kubeconfig = proxy.kubeconfig(quiet_plane.folder / "mute.kubeconfig")
        with (
            OperatorProcess(kubeconfig, "--namespace", namespace) as operator,
            PrometheusServer(
                [service_scrape(operator.address, SYSTEM_NAMESPACE)],
                rules=rules(Times(down_for=DOWN_FOR_S)),
                interval_s=2,
            ) as server,
        ):
            place.create()
            run_all(quiet_plane, namespace, 1)
            place.wait_phase("Running")
            proxy.silence_watches(also_new=True)
            began, source = time.monotonic(), Prometheus(server.url)
            delete_unseen(place)
            while time.monotonic() - began < HEALTHY_FOR_S:
                code, words = operator.get("/healthz")
                assert code == 200, words
                silent = {alert["resource"] for alert in source.firing()}
                assert silent <= (set() if time.monotonic() - began < QUIET_FOR_S else {"pods", "rljobs"})
                time.sleep(2.0)
            assert {alert["alertname"] for alert in source.firing()} == {"RLJobOperatorWatchSilent"}
            assert silent == {"pods", "rljobs"}
            wait_for(
                "the probe fails",
                lambda: operator.get("/healthz")[0] == 503,
                deadline_s=UNHEALTHY_AFTER_S - HEALTHY_FOR_S,
            )
            assert "silent" in operator.get("/healthz")[1] or "nothing" in operator.get("/healthz")[1]
            assert set(missed(source).values()) == {0.0}
            quiet_plane.restart_apiserver()  # it remembers nothing of the time before, so that no watch can be resumed
            proxy.end_silence()
            wait_for("the probe is well again", lambda: operator.get("/healthz")[0] == 200, deadline_s=WELL_WITHIN_S)
            wait_for("what was deleted is found", lambda: set(missed(source).values()) == {1.0})
            assert missed(source) == {"pods": 1.0, "rljobs": 1.0}
            wait_for("the panel shows it", lambda: set(shown(source)) == {"pods", "rljobs"})
            wait_for("the alert is over", lambda: not source.firing())
            operator.stop()
            wait_for("the alert fires that no operator acts", source.firing, deadline_s=60.0, every_s=1.0)
            assert {alert["alertname"] for alert in source.firing()} == {"RLJobOperatorDown"}
