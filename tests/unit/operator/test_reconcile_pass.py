"""A pass over a job: what is written, in which order, and what becomes of it when something goes wrong in between."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from fake_kube import FakeKube
from prometheus_client import CollectorRegistry
from reconcile_bench import NAMESPACE, UID, Bench
from rljob_operator.builders.owner import Owner
from rljob_operator.kube.errors import Forbidden, Invalid, KubeError, NetworkError, NotFound, ServerError, error_of
from rljob_operator.kube.resources import PODS, RLJOBS, resource_of
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.planner.decide import decide
from rljob_operator.planner.observed import Observed
from rljob_operator.planner.plan import Plan
from rljob_operator.reconcile.reconciler import tell_status
from rljob_operator.reconcile.views import JobView

from rlruntime.spec.status import ProgressStatus, RestartsStatus, RLJobStatus

FOUR: dict[str, Any] = {"roles": [{"name": "trainer", "type": "Trainer", "replicas": 4}]}


def quota(verb: str, plural: str, name: str) -> KubeError | None:
    if (verb, plural) == ("create", "pods"):
        return Forbidden("create pods", code=403, message=f'pods "{name}" is forbidden: exceeded quota: small')
    return None


def test_a_new_job_is_judged_then_its_status_is_written_before_anything_is_created() -> None:
    bench = Bench()
    bench.submit()
    asyncio.run(bench.look())
    verbs = [" ".join(item.split()[:2]) for item in bench.kube.requests]
    assert verbs[:2] == ["dry-run pods", "patch rljobs"]
    assert sorted(verbs[2:5]) == ["create configmaps", "create secrets", "create services"]
    assert verbs[5:] == ["create pods"]
    assert bench.status()["phase"] == "Pending"


def test_pods_of_a_job_are_created_in_one_pass_and_counted_in_one_write() -> None:
    async def story(bench: Bench) -> None:
        await bench.look()
        created = len(bench.kube.requests)
        for index in range(4):
            bench.run_pod(f"ppo-trainer-{index}-0")
            if index < 3:
                assert await bench.look() is not None  # held back, and looked at again
        assert len(bench.kube.requests) == created
        await bench.look()
        assert bench.kube.requests[created:] == ["patch rljobs ppo"]

    bench = Bench()
    bench.submit(**FOUR)
    asyncio.run(story(bench))
    assert (bench.status()["ready"], bench.status()["phase"]) == ("4/4", "Running")


def test_counts_alone_are_written_after_a_second() -> None:
    async def story(bench: Bench) -> None:
        await bench.look()
        bench.run_pod("ppo-trainer-0-0")
        before = len(bench.kube.writes())
        wait_s = await bench.look()
        assert wait_s == pytest.approx(1.0)
        bench.seconds += 1.0
        await bench.look()
        assert bench.kube.writes()[before:] == ["patch rljobs ppo"]

    bench = Bench()
    bench.submit(**FOUR)
    asyncio.run(story(bench))
    assert bench.status()["ready"] == "1/4"


@pytest.mark.parametrize(("pace_s", "hold_s"), [(0.5, 3.0), (60.0, 10.0)])
def test_counts_wait_longer_where_everything_takes_longer(pace_s: float, hold_s: float) -> None:
    async def story(bench: Bench) -> float | None:
        await bench.look()
        bench.run_pod("ppo-trainer-0-0")
        return await bench.look()

    bench = Bench(pace_s=pace_s)
    bench.submit(**FOUR)
    assert asyncio.run(story(bench)) == pytest.approx(hold_s)


def test_progress_alone_is_written_at_most_once_in_fifteen_seconds() -> None:
    async def story(bench: Bench) -> list[float]:
        await bench.look()
        bench.run_pod("ppo-trainer-0-0")
        await bench.look()
        memory = bench.memories.of(UID)
        (pod,) = bench.cache.pods(UID)
        memory.progress_of = pod.uid
        times: list[float] = []
        for frames in range(1, 60):
            bench.seconds += 1.0
            memory.progress = ProgressStatus(frames=frames)
            before = len(bench.kube.writes())
            await bench.look()
            if len(bench.kube.writes()) > before:
                times.append(bench.seconds)
        return times

    bench = Bench()
    bench.submit()
    times = asyncio.run(story(bench))
    assert len(times) >= 3
    assert min(after - before for before, after in itertools.pairwise(times)) >= 15.0


def test_a_job_that_has_not_changed_is_not_written_by_an_operator_that_starts_anew() -> None:
    async def story(bench: Bench) -> None:
        await bench.look()
        bench.run_pod("ppo-trainer-0-0")
        await bench.look()
        before = len(bench.kube.requests)
        bench.start()
        bench.watch()
        await bench.look()
        await bench.look()
        assert bench.kube.requests[before:] == []

    bench = Bench()
    bench.submit()
    asyncio.run(story(bench))


def test_a_conflict_ends_the_pass_before_anything_rests_on_the_status() -> None:
    bench = Bench()
    bench.submit()
    job = bench.kube.stored(RLJOBS, "ppo")
    bench.kube.put(RLJOBS, {**job, "metadata": {**job["metadata"], "labels": {"by": "somebody"}}})
    wait_s = asyncio.run(bench.look())
    assert bench.kube.writes() == ["patch rljobs ppo"]
    assert wait_s == pytest.approx(0.2)
    asyncio.run(bench.look())  # the job was read again
    assert bench.kube.names(PODS) == ["ppo-trainer-0-0"]


def test_a_job_that_was_replaced_by_one_of_the_same_name_is_dropped() -> None:
    bench = Bench()
    bench.submit()
    job = bench.kube.stored(RLJOBS, "ppo")
    other = bench.kube.put(RLJOBS, {**job, "metadata": {**job["metadata"], "uid": "another"}})
    asyncio.run(bench.look())
    assert bench.cache.job(UID) is None
    assert bench.cache.apply_job(other) == "another"  # the watch, which comes later, has the other looked at
    assert asyncio.run(bench.look()) is None


@pytest.mark.parametrize("kind", ["pods", "configmaps", "secrets", "services"])
def test_a_creation_whose_answer_is_lost_is_not_made_twice(kind: str) -> None:
    bench = Bench()
    bench.submit()
    lost: list[str] = []

    def lose(verb: str, plural: str, name: str) -> bool:
        if (verb, plural) == ("create", kind) and not lost:
            lost.append(name)
            return True
        return False

    bench.kube.lose = lose
    with pytest.raises(NetworkError):
        asyncio.run(bench.look())
    asyncio.run(bench.look())
    assert bench.kube.names(PODS) == ["ppo-trainer-0-0"]
    for other in ("Secret", "ConfigMap", "Service"):
        assert len(bench.kube.names(resource_of(other))) == 1
    assert bench.cache.pods(UID)[0].name == "ppo-trainer-0-0"
    assert bench.condition("PodsReady")["reason"] == "Creating"


def test_a_pod_that_may_have_been_created_is_looked_for_before_the_next_plan() -> None:
    bench = Bench()
    bench.submit()
    bench.kube.lose = lambda verb, plural, _: (verb, plural) == ("create", "pods")
    with pytest.raises(NetworkError):
        asyncio.run(bench.look())
    before = len(bench.kube.requests)
    asyncio.run(bench.look())
    assert bench.kube.requests[before] == "get pods ppo-trainer-0-0"
    assert bench.kube.requests.count("create pods ppo-trainer-0-0") == 1


def test_a_status_whose_answer_is_lost_is_read_again_and_nothing_is_charged_twice() -> None:
    async def story(bench: Bench) -> None:
        await bench.look()
        bench.run_pod("ppo-trainer-0-0")
        await bench.look()
        bench.kube.lose = lambda verb, plural, _: (verb, plural) == ("patch", "rljobs")
        del bench.kube.objects["pods", NAMESPACE, "ppo-trainer-0-0"]
        bench.cache.remove_pod(UID, bench.cache.pods(UID)[0].uid)
        with pytest.raises(NetworkError):
            await bench.look()
        bench.kube.lose = lambda *_: False
        await bench.look()  # finds the conflict, and reads
        await bench.look()

    bench = Bench()
    bench.submit()
    asyncio.run(story(bench))
    assert bench.status()["restarts"]["disruptions"] == 1
    assert bench.kube.names(PODS) == ["ppo-trainer-0-1"]


def test_a_quota_is_told_at_once_and_asked_again_with_growing_pauses() -> None:
    async def story(bench: Bench) -> list[float]:
        bench.kube.refuse = quota
        assert await bench.look() == 0.0  # the refusal is new, so it is told first
        await bench.look()
        assert bench.condition("PodsReady")["reason"] == "QuotaExceeded"
        assert "exceeded quota: small" in bench.condition("PodsReady")["message"]
        times: list[float] = []
        for _ in range(200):
            before = bench.kube.requests.count("create pods ppo-trainer-0-0")
            await bench.look()
            if bench.kube.requests.count("create pods ppo-trainer-0-0") > before:
                times.append(bench.seconds)
            bench.seconds += 1.0
        return times

    bench = Bench()
    bench.submit()
    times = asyncio.run(story(bench))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps[:5] == [2.0, 4.0, 8.0, 16.0, 32.0]
    assert set(gaps[5:]) == {60.0}


def test_a_webhook_that_is_away_is_said_and_asked_again_with_growing_pauses() -> None:
    def refuse(verb: str, plural: str, name: str) -> KubeError | None:
        words = 'Internal error occurred: failed calling webhook "policy.example.com": connection refused'
        return ServerError(verb, code=500, message=words) if plural == "pods" and verb != "get" else None

    async def story(bench: Bench) -> None:
        bench.kube.refuse = refuse
        for _ in range(20):
            await bench.look()
            bench.seconds += 1.0
        assert bench.condition("PodsReady")["reason"] == "Refused"
        assert 'failed calling webhook "policy.example.com"' in bench.condition("PodsReady")["message"]
        assert bench.kube.requests.count("create pods ppo-trainer-0-0") == 5  # after 0, 1, 3, 7 and 15 seconds
        bench.kube.refuse = lambda *_: None
        bench.seconds += 60.0
        await bench.look()

    bench = Bench()
    bench.submit()
    asyncio.run(story(bench))
    assert bench.kube.names(PODS) == ["ppo-trainer-0-0"]


def test_a_job_goes_on_once_a_quota_has_room() -> None:
    async def story(bench: Bench) -> None:
        bench.kube.refuse = quota
        await bench.look()
        await bench.look()
        bench.kube.refuse = lambda *_: None
        for _ in range(4):
            bench.seconds += 1.0
            await bench.look()

    bench = Bench()
    bench.submit()
    asyncio.run(story(bench))
    assert bench.condition("PodsReady")["reason"] == "Creating"
    assert bench.kube.names(PODS) == ["ppo-trainer-0-0"]


@pytest.mark.parametrize("kind", ["Service", "ConfigMap", "PersistentVolumeClaim", "Pod"])
def test_an_object_of_a_stranger_is_neither_changed_nor_taken_for_ours(kind: str) -> None:
    bench = Bench()
    names = {
        "Service": f"ppo-{UID[:8]}",
        "ConfigMap": f"ppo-{UID[:8]}-spec",
        "PersistentVolumeClaim": f"ppo-{UID[:8]}-storage",
        "Pod": "ppo-trainer-0-0",
    }
    theirs = bench.kube.put(resource_of(kind), {"metadata": {"name": names[kind], "namespace": NAMESPACE}})
    bench.submit(storage={"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}})
    asyncio.run(bench.look())
    asyncio.run(bench.look())
    said = bench.condition("PodsReady")
    assert said["reason"] == "NameTaken"
    assert names[kind] in said["message"]
    assert bench.kube.stored(resource_of(kind), names[kind]) == theirs
    if kind != "Pod":
        assert bench.kube.names(PODS) == []


def test_a_claim_that_was_kept_for_this_job_is_taken_for_ours() -> None:
    bench = Bench()
    labels = {"rljob.io/job-uid": UID}
    claim = {"metadata": {"name": f"ppo-{UID[:8]}-storage", "namespace": NAMESPACE, "labels": labels}}
    bench.kube.put(resource_of("PersistentVolumeClaim"), claim)
    bench.submit(storage={"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}})
    asyncio.run(bench.look())
    assert bench.kube.names(PODS) == ["ppo-trainer-0-0"]


def test_a_template_that_is_refused_is_asked_about_once_and_fails_the_job() -> None:
    def refuse(verb: str, plural: str, name: str) -> KubeError | None:
        words = 'strict decoding error: unknown field "spec.contaniers"'
        return Invalid("create pods", code=400, message=words) if verb == "dry-run" else None

    bench = Bench()
    bench.submit()
    bench.kube.refuse = refuse
    for _ in range(3):
        asyncio.run(bench.look())
    assert bench.kube.requests == ["dry-run pods ppo-trainer-0-0", "patch rljobs ppo"]
    failed = bench.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", "TemplateInvalid")
    assert "spec.contaniers" in failed["message"]


def test_nothing_is_done_in_a_namespace_that_is_being_deleted() -> None:
    def refuse(verb: str, plural: str, name: str) -> KubeError | None:
        body = b'{"reason": "Forbidden", "details": {"causes": [{"reason": "NamespaceTerminating"}]}}'
        return error_of(f"{verb} {plural}", 403, body) if verb == "create" else None

    bench = Bench()
    bench.submit()
    bench.kube.refuse = refuse
    assert asyncio.run(bench.look()) is None


def test_pods_are_deleted_only_with_their_uid() -> None:
    async def story(bench: Bench) -> None:
        await bench.look()
        job = bench.kube.stored(RLJOBS, "ppo")
        job["spec"]["runPolicy"] = {"suspend": True}
        job["metadata"]["generation"] = 2
        bench.kube.put(RLJOBS, job)
        bench.watch()
        pod = bench.kube.stored(PODS, "ppo-trainer-0-0")
        bench.kube.put(PODS, {**pod, "metadata": {**pod["metadata"], "uid": "another"}})
        await bench.look()

    bench = Bench()
    bench.submit()
    asyncio.run(story(bench))
    assert "delete pods ppo-trainer-0-0" in bench.kube.requests
    assert bench.kube.stored(PODS, "ppo-trainer-0-0")["metadata"]["uid"] == "another"


def test_a_pod_that_was_deleted_on_a_lost_node_is_waited_for_though_no_event_comes() -> None:
    async def story(bench: Bench) -> None:
        await bench.look()
        bench.kube.objects["pods", NAMESPACE, "ppo-trainer-0-0"]["spec"]["nodeName"] = "lost"
        bench.play("ppo-trainer-0-0", phase="Running", conditions=[{"type": "Ready", "status": "False"}])
        job = bench.kube.stored(RLJOBS, "ppo")
        job["spec"]["runPolicy"] = {"suspend": True}
        job["metadata"]["generation"] = 2
        bench.kube.put(RLJOBS, job)
        bench.watch()
        wait_s: float | None = 0.0
        for _ in range(20):  # the clock moves only as far as the operator asks for
            assert wait_s is not None
            bench.seconds += wait_s
            wait_s = await bench.look()
            if bench.kube.names(PODS) == []:
                return

    bench = Bench(seconds=0.0)
    bench.submit()
    asyncio.run(story(bench))
    assert bench.kube.names(PODS) == []


def test_a_finished_job_is_not_deleted_once_somebody_has_changed_it() -> None:
    def plan(observed: Observed, *, now: datetime, image: str, nonce: str) -> Plan:
        return Plan(observed.status, delete_job=True)

    bench = Bench(decide=plan)
    bench.submit()
    job = bench.kube.stored(RLJOBS, "ppo")
    bench.kube.put(RLJOBS, job)
    wait_s = asyncio.run(bench.look())
    assert bench.kube.names(RLJOBS) == ["ppo"]
    assert wait_s == pytest.approx(0.2)
    asyncio.run(bench.look())  # the job was read again: what has changed may be nothing that the operator looks at
    assert bench.kube.names(RLJOBS) == []


def test_nothing_is_asked_of_the_server_where_plans_are_only_logged() -> None:
    bench = Bench(dry_run=True)
    bench.submit()
    asyncio.run(bench.look())
    assert bench.kube.requests == []


def test_a_status_that_this_version_can_not_read_is_left_alone() -> None:
    bench = Bench()
    bench.submit()
    job = bench.kube.stored(RLJOBS, "ppo")
    bench.kube.put(RLJOBS, {**job, "status": {"attempt": "three"}})
    bench.watch()
    with pytest.raises(ValueError, match="can't be read"):
        asyncio.run(bench.look())
    assert bench.kube.requests == []


def test_a_pod_that_is_gone_is_forgotten_once_its_place_has_a_later_attempt() -> None:
    async def story(bench: Bench) -> None:
        await bench.look()
        bench.run_pod("ppo-trainer-0-0")
        await bench.look()
        del bench.kube.objects["pods", NAMESPACE, "ppo-trainer-0-0"]
        bench.watch()
        assert [pod.gone for pod in bench.cache.pods(UID)] == [True]
        await bench.look()

    bench = Bench()
    bench.submit()
    asyncio.run(story(bench))
    assert [(pod.attempt, pod.gone) for pod in bench.cache.pods(UID)] == [(1, False)]


def test_events_are_emitted_though_a_later_write_fails() -> None:
    def refuse(verb: str, plural: str, name: str) -> KubeError | None:
        return NetworkError("delete pods") if (verb, plural) == ("delete", "pods") else None

    async def story(bench: Bench) -> None:
        bench.events.start()
        await bench.look()
        bench.kube.objects["pods", NAMESPACE, "ppo-trainer-0-0"]["spec"]["nodeName"] = "a"
        bench.run_pod("ppo-trainer-0-0")
        await bench.look()
        bench.kube.refuse = refuse
        ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
        statuses = [{"name": "rljob", "state": ended}]
        bench.play("ppo-trainer-0-0", phase="Failed", conditions=[], containerStatuses=statuses)
        with pytest.raises(NetworkError):
            await bench.look()
        await bench.events.stop(1.0)

    bench = Bench()
    bench.submit()
    asyncio.run(story(bench))
    reasons = [item["reason"] for (plural, _, _), item in bench.kube.objects.items() if plural == "events"]
    assert reasons == ["Running", "Restarting"]


def test_a_status_write_of_a_job_that_is_gone_ends_the_pass() -> None:
    def refuse(verb: str, plural: str, name: str) -> KubeError | None:
        return NotFound(verb, code=404) if plural == "rljobs" else None

    bench = Bench()
    bench.submit()
    bench.kube.refuse = refuse
    asyncio.run(bench.look())
    assert bench.kube.names(PODS) == []
    assert bench.cache.job(UID) is None


def test_the_planner_is_not_asked_forever_for_the_same_dry_run() -> None:
    def plan(observed: Observed, *, now: datetime, image: str, nonce: str) -> Plan:
        fresh = replace(observed, templates_valid=None)
        return decide(fresh, now=now, image=image, nonce=nonce)

    bench = Bench(decide=plan)
    bench.submit()
    with pytest.raises(RuntimeError, match="the same dry run"):
        asyncio.run(bench.look())


def test_the_fake_server_keeps_the_rules_that_these_tests_rest_on() -> None:
    kube = FakeKube()
    pod = {"kind": "Pod", "metadata": {"name": "a", "namespace": NAMESPACE}, "spec": {}}
    made = asyncio.run(kube.create(pod))
    with pytest.raises(KubeError, match="AlreadyExists"):
        asyncio.run(kube.create(pod))
    with pytest.raises(KubeError, match="Conflict"):
        asyncio.run(kube.delete(PODS, NAMESPACE, "a", uid="another"))
    asyncio.run(kube.delete(PODS, NAMESPACE, "a", uid=made["metadata"]["uid"]))
    assert kube.names(PODS) == []


def test_what_the_trainer_said_last_stands_in_the_status_of_a_job_that_succeeded() -> None:
    report = {"uid": UID, "attempt": 0, "round": 0, "phase": "Succeeded", "totalFrames": 1000, "resumedFrames": 0}
    report |= {"frames": 1000, "reward": 500.0, "checkpoint": {"frames": 1000, "path": "step-1000"}}
    words = {"reason": "Succeeded", "message": "done", "report": report}
    ended = {"exitCode": 0, "reason": "Completed", "message": json.dumps(words), "finishedAt": "2026-01-01T00:09:00Z"}

    async def story(bench: Bench) -> None:
        await bench.look()
        bench.run_pod("ppo-trainer-0-0")
        await bench.look()
        statuses = [{"name": "rljob", "state": {"terminated": ended}}]
        bench.play("ppo-trainer-0-0", phase="Succeeded", conditions=[], containerStatuses=statuses)
        await bench.look()

    bench = Bench()
    bench.submit()
    asyncio.run(story(bench))
    status = bench.status()
    assert status["phase"] == "Succeeded"
    assert (status["progress"]["percent"], status["progress"]["reward"]) == (100, 500.0)
    assert status["progress"]["updateTime"] == "2026-01-01T00:09:00Z"
    assert status["checkpoint"]["path"] == "step-1000"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (r'{"reason": "Bad\ud800", "message": "half \ud800 a character"}', "half ? a character"),
        (f'{{"reason": "R", "message": "m", "report": {{"uid": "{UID}", "attempt": 0, "frames": {10**30}}}}}', "m"),
        ('{"reason": "R", "message": "%s"}' % (9000 * "x"), "xxxxxxxx"),
        (9000 * "[{", "[{[{[{"),
    ],
)
@pytest.mark.parametrize(("code", "phase"), [(1, "Restarting"), (0, "Succeeded")])
def test_no_last_words_of_a_container_keep_the_status_from_being_written(
    words: str, expected: str, code: int, phase: str
) -> None:
    async def story(bench: Bench) -> None:
        await bench.look()
        bench.run_pod("ppo-trainer-0-0")
        await bench.look()
        ended = {"terminated": {"exitCode": code, "reason": "Error", "message": words}}
        bench.play("ppo-trainer-0-0", conditions=[], containerStatuses=[{"name": "rljob", "state": ended}])
        await bench.look()

    bench = Bench()
    bench.submit()
    asyncio.run(story(bench))
    status = bench.status()
    assert status["phase"] == phase
    assert "progress" not in status
    if code:
        assert expected in status["restarts"]["lastMessage"]
    json.dumps(status, ensure_ascii=False).encode()  # as it goes over the wire


def view_of(status: RLJobStatus) -> JobView:
    return JobView(Owner("ppo", NAMESPACE, UID), 1, 1, None, status)


def test_a_job_that_runs_and_restarts_that_were_charged_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = OperatorMetrics(registry)
    began = RLJobStatus(phase="Pending", start_time="2026-01-01T00:00:00Z", attempt=0)
    runs = began.model_copy(update={"phase": "Running", "running_time": "2026-01-01T00:00:05Z"})
    tell_status(metrics, view_of(began), runs)
    assert registry.get_sample_value("rljob_operator_job_time_to_running_seconds_sum") == 5.0
    tell_status(metrics, view_of(runs), runs)
    assert registry.get_sample_value("rljob_operator_job_time_to_running_seconds_count") == 1
    for attempt, faults, disruptions, reason in ((1, 1, 0, "OOMKilled"), (1, 2, 0, "MyError"), (2, 2, 1, "Evicted")):
        restarts = RestartsStatus(faults=faults, disruptions=disruptions, last_reason=reason)
        after = runs.model_copy(update={"attempt": attempt, "restarts": restarts})
        tell_status(metrics, view_of(runs), after)
        runs = after

    def count(scope: str, budget: str, reason: str) -> float | None:
        labels = {"scope": scope, "budget": budget, "reason": reason}
        return registry.get_sample_value("rljob_operator_restarts_total", labels)

    assert count("Gang", "Faults", "OOMKilled") == 1
    assert count("Pod", "Faults", "Other") == 1
    assert count("Gang", "Disruptions", "Evicted") == 1


@pytest.mark.parametrize(
    ("phase", "reason", "shown"), [("Succeeded", "Completed", "Completed"), ("Failed", "Odd", "Other")]
)
def test_a_job_that_ends_is_counted_once_with_a_reason_that_is_known(phase: str, reason: str, shown: str) -> None:
    registry = CollectorRegistry()
    metrics = OperatorMetrics(registry)
    runs, ended = RLJobStatus(phase="Running"), RLJobStatus(phase=phase, reason=reason)
    tell_status(metrics, view_of(runs), ended)
    tell_status(metrics, view_of(ended), ended)
    assert registry.get_sample_value("rljob_operator_jobs_finished_total", {"phase": phase, "reason": shown}) == 1
