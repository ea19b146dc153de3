"""The operator is killed between any two of its writes, one after the other: each job still ends as if nothing was."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from api_proxy import ApiProxy, Moment
from cluster_harness.cluster import wait_for
from cluster_harness.control_plane import ControlPlane
from cluster_harness.fixtures import RealNodes
from cluster_harness.images import RUNTIME
from operator_process import OperatorProcess, account_for_one
from scene import END_S, NAME, Scene

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

AT_ONCE = 4
"""Kill points that are tried at the same time, each in a namespace with an operator of its own."""
Records = list[dict[str, Any]]


def test_killed_at_any_of_its_writes_the_operator_charges_nothing_and_trains_every_frame_once(
    real_nodes: RealNodes, expected: Records
) -> None:
    plane = real_nodes.plane
    undisturbed = run_with_strike(plane, expected, None)
    assert undisturbed >= 8  # and some more for progress, where the machine is slow
    points: list[tuple[int, Moment]] = [
        (number, moment) for number in range(1, undisturbed + 1) for moment in ("before", "after")
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = [(point, pool.submit(run_with_strike, plane, expected, point)) for point in points]
    failed = {point: str(outcome.exception()) for point, outcome in outcomes if outcome.exception() is not None}
    assert failed == {}


def run_with_strike(plane: ControlPlane, expected: Records, point: tuple[int, Moment] | None) -> int:
    """Run the job, kill the operator at the write ``point`` and start it anew; return how many writes there were."""
    scene = Scene.make(plane)
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(ApiProxy(account_for_one(plane, scene.namespace)))
        kubeconfig = proxy.kubeconfig(plane.folder / f"{scene.namespace}.kubeconfig")
        options = ("--namespace", scene.namespace, "--image", RUNTIME)
        operator = stack.enter_context(OperatorProcess(kubeconfig, *options))
        if point is not None:
            proxy.strike(*point, functools.partial(os.kill, operator.process.pid, signal.SIGKILL))
        scene.begin(seconds=8.0)
        if point is not None:
            wait_for(
                "the operator is killed, or the job has ended with fewer writes",
                lambda: operator.process.returncode is not None or scene.status(NAME).get("completionTime"),
                deadline_s=END_S,
                describe=scene.describe,
            )
            if operator.process.returncode is not None:
                operator.start()
                operator.wait_ready()
        status = scene.assert_once(expected)
        assert status["attempt"] == 0
        assert [pod["metadata"]["name"] for pod in plane.pods(scene.namespace)] == [scene.pod()]
        assert [entry.name for entry in (scene.folder() / "attempts").iterdir()] == ["0"]
        return len(proxy.writes)
