"""Run jobs on a real node beside a real operator and Prometheus, and draw the dashboards from what was scraped.

`make dashboard-pictures` runs it, as root: one job learns and loses its pod once, others are well,
finished, stuck, or fail.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import watched_jobs
from cluster_harness.binaries import say
from cluster_harness.control_plane import ControlPlane, Settings
from cluster_harness.images import RUNTIME
from cluster_harness.node import Node
from cluster_harness.prometheus import PrometheusServer, pod_scrape, service_scrape
from cluster_harness.volumes import offer_volumes
from operator_place import JOBS, Place
from operator_process import SYSTEM_NAMESPACE, OperatorProcess, account_for_all
from scene import CLAIM

from monitoring.__main__ import FILES, ROOT
from monitoring.dashboards import DASHBOARDS, JOB, OPERATOR
from monitoring.prometheus import Prometheus
from monitoring.render import View, draw

NAMESPACE = "ml-team"
PICTURES = ROOT / "docs" / "images" / "dashboards"
LEARNS = "sac-pendulum"
_INTERVAL = "20s"


def jobs() -> list[dict[str, Any]]:
    """Return the jobs of the beginning."""
    learning = watched_jobs.sac_job(
        LEARNS,
        frames=150_000,
        storage=CLAIM,
        training={
            "env": {"id": "Pendulum-v1", "numEnvs": 2},
            "sac": {"randomFrames": 500, "iterationFrames": 200, "trainEverySteps": 5},
            "replay": {"storage": {"type": "Tensor", "config": {"capacity": 10_000}}, "batchSize": 128},
            "evaluation": {"everyFrames": 1500, "episodes": 5},
            "checkpoint": {"everyFrames": 1000, "keep": 2},
        },
    )
    quick = watched_jobs.ppo_job("ppo-quick", frames=40_000, env={"kwargs": {"delay_s": 0.001}})
    return [learning, quick, watched_jobs.well("ppo-cartpole"), watched_jobs.stale("ppo-async")]


def run(minutes: float) -> None:
    """Start everything, let it run for so long, and draw."""
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(Settings(controller_manager=True, scheduler=True)))
        plane.install_crds()
        stack.enter_context(Node(plane, "node-a"))
        offer_volumes(plane, plane.guard.folder / "volumes", 8)
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        plane.create_service_account(NAMESPACE, "default")
        plane.api.create(f"/api/v1/namespaces/{NAMESPACE}/configmaps", watched_jobs.code(NAMESPACE))
        operator = stack.enter_context(OperatorProcess(account_for_all(plane), "--all-namespaces", "--image", RUNTIME))
        scrapes = [service_scrape(operator.address, SYSTEM_NAMESPACE), pod_scrape(plane.kubeconfig)]
        server = stack.enter_context(PrometheusServer(scrapes, interval_s=2))
        start_s, place = time.time(), Place(plane, NAMESPACE)
        for document in jobs():
            plane.api.create(JOBS.format(NAMESPACE), document)
        say(f"jobs run for {minutes:g} minutes")
        time.sleep(60 * minutes * 0.3)
        for document in (watched_jobs.broken("ppo-broken"), watched_jobs.stuck("ppo-large")):
            plane.api.create(JOBS.format(NAMESPACE), document)
        time.sleep(60 * minutes * 0.25)
        pod = next(name for name in place.pods() if name.startswith(f"{LEARNS}-trainer-0-"))
        say(f"{pod} is deleted")
        place.delete_pod(pod)
        time.sleep(60 * minutes * 0.25)
        place.patch("ppo-async", {"runPolicy": {"suspend": True}})
        time.sleep(60 * minutes * 0.2)
        pictures(Prometheus(server.url), start_s)


def pictures(source: Prometheus, start_s: float) -> None:
    """Draw all dashboards into the docs."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    end_s = time.time()
    for board in DASHBOARDS:
        chosen = {"namespace": NAMESPACE, "job": LEARNS if board is JOB else ".*"}
        if board is OPERATOR:
            chosen = {"namespace": SYSTEM_NAMESPACE}
        path = PICTURES / f"{board.uid}.png"
        document = json.loads((FILES / "dashboards" / f"{board.uid}.json").read_text())
        draw(document, source, View(chosen, start_s, end_s, _INTERVAL), path)
        say(f"drew {path.relative_to(ROOT)}: {path.stat().st_size // 1000} kB")


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="how long the jobs run (default: %(default)s)")
    run(parser.parse_args().minutes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
