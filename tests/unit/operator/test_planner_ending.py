"""How a job ends, and what is left of it: on every way to the end the same."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from planner_cases import (
    ENGINE,
    NOW,
    TRAINER,
    a_pod,
    condition,
    created,
    deleted,
    deleting,
    ended,
    events,
    gone,
    job_spec,
    plan_for,
    pods_ready,
    running,
    seen,
    status_of,
)
from rljob_operator.planner.observed import CreateRefused, Observed, ObservedPod
from rljob_operator.planner.plan import Plan

from rlruntime.spec.status import CheckpointStatus, ProgressStatus

ROLES = [{**TRAINER, "replicas": 2}, ENGINE]
PODS = (running(), running("trainer", 1), running("engine"))


def _job(*pods: ObservedPod, **fields: Any) -> Observed:
    """Return a job that ran, of which ``pods`` are observed now; ``fields`` are of `runPolicy`, or observed."""
    observed = {name: fields.pop(name) for name in ("refused", "templates_valid") if name in fields}
    spec = job_spec(roles=ROLES, runPolicy=fields)
    return seen(spec, *pods, status=status_of(spec, *PODS), **observed)


def test_job_succeeds_when_its_first_trainer_is_done() -> None:
    done = ended(0, message='{"reason": "Completed", "message": "reward 490 after 100,000 frames"}')
    plan = plan_for(_job(done, *PODS[1:]), after_s=90)
    status = plan.status
    assert (status.phase, status.reason) == ("Succeeded", "Completed")
    assert status.message == "reward 490 after 100,000 frames"
    assert status.completion_time == "2026-11-30T10:01:30Z"
    assert status.ready == "0/3"
    found = condition(plan, "Succeeded")
    assert found is not None
    assert (found.status, found.observed_generation) == ("True", 1)
    assert condition(plan, "Failed") is None
    assert pods_ready(plan) == ("False", "Finished")
    assert events(plan) == ["Succeeded"]
    assert plan.write == "Now"


def test_other_trainers_and_engines_that_are_done_do_not_end_the_job() -> None:
    plan = plan_for(_job(PODS[0], ended(0, "trainer", 1), ended(0, "engine")))
    assert plan.status.phase == "Running"
    assert plan.status.ready == "3/3"


def test_trainer_that_is_done_wins_over_another_that_failed() -> None:
    plan = plan_for(_job(ended(0), ended(1, "trainer", 1), ended(78, "engine"), backoffLimit=0))
    assert plan.status.phase == "Succeeded"
    assert plan.status.restarts is None


def test_trainer_that_was_done_and_is_gone_ends_the_job() -> None:
    assert plan_for(_job(gone(ended(0)), *PODS[1:])).status.phase == "Succeeded"


def test_trainer_of_an_earlier_attempt_that_is_done_does_not_end_the_job() -> None:
    status = plan_for(_job(PODS[0], ended(1, "trainer", 1), PODS[2])).status
    plan = plan_for(seen(job_spec(roles=ROLES), deleting(ended(0)), PODS[2], status=status))
    assert plan.status.phase == "Restarting"


def test_what_the_trainer_said_last_stays_in_the_status() -> None:
    spec = job_spec()
    progress, checkpoint = ProgressStatus(frames=1000, percent=100, reward=490.5), CheckpointStatus(frames=1000)
    plan = plan_for(seen(spec, ended(0), status=status_of(spec, running()), progress=progress, checkpoint=checkpoint))
    assert (plan.status.progress, plan.status.checkpoint) == (progress, checkpoint)


def test_progress_alone_is_written_lazily() -> None:
    spec = job_spec()
    plan = plan_for(seen(spec, running(), status=status_of(spec, running()), progress=ProgressStatus(frames=10)))
    assert plan.write == "Lazy"
    assert plan.status.progress == ProgressStatus(frames=10)


ENDS: dict[str, Callable[..., Plan]] = {
    "Completed": lambda **policy: plan_for(_job(ended(0), *PODS[1:], **policy)),
    "ConfigInvalid": lambda **policy: plan_for(_job(ended(78), *PODS[1:], **policy)),
    "BackoffLimitExceeded": lambda **policy: plan_for(_job(ended(1), *PODS[1:], backoffLimit=0, **policy)),
    "DisruptionLimitExceeded": lambda **policy: plan_for(_job(ended(75), *PODS[1:], disruptionLimit=0, **policy)),
    "DeadlineExceeded": lambda **policy: plan_for(
        _job(ended(0, "trainer", 1), PODS[0], PODS[2], activeDeadlineSeconds=60, **policy), after_s=60
    ),
    "TemplateInvalid": lambda **policy: plan_for(
        _job(ended(0, "trainer", 1), PODS[0], PODS[2], refused=(CreateRefused("x", "TemplateInvalid", "no"),), **policy)
    ),
}


@pytest.mark.parametrize("policy", ["Running", "All", "None"])
@pytest.mark.parametrize("reason", ENDS)
def test_pods_are_cleaned_up_by_the_policy_on_every_way_to_the_end(reason: str, policy: str) -> None:
    plan = ENDS[reason](cleanPodPolicy=policy)
    assert plan.status.reason == reason
    over = {"trainer-1"} if reason in ("DeadlineExceeded", "TemplateInvalid") else {"trainer-0"}
    all_pods = {"trainer-0", "trainer-1", "engine-0"}
    expected = {"Running": all_pods - over, "All": all_pods, "None": set()}[policy]
    assert {name.removeprefix("ppo-").removesuffix("-0") for name in deleted(plan)} == expected
    assert plan.creates == ()


def test_what_was_not_cleaned_up_before_a_crash_is_afterwards() -> None:
    observed = _job(ended(0), *PODS[1:])
    status = plan_for(observed).status
    again = plan_for(seen(observed.spec or job_spec(), ended(0), PODS[1], deleting(PODS[2]), status=status))
    assert again.status == status
    assert (again.write, deleted(again)) == ("None", ["ppo-trainer-1-0"])


def test_pod_whose_main_container_has_ended_gets_time_to_end_before_it_counts_as_running() -> None:
    observed = _job(ended(0, phase="Running"), *PODS[1:])
    first = plan_for(observed)
    assert (deleted(first), first.requeue_after_s) == (["ppo-trainer-1-0", "ppo-engine-0-0"], 10.0)
    spec = job_spec(roles=ROLES)
    assert deleted(plan_for(seen(spec, ended(0), status=first.status), after_s=10)) == []
    running_on = seen(spec, ended(0, phase="Running"), status=first.status)
    assert deleted(plan_for(running_on, after_s=10)) == ["ppo-trainer-0-0"]


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param((), id="all pods gone"),
        pytest.param((ended(1),), id="a trainer failed"),
        pytest.param((gone(ended(0)), ended(78, "engine")), id="an engine was set up wrongly"),
        pytest.param((ended(0, attempt=1),), id="a later trainer is done"),
    ],
)
@pytest.mark.parametrize("end", ["Completed", "ConfigInvalid"])
def test_finished_job_is_never_run_again(end: str, pods: tuple[ObservedPod, ...]) -> None:
    status = ENDS[end]().status
    for changed in ({}, {"suspend": True}, {"backoffLimit": 100}, {"activeDeadlineSeconds": 1}):
        spec = job_spec(roles=ROLES, runPolicy=changed)
        plan = plan_for(seen(spec, *pods, status=status, generation=2), after_s=86_400)
        assert plan.status == status
        assert (plan.write, plan.creates, plan.dry_runs, plan.events) == ("None", (), (), ())


def test_finished_job_is_deleted_when_its_time_has_come_and_not_before() -> None:
    observed = _job(ended(0), ttlSecondsAfterFinished=60)
    first = plan_for(observed, after_s=10)
    assert (first.delete_job, first.requeue_after_s) == (False, 60.0)
    spec = job_spec(roles=ROLES, runPolicy={"ttlSecondsAfterFinished": 60})
    early = plan_for(seen(spec, ended(0), status=first.status), after_s=45.5)
    assert (early.delete_job, early.requeue_after_s) == (False, 24.5)
    assert plan_for(seen(spec, ended(0), status=first.status), after_s=70) == Plan(status=first.status, delete_job=True)


def test_finished_job_without_a_time_to_live_stays() -> None:
    spec = job_spec(roles=ROLES)
    plan = plan_for(seen(spec, status=ENDS["Completed"]().status), after_s=10**8)
    assert (plan.delete_job, plan.requeue_after_s) == (False, None)


def test_active_clock_begins_when_the_job_runs_and_anew_after_a_suspension() -> None:
    spec, resting = (
        job_spec(runPolicy={"activeDeadlineSeconds": 100, "suspend": suspend}) for suspend in (False, True)
    )
    status = plan_for(seen(spec)).status
    pending = plan_for(seen(spec, a_pod(unschedulable="no nodes"), status=status), after_s=25_000)
    assert (pending.status.phase, pending.requeue_after_s) == ("Pending", None)
    begun = plan_for(seen(spec, running(), status=pending.status), after_s=25_010)
    assert (begun.status.phase, begun.requeue_after_s) == ("Running", 100.0)
    suspended = plan_for(seen(resting, status=begun.status), after_s=25_090).status
    assert plan_for(seen(resting, status=suspended), after_s=90_000).requeue_after_s is None
    resumed = plan_for(seen(spec, status=suspended), after_s=90_000).status
    again = plan_for(seen(spec, running(attempt=1), status=resumed), after_s=90_005)
    assert (again.status.phase, again.requeue_after_s) == ("Running", 100.0)
    over = plan_for(seen(spec, running(attempt=1), status=again.status), after_s=90_105)
    assert (over.status.phase, over.status.reason) == ("Failed", "DeadlineExceeded")
    assert over.status.message == "the job has been active for activeDeadlineSeconds: 100 s"


def test_active_clock_runs_on_through_a_restart() -> None:
    spec = job_spec(runPolicy={"activeDeadlineSeconds": 100})
    status = plan_for(seen(spec, ended(75), status=status_of(spec, running())), after_s=50).status
    plan = plan_for(seen(spec, a_pod(attempt=1, unschedulable="no nodes"), status=status), after_s=60)
    assert (plan.status.phase, plan.requeue_after_s) == ("Restarting", 40.0)


def test_job_that_never_gets_to_run_fails_at_its_deadline() -> None:
    spec = job_spec(runPolicy={"preRunningDeadlineSeconds": 600})
    first = plan_for(seen(spec))
    assert first.requeue_after_s == 600.0
    stuck = a_pod(created_at=NOW, unschedulable="0/3 nodes are available")
    waiting = plan_for(seen(spec, stuck, status=first.status), after_s=599)
    assert (waiting.status.reason, waiting.requeue_after_s) == ("Unschedulable", 1.0)
    over = plan_for(seen(spec, stuck, status=waiting.status), after_s=600)
    assert (over.status.phase, over.status.reason) == ("Failed", "PreRunningDeadlineExceeded")
    assert deleted(over) == ["ppo-trainer-0-0"]


def test_clock_before_running_stops_for_good_once_the_job_ran() -> None:
    spec = job_spec(runPolicy={"preRunningDeadlineSeconds": 600})
    status = plan_for(seen(spec, running(), status=plan_for(seen(spec)).status), after_s=10).status
    plan = plan_for(seen(spec, running(ready=False), status=status), after_s=10_000)
    assert (plan.status.phase, plan.requeue_after_s) == ("Running", None)


def test_clock_before_running_does_not_count_a_suspension() -> None:
    spec, resting = (
        job_spec(runPolicy={"preRunningDeadlineSeconds": 600, "suspend": suspend}) for suspend in (False, True)
    )
    status = plan_for(seen(resting)).status
    plan = plan_for(seen(spec, status=status), after_s=86_400)
    assert (plan.status.phase, plan.requeue_after_s) == ("Pending", 600.0)


def test_failure_by_a_deadline_still_charges_the_pod_that_failed_before_it() -> None:
    observed = _job(ended(1), *PODS[1:], activeDeadlineSeconds=60)
    plan = plan_for(observed, after_s=61)
    assert plan.status.reason == "DeadlineExceeded"
    assert plan.status.restarts is not None
    assert plan.status.restarts.charged_pods == ("ppo-trainer-0-0",)
    assert created(plan) == []


def test_pod_that_does_not_end_in_time_is_deleted_by_force() -> None:
    spec = job_spec()
    leaving = deleting(running(), grace_s=120)
    status = status_of(spec, running())
    early = plan_for(seen(spec, leaving, status=status), after_s=100)
    assert (early.deletes, early.requeue_after_s) == ((), 30.0)
    late = plan_for(seen(spec, leaving, status=status), after_s=130)
    assert [(item.name, item.grace_seconds) for item in late.deletes] == [("ppo-trainer-0-0", 0)]
    assert events(late) == ["ForceDeleted"]
    assert late.events[0].message == (
        "ppo-trainer-0-0 on node node-a didn't end in time: its object is deleted by force, its process may live on"
    )
    assert created(late) == []
    after = plan_for(seen(spec, gone(leaving), status=late.status), after_s=131)
    assert created(after) == ["ppo-trainer-0-1"]
    assert after.status.restarts is not None
    assert after.status.restarts.disruptions == 1


@pytest.mark.parametrize("suspend", [False, True])
def test_pods_of_a_suspended_or_finished_job_are_deleted_by_force_too(suspend: bool) -> None:
    spec = job_spec(runPolicy={"suspend": suspend})
    status = status_of(job_spec(), running())
    if not suspend:
        status = plan_for(seen(spec, ended(0), status=status)).status
    plan = plan_for(seen(spec, deleting(running()), status=status), after_s=60)
    assert [(item.name, item.grace_seconds) for item in plan.deletes] == [("ppo-trainer-0-0", 0)]


def test_pod_that_a_finalizer_holds_is_deleted_by_force_once() -> None:
    spec = job_spec()
    held = deleting(running(), asked=NOW - timedelta(seconds=3600), grace_s=0)
    plan = plan_for(seen(spec, held, status=status_of(spec, running())))
    assert (plan.deletes, plan.requeue_after_s) == ((), None)
