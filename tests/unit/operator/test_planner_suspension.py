"""Suspension and resumption, and scaling: pods that go because somebody wants it, at no charge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planner_cases import (
    COLLECTOR,
    ENGINE,
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
from rljob_operator.planner.observed import ObservedPod
from rljob_operator.planner.plan import Plan

from rlruntime.spec.manifest import RLJobSpec
from rlruntime.spec.status import ActivationStatus, RLJobStatus

ROLES = [TRAINER, ENGINE]
PODS = (running(), running("engine"))


def _suspended(**policy: Any) -> RLJobSpec:
    return job_spec(roles=ROLES, runPolicy={"suspend": True, **policy})


def _suspended_status() -> RLJobStatus:
    status = plan_for(seen(_suspended(), *PODS, status=status_of(job_spec(roles=ROLES), *PODS))).status
    return plan_for(seen(_suspended(), status=status)).status


def _said(plan: Plan) -> tuple[str, str]:
    found = condition(plan, "Suspended")
    assert found is not None
    return found.status, found.reason


def test_suspension_is_written_and_the_pods_get_their_own_time_to_end() -> None:
    plan = plan_for(seen(_suspended(), *PODS, status=status_of(job_spec(roles=ROLES), *PODS)))
    assert plan.write == "Now"
    assert (plan.status.phase, plan.status.activation, plan.status.running_time) == ("Suspending", None, None)
    assert _said(plan) == ("False", "Suspending")
    assert [(item.name, item.grace_seconds) for item in plan.deletes] == [
        ("ppo-trainer-0-0", None),
        ("ppo-engine-0-0", None),
    ]
    assert plan.events == ()


def test_job_is_suspended_only_when_the_last_pod_object_is_gone() -> None:
    status = plan_for(seen(_suspended(), *PODS, status=status_of(job_spec(roles=ROLES), *PODS))).status
    waiting = plan_for(seen(_suspended(), deleting(ended(143)), gone(PODS[1]), status=status), after_s=5)
    assert (waiting.status.phase, _said(waiting)) == ("Suspending", ("False", "Suspending"))
    assert waiting.deletes == ()
    done = plan_for(seen(_suspended(), gone(ended(143)), gone(PODS[1]), status=waiting.status), after_s=6)
    assert (done.status.phase, _said(done)) == ("Suspended", ("True", "Suspended"))
    assert pods_ready(done) == ("False", "Suspended")
    assert done.status.ready == "0/2"
    assert events(done) == ["Suspended"]
    assert plan_for(seen(_suspended(), status=done.status), after_s=3600) == Plan(status=done.status)


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param((ended(1), PODS[1]), id="a trainer failed"),
        pytest.param((ended(78), PODS[1]), id="a trainer was set up wrongly"),
        pytest.param((gone(PODS[0]), PODS[1]), id="a trainer vanished"),
        pytest.param((PODS[1],), id="a trainer vanished unseen"),
        pytest.param((PODS[0], ended(1, "engine")), id="an engine failed"),
    ],
)
def test_suspension_wins_over_what_else_happens_to_pods(pods: tuple[ObservedPod, ...]) -> None:
    plan = plan_for(seen(_suspended(backoffLimit=0), *pods, status=status_of(job_spec(roles=ROLES), *PODS)))
    assert plan.status.phase == "Suspending"
    assert plan.status.restarts is None
    assert plan.status.attempt == 0


def test_trainer_that_is_done_while_the_job_is_suspended_ends_it() -> None:
    plan = plan_for(seen(_suspended(), ended(0), PODS[1], status=status_of(job_spec(roles=ROLES), *PODS)))
    assert plan.status.phase == "Succeeded"
    assert deleted(plan) == ["ppo-engine-0-0"]


def test_job_created_suspended_has_no_pods_and_begins_with_attempt_0_once_resumed() -> None:
    plan = plan_for(seen(_suspended(), templates_valid=None))
    assert (plan.status.phase, plan.status.attempt, plan.creates, plan.dry_runs) == ("Suspended", None, (), ())
    assert _said(plan) == ("True", "Suspended")
    begun = plan_for(seen(job_spec(roles=ROLES), status=plan.status), after_s=900)
    assert begun.status.activation == ActivationStatus(time="2026-11-30T10:15:00Z", attempt=0, round=0)
    assert created(begun) == ["ppo-engine-0-0"]


def test_resumption_begins_a_new_attempt_of_all_pods_and_starts_the_clocks_anew() -> None:
    plan = plan_for(seen(job_spec(roles=ROLES), status=_suspended_status()), after_s=900)
    status = plan.status
    assert (status.attempt, status.round) == (1, 1)
    assert status.activation == ActivationStatus(time="2026-11-30T10:15:00Z", attempt=1, round=1)
    assert (status.phase, status.running_time) == ("Pending", None)
    assert created(plan) == ["ppo-engine-0-1"]
    assert events(plan) == ["Resumed"]
    assert _said(plan) == ("False", "Resumed")


def test_resumption_keeps_what_was_spent_and_forgets_the_wait() -> None:
    spec = job_spec(roles=ROLES)
    failed = plan_for(seen(spec, ended(1), PODS[1], status=status_of(spec, *PODS))).status
    suspended = plan_for(seen(_suspended(), status=failed)).status
    resumed = plan_for(seen(spec, status=suspended)).status
    assert resumed.restarts is not None
    assert (resumed.restarts.faults, resumed.restarts.next_attempt_time, resumed.restarts.streak) == (1, None, 0)


def test_resumption_waits_for_pods_that_still_end() -> None:
    spec = job_spec(roles=ROLES)
    status = plan_for(seen(_suspended(), *PODS, status=status_of(spec, *PODS))).status
    ending = (deleting(PODS[0]), deleting(PODS[1]))
    resumed = plan_for(seen(spec, *ending, status=status), after_s=1)
    assert (resumed.status.attempt, created(resumed)) == (1, [])
    assert pods_ready(resumed) == ("False", "Terminating")
    free = plan_for(seen(spec, ending[0], gone(ending[1]), status=resumed.status), after_s=2)
    assert created(free) == ["ppo-engine-0-1"]
    assert free.status.restarts is None


def test_resumption_before_the_pods_were_deleted_deletes_them() -> None:
    spec = job_spec(roles=ROLES)
    status = plan_for(seen(_suspended(), *PODS, status=status_of(spec, *PODS))).status
    plan = plan_for(seen(spec, *PODS, status=status))
    assert deleted(plan) == ["ppo-trainer-0-0", "ppo-engine-0-0"]
    assert plan.status.attempt == 1


def test_pods_of_a_later_activation_never_bear_a_name_that_was_used() -> None:
    roles = [TRAINER, COLLECTOR]
    spec = job_spec(roles=roles)
    pods = [running(), running("collector")]
    status = status_of(spec, *pods)
    for attempt in range(3):
        pods = [running(), ended(75, "collector", attempt=attempt)]
        status = plan_for(seen(spec, *pods, status=status), after_s=1000 * attempt).status
    suspended = plan_for(seen(job_spec(roles=roles, runPolicy={"suspend": True}), status=status)).status
    resumed = plan_for(seen(spec, running("trainer", attempt=1), status=plan_for(seen(spec, status=suspended)).status))
    assert created(resumed) == ["ppo-collector-0-4"]


def _elastic(replicas: int, **elastic: Any) -> RLJobSpec:
    return job_spec(roles=[TRAINER, COLLECTOR], elastic={"role": "collector", "replicas": replicas, **elastic})


CREW = (running(), *(running("collector", index) for index in range(3)))


def test_scaling_down_deletes_the_highest_first_and_charges_nothing() -> None:
    plan = plan_for(seen(_elastic(1), *CREW, status=status_of(_elastic(3), *CREW)))
    assert deleted(plan) == ["ppo-collector-2-0", "ppo-collector-1-0"]
    assert plan.write == "Now"
    restarts = plan.status.restarts
    assert restarts is not None
    assert (restarts.faults, restarts.disruptions) == (0, 0)
    assert restarts.slots == {"collector/1": 1, "collector/2": 1}
    assert plan.status.roles[1].seen == "0"
    assert (plan.status.phase, plan.status.ready) == ("Running", "2/2")


def test_pods_that_were_scaled_away_are_not_missed_when_they_are_wanted_again() -> None:
    status = plan_for(seen(_elastic(1), *CREW, status=status_of(_elastic(3), *CREW))).status
    leaving = [deleting(pod) for pod in CREW[2:]]
    again = plan_for(seen(_elastic(3), *CREW[:2], *leaving, status=status), after_s=1)
    assert (created(again), again.status.restarts) == ([], status.restarts)
    free = plan_for(seen(_elastic(3), *CREW[:2], *(gone(pod) for pod in leaving), status=status), after_s=40)
    assert created(free) == ["ppo-collector-1-1", "ppo-collector-2-1"]
    assert free.status.restarts == status.restarts


def test_scaling_up_creates_pods_while_the_job_keeps_running() -> None:
    plan = plan_for(seen(_elastic(5), *CREW, status=status_of(_elastic(3), *CREW)))
    assert created(plan) == ["ppo-collector-3-0", "ppo-collector-4-0"]
    assert (plan.status.phase, plan.status.ready) == ("Running", "4/6")


def test_scaling_up_does_not_wait_for_the_back_off_of_another_pod() -> None:
    status = status_of(_elastic(3), *CREW)
    failed = plan_for(seen(_elastic(3), *CREW[:3], ended(1, "collector", 2), status=status)).status
    assert created(plan_for(seen(_elastic(4), *CREW[:3], status=failed))) == ["ppo-collector-3-0"]


def test_what_the_scale_subresource_reads() -> None:
    leaving = (*CREW[:3], deleting(CREW[3]))
    plan = plan_for(seen(_elastic(3), *leaving, status=status_of(_elastic(3), *CREW)))
    assert plan.status.elastic is not None
    assert plan.status.elastic.replicas == 2
    assert plan.status.elastic.selector == (
        "rljob.io/job-uid=1b4e28ba-2fa1-4a6b-8c3d-0123456789ab,rljob.io/role=collector"
    )


def test_job_scaled_to_nothing_runs_with_its_trainer_alone() -> None:
    spec = _elastic(0, minReplicas=0)
    plan = plan_for(seen(spec, running(), status=plan_for(seen(spec)).status))
    assert (plan.status.phase, plan.status.ready) == ("Running", "1/1")


def test_collector_that_ends_after_it_was_scaled_away_is_nobodys_fault() -> None:
    observed = seen(_elastic(2), *CREW[:3], ended(1, "collector", 2), status=status_of(_elastic(3), *CREW))
    plan = plan_for(observed)
    assert plan.status.restarts is not None
    assert plan.status.restarts.faults == 0
    assert deleted(plan) == ["ppo-collector-2-0"]
    again = plan_for(replace(observed, pods=CREW[:3], status=plan.status))
    assert again == Plan(status=plan.status)


def test_role_that_is_not_elastic_is_scaled_by_its_replicas() -> None:
    before, after = (job_spec(roles=[TRAINER, {**ENGINE, "replicas": count}]) for count in (2, 1))
    pods = (running(), running("engine"), running("engine", 1))
    assert deleted(plan_for(seen(after, *pods, status=status_of(before, *pods)))) == ["ppo-engine-1-0"]


def test_pod_that_is_not_needed_to_suspend_is_not_created_meanwhile() -> None:
    status = plan_for(seen(job_spec(roles=ROLES))).status
    plan = plan_for(seen(_suspended(), a_pod("engine"), status=status))
    assert (created(plan), deleted(plan)) == ([], ["ppo-engine-0-0"])
