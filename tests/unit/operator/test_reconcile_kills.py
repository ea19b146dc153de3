"""The operator dies before or after any one of its writes, and one that starts anew goes on where it was."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_kube import FakeKube
from reconcile_bench import NAMESPACE, Bench
from rljob_operator.kube.errors import KubeError, NetworkError
from rljob_operator.kube.resources import PODS, resource_of

TWO: dict[str, Any] = {"roles": [{"name": "trainer", "type": "Trainer", "replicas": 2}]}
STEPS = 80


class Killed(NetworkError):
    """The process ended; what it was about to learn, it never learns."""


def kill_at(kube: FakeKube, number: int, moment: str) -> None:
    """Have the writer of the write with this number, from 1, die before or after it is done."""

    def is_it() -> bool:
        return len(kube.writes()) == number

    def before(verb: str, plural: str, name: str) -> KubeError | None:
        return Killed(verb) if moment == "before" and verb in ("create", "patch", "delete") and is_it() else None

    def after(verb: str, plural: str, name: str) -> bool:
        return moment == "after" and verb in ("create", "patch", "delete") and is_it()

    kube.refuse, kube.lose = before, after


async def live(bench: Bench) -> None:
    """Play a job whose second trainer fails once, and whose first then finishes."""
    failed = False
    for _ in range(STEPS):
        bench.seconds += 1.0
        try:
            await bench.look()
        except NetworkError:
            bench.start()
            bench.watch()
            continue
        phase = bench.status().get("phase")
        if phase == "Succeeded":
            return
        for name in bench.kube.names(PODS):
            if "status" not in bench.kube.stored(PODS, name):
                bench.run_pod(name)
        if phase == "Running" and not failed:
            failed = True
            end(bench, "ppo-trainer-1-0", 1)
        elif phase == "Running" and "ppo-trainer-0-1" in bench.kube.names(PODS):
            end(bench, "ppo-trainer-0-1", 0)
        bench.watch()


def end(bench: Bench, name: str, code: int) -> None:
    state = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
    statuses = [{"name": "rljob", "state": state}]
    bench.play(name, phase="Failed" if code else "Succeeded", conditions=[], containerStatuses=statuses)


def writes_of_an_undisturbed_life() -> list[str]:
    bench = Bench()
    bench.submit(**TWO)
    asyncio.run(live(bench))
    return bench.kube.writes()


WRITES = writes_of_an_undisturbed_life()


def test_the_life_that_is_disturbed_has_all_kinds_of_writes() -> None:
    kinds = {" ".join(item.split()[:2]) for item in WRITES}
    wanted = {"create secrets", "create configmaps", "create services", "create pods", "patch rljobs", "delete pods"}
    assert kinds == wanted


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(1, len(WRITES) + 1))
def test_a_death_at_any_write_changes_nothing_of_the_outcome(number: int, moment: str) -> None:
    bench = Bench()
    bench.submit(**TWO)
    kill_at(bench.kube, number, moment)
    asyncio.run(live(bench))
    status = bench.status()
    assert status["phase"] == "Succeeded", (bench.kube.requests, status)
    assert (status["attempt"], status["restarts"]["faults"]) == (1, 1)
    assert status["restarts"].get("disruptions", 0) == 0
    for kind in ("Secret", "ConfigMap", "Service"):
        assert len(bench.kube.names(resource_of(kind))) == 1
    assert ("pods", NAMESPACE, "ppo-trainer-0-2") not in bench.kube.objects
