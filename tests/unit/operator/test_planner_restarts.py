"""What the end of a pod means, who restarts for it, and what that costs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from planner_cases import (
    COLLECTOR,
    ENGINE,
    NOW,
    TRAINER,
    a_pod,
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
from rljob_operator.planner.observed import ContainerEnd, ObservedPod, Trouble
from rljob_operator.planner.outcomes import outcome, words_of
from rljob_operator.planner.plan import Plan

from rlruntime.spec.manifest import RLJobSpec
from rlruntime.spec.status import RLJobStatus

LATER = NOW + timedelta(seconds=60)
BEFORE = NOW - timedelta(seconds=60)
SKEWED = NOW - timedelta(seconds=3)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(running(), None, id="running"),
        pytest.param(a_pod(), None, id="being created"),
        pytest.param(deleting(running()), None, id="being deleted, and not ended yet"),
        pytest.param(ended(0), "Done", id="exit 0"),
        pytest.param(ended(78), "Permanent", id="exit 78"),
        pytest.param(deleting(ended(78)), "Permanent", id="exit 78 of a pod that is deleted"),
        pytest.param(ended(75), "Disruption", id="exit 75"),
        pytest.param(ended(1), "Fault", id="exit 1"),
        pytest.param(ended(74), "Fault", id="exit 74"),
        pytest.param(ended(127), "Fault", id="exit 127"),
        pytest.param(ended(139), "Fault", id="segmentation fault"),
        pytest.param(ended(137), "Fault", id="killed"),
        pytest.param(ended(137, why="OOMKilled"), "Fault", id="out of memory"),
        pytest.param(ended(137, why="ContainerStatusUnknown"), "Disruption", id="its node lost the container"),
        pytest.param(ended(143), "Fault", id="stopped by nobody we know"),
        pytest.param(ended(130), "Fault", id="interrupted by nobody we know"),
        pytest.param(deleting(ended(143, finished_at=LATER)), "Disruption", id="stopped while being deleted"),
        pytest.param(deleting(ended(1, finished_at=LATER)), "Disruption", id="exit 1 while being deleted"),
        pytest.param(deleting(ended(0, finished_at=LATER)), "Disruption", id="exit 0 while being deleted"),
        pytest.param(deleting(ended(1, finished_at=BEFORE)), "Fault", id="exit 1, and deleted only then"),
        pytest.param(
            gone(deleting(ended(0, finished_at=BEFORE), grace_s=0)), "Done", id="exit 0, and deleted only then"
        ),
        pytest.param(deleting(ended(143, finished_at=SKEWED)), "Disruption", id="stopped, by a clock that is behind"),
        pytest.param(ended(143, disruption="PreemptionByScheduler"), "Disruption", id="preempted"),
        pytest.param(ended(1, disruption="DeletionByTaintManager"), "Disruption", id="its node is tainted"),
        pytest.param(ended(137, reason="Evicted"), "Disruption", id="evicted while running"),
        pytest.param(ended(143, reason="Terminated"), "Disruption", id="its node is shut down"),
        pytest.param(a_pod(phase="Failed", reason="Evicted"), "Disruption", id="evicted before it ran"),
        pytest.param(a_pod(phase="Failed", reason="OutOfcpu"), "Disruption", id="no room on its node"),
        pytest.param(a_pod(phase="Failed", reason="UnexpectedAdmissionError"), "Disruption", id="its node refused it"),
        pytest.param(a_pod(phase="Failed"), "Fault", id="an init container failed"),
        pytest.param(a_pod(phase="Failed", reason="DeadlineExceeded"), "Fault", id="a deadline of its template"),
        pytest.param(gone(running()), "Disruption", id="vanished"),
        pytest.param(gone(a_pod()), "Disruption", id="vanished before it ran"),
        pytest.param(gone(ended(1)), "Fault", id="exit 1, and gone"),
        pytest.param(gone(ended(143)), "Disruption", id="stopped, and gone"),
    ],
)
def test_what_the_end_of_a_pod_means(pod: ObservedPod, expected: str | None) -> None:
    assert outcome(pod) == expected


def test_leading_trainer_that_is_done_is_done_even_if_somebody_deleted_it() -> None:
    assert outcome(deleting(ended(0, finished_at=LATER)), leads=True) == "Done"


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (
            ended(1, message='{"reason": "EnvironmentFault", "message": "env 3 returned NaN"}'),
            "exit code 1, EnvironmentFault: env 3 returned NaN",
        ),
        (ended(1, message="Traceback\n  KeyError: 'x'\n"), "exit code 1, Error: Traceback KeyError: 'x'"),
        (ended(1, message='ame": 3}\n{"frames": 97}\nMemoryError\n'), "exit code 1, Error: MemoryError"),
        (ended(137, message='{"frames": 97}\n{"frames": 98}\n'), "exit code 137, Error"),
        (ended(137, why="OOMKilled"), "exit code 137, OOMKilled"),
        (
            ended(137, reason="Evicted", message="log", disruption="TerminationByKubelet"),
            "exit code 137, TerminationByKubelet: log",
        ),
        (gone(running()), "its pod vanished, PodLost"),
        (gone(deleting(running())), "its pod was deleted, Deleted"),
        (a_pod(phase="Failed"), "failed before its main container ran, Failed"),
    ],
)
def test_words_say_how_a_pod_ended_and_quote_its_own(pod: ObservedPod, expected: str) -> None:
    assert words_of(pod) == expected


GANG = [{**TRAINER, "replicas": 2}, {**ENGINE, "replicas": 2}, COLLECTOR]
GANG_PODS = (
    running(), running("trainer", 1), running("engine"), running("engine", 1), running("collector"),
)  # fmt: skip


def _gang() -> tuple[RLJobSpec, RLJobStatus]:
    spec = job_spec(roles=GANG)
    return spec, status_of(spec, *GANG_PODS)


def test_trainer_that_fails_restarts_all_trainers_and_nobody_else() -> None:
    spec, status = _gang()
    plan = plan_for(seen(spec, ended(1), *GANG_PODS[1:], status=status))
    assert deleted(plan) == ["ppo-trainer-0-0", "ppo-trainer-1-0"]
    assert created(plan) == []
    assert (plan.status.attempt, plan.status.round) == (1, 1)
    restarts = plan.status.restarts
    assert restarts is not None
    assert (restarts.faults, restarts.disruptions, restarts.charged_pods) == (1, 0, ("ppo-trainer-0-0",))
    assert restarts.slots == {}
    assert plan.status.phase == "Restarting"
    assert events(plan) == ["Restarting"]
    assert plan.write == "Now"


def test_trainers_come_back_together_once_the_last_old_one_is_gone() -> None:
    spec, status = _gang()
    status = plan_for(seen(spec, ended(1), *GANG_PODS[1:], status=status)).status
    leaving = deleting(GANG_PODS[1])
    waiting = plan_for(seen(spec, leaving, *GANG_PODS[2:], status=status), after_s=5)
    assert created(waiting) == []
    assert pods_ready(waiting) == ("False", "Terminating")
    free = plan_for(seen(spec, *GANG_PODS[2:], status=status), after_s=5)
    assert created(free) == ["ppo-trainer-0-1", "ppo-trainer-1-1"]
    variables = {item["name"]: item["value"] for item in free.creates[-1]["spec"]["containers"][0]["env"]}
    assert (variables["RLJOB_ATTEMPT"], variables["RLJOB_ROUND"]) == ("1", "1")


def test_trainers_that_fail_together_are_charged_once() -> None:
    spec, status = _gang()
    plan = plan_for(seen(spec, ended(75), ended(1, "trainer", 1), *GANG_PODS[2:], status=status))
    restarts = plan.status.restarts
    assert restarts is not None
    assert (restarts.faults, restarts.disruptions) == (1, 0)
    assert restarts.charged_pods == ("ppo-trainer-1-0",)
    assert plan.status.attempt == 1


def test_trainer_that_failed_because_another_was_evicted_costs_no_fault() -> None:
    spec, status = _gang()
    plan = plan_for(seen(spec, ended(1), ended(137, "trainer", 1, reason="Evicted"), *GANG_PODS[2:], status=status))
    restarts = plan.status.restarts
    assert restarts is not None
    assert (restarts.faults, restarts.disruptions) == (0, 1)


def test_engine_that_fails_restarts_alone_in_a_new_round() -> None:
    spec, status = _gang()
    pods = (*GANG_PODS[:3], ended(1, "engine", 1), GANG_PODS[4])
    plan = plan_for(seen(spec, *pods, status=status))
    assert deleted(plan) == ["ppo-engine-1-0"]
    assert (plan.status.attempt, plan.status.round) == (0, 1)
    assert plan.status.restarts is not None
    assert plan.status.restarts.slots == {"engine/1": 1}
    kept = (*GANG_PODS[:3], GANG_PODS[4])
    assert created(plan_for(seen(spec, *kept, status=plan.status), after_s=2)) == ["ppo-engine-1-1"]


def test_evidence_of_an_earlier_attempt_is_charged_no_more() -> None:
    spec, status = _gang()
    pods = (ended(1), *GANG_PODS[1:])
    status = plan_for(seen(spec, *pods, status=status)).status
    again = plan_for(seen(spec, *pods, gone(ended(1)), status=status))
    assert again.status.restarts == status.restarts
    assert again.status.attempt == 1
    assert again.events == ()


def test_pod_that_vanished_is_a_disruption_and_is_replaced_at_once() -> None:
    spec = job_spec()
    plan = plan_for(seen(spec, gone(running()), status=status_of(spec, running())))
    restarts = plan.status.restarts
    assert restarts is not None
    assert (restarts.faults, restarts.disruptions, restarts.last_reason) == (0, 1, "PodLost")
    assert restarts.next_attempt_time is None
    assert created(plan) == ["ppo-trainer-0-1"]


def test_pod_that_vanished_while_the_operator_was_down_is_missed() -> None:
    spec = job_spec()
    plan = plan_for(seen(spec, status=status_of(spec, running())))
    restarts = plan.status.restarts
    assert restarts is not None
    assert (restarts.disruptions, restarts.charged_pods) == (1, ())
    assert restarts.last_message == "trainer-0: its pod vanished, and nothing is known of its end"
    assert created(plan) == ["ppo-trainer-0-1"]
    assert plan.status.roles[0].seen == ""


def test_new_pod_of_an_old_name_does_not_hide_that_its_predecessor_vanished() -> None:
    spec = job_spec()
    other = running(uid="another")
    plan = plan_for(seen(spec, gone(running()), other, status=status_of(spec, running())))
    assert plan.status.attempt == 1
    assert [(item.name, item.uid) for item in plan.deletes] == [("ppo-trainer-0-0", "another")]


def test_collector_that_has_done_its_work_is_left_and_not_missed_when_it_is_deleted() -> None:
    spec = job_spec(roles=[TRAINER, COLLECTOR])
    status = status_of(spec, running(), running("collector"))
    plan = plan_for(seen(spec, running(), ended(0, "collector"), status=status))
    assert (plan.deletes, created(plan), plan.status.phase) == ((), [], "Running")
    assert plan.status.roles[1].done == "0"
    assert plan.status.ready == "2/2"
    assert plan_for(seen(spec, running(), status=plan.status)) == Plan(status=plan.status)


@pytest.mark.parametrize("waiting", ["ImagePullBackOff", "CreateContainerConfigError", "ContainerCreating"])
def test_pod_that_never_started_is_never_charged_for_waiting(waiting: str) -> None:
    spec = job_spec()
    status = plan_for(seen(spec)).status
    plan = plan_for(seen(spec, a_pod(node="n", waiting=Trouble(waiting)), status=status), after_s=86_400)
    assert plan.status.restarts is None
    assert (plan.deletes, plan.creates) == ((), ())


@pytest.mark.parametrize("code", [1, 2, 74, 126, 127, 134, 137, 139, 143, 255])
def test_every_exit_code_of_a_fault_counts_against_the_limit(code: int) -> None:
    spec = job_spec(runPolicy={"backoffLimit": 1})
    status, pods = status_of(spec, running()), [ended(code, attempt=attempt) for attempt in (0, 1)]
    first = plan_for(seen(spec, pods[0], status=status))
    assert first.status.phase == "Restarting"
    second = plan_for(seen(spec, pods[1], status=first.status))
    assert (second.status.phase, second.status.reason) == ("Failed", "BackoffLimitExceeded")
    assert second.status.message == (
        f"2 faults are more than backoffLimit: 1; the last: trainer-0: exit code {code}, Error"
    )
    assert second.status.attempt == 1


def test_disruptions_have_a_budget_of_their_own() -> None:
    spec = job_spec(runPolicy={"backoffLimit": 0, "disruptionLimit": 1})
    status = status_of(spec, running())
    first = plan_for(seen(spec, ended(143, disruption="PreemptionByScheduler"), status=status))
    assert first.status.phase == "Restarting"
    second = plan_for(seen(spec, ended(1, attempt=1, reason="NodeShutdown"), status=first.status))
    assert (second.status.phase, second.status.reason) == ("Failed", "DisruptionLimitExceeded")
    assert second.status.message == (
        "2 disruptions are more than disruptionLimit: 1; the last: trainer-0: exit code 1, NodeShutdown"
    )


def test_wrong_configuration_fails_the_job_at_once_with_the_pods_words() -> None:
    spec = job_spec(roles=[TRAINER, ENGINE])
    status = status_of(spec, running(), running("engine"))
    words = '{"reason": "ConfigError", "message": "training.env.id: no such environment"}'
    plan = plan_for(seen(spec, running(), ended(78, "engine", message=words), status=status))
    assert (plan.status.phase, plan.status.reason) == ("Failed", "ConfigInvalid")
    assert plan.status.message == "engine-0: exit code 78, ConfigError: training.env.id: no such environment"
    assert plan.status.restarts is None


def test_out_of_memory_is_named() -> None:
    spec = job_spec()
    plan = plan_for(seen(spec, ended(137, why="OOMKilled"), status=status_of(spec, running())))
    assert plan.status.restarts is not None
    assert plan.status.restarts.last_reason == "OOMKilled"
    assert plan.status.roles[0].failed == 1
    assert plan.events[0].message == (
        "trainer-0: exit code 137, OOMKilled; fault 1 of at most 3; the next attempt begins in 1 s"
    )


def _waits(spec: RLJobSpec, pods: list[ObservedPod]) -> list[float]:
    """Return after how many seconds the job is looked at again, for each of ``pods`` in a row."""
    status, found = status_of(spec, running()), []
    for pod in pods:
        status = plan_for(seen(spec, pod, status=status)).status
        plan = plan_for(seen(spec, status=status))
        found.append(plan.requeue_after_s or 0.0)
        assert (created(plan) == []) == (found[-1] > 0)
    return found


def test_wait_before_a_restart_doubles_up_to_five_minutes() -> None:
    spec = job_spec(runPolicy={"backoffLimit": 100})
    waits = _waits(spec, [ended(1, attempt=attempt) for attempt in range(11)])
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_first_disruption_in_a_row_costs_no_wait() -> None:
    spec = job_spec()
    waits = _waits(spec, [ended(75, attempt=attempt) for attempt in range(4)])
    assert waits == [0, 1, 2, 4]


def test_wait_is_in_the_status_before_the_old_pod_is_deleted() -> None:
    spec = job_spec()
    plan = plan_for(seen(spec, ended(1), status=status_of(spec, running())), after_s=0.25)
    assert plan.status.restarts is not None
    assert plan.status.restarts.next_attempt_time == "2026-11-30T10:00:01.250Z"
    assert deleted(plan) == ["ppo-trainer-0-0"]
    waiting = plan_for(seen(spec, status=plan.status), after_s=1)
    assert pods_ready(waiting) == ("False", "BackOff")
    assert waiting.requeue_after_s == 0.25
    assert created(plan_for(seen(spec, status=plan.status), after_s=1.25)) == ["ppo-trainer-0-1"]


def test_ten_healthy_minutes_end_the_row() -> None:
    spec = job_spec(runPolicy={"backoffLimit": 100})
    status = status_of(spec, running())
    for attempt in range(3):
        status = plan_for(seen(spec, ended(1, attempt=attempt), status=status)).status
    status = plan_for(seen(spec, running(attempt=3), status=status), after_s=10).status

    def streak(after_s: float) -> int:
        restarts = plan_for(seen(spec, ended(1, attempt=3), status=status), after_s=after_s).status.restarts
        assert restarts is not None
        return restarts.streak

    assert (streak(609), streak(610)) == (4, 1)


def test_ten_healthy_minutes_end_the_row_of_a_pod_that_takes_its_time_to_end() -> None:
    spec = job_spec(runPolicy={"backoffLimit": 100})
    status = status_of(spec, running())
    for attempt in range(3):
        status = plan_for(seen(spec, ended(1, attempt=attempt), status=status)).status
    status = plan_for(seen(spec, running(attempt=3), status=status), after_s=10).status
    going = running(attempt=3, deletion_at=NOW + timedelta(seconds=5120), deletion_grace_seconds=120)
    status = plan_for(seen(spec, going, status=status), after_s=5000).status
    gone = replace(going, gone=True, phase="Failed", end=ContainerEnd(143, "Error"))
    plan = plan_for(seen(spec, gone, status=status), after_s=5060)
    assert created(plan) == ["ppo-trainer-0-4"]  # the first disruption in a row, so at once


def test_pods_that_end_together_are_one_setback() -> None:
    roles = [TRAINER, {**COLLECTOR, "replicas": 4}]
    spec = job_spec(roles=roles)
    pods = [running(), *(running("collector", index) for index in range(4))]
    status = status_of(spec, *pods)
    for index in range(4):
        pods[1 + index] = ended(1, "collector", index)
        status = plan_for(seen(spec, *pods, status=status)).status
    assert status.restarts is not None
    assert (status.restarts.faults, status.restarts.streak) == (4, 1)
    assert status.restarts.next_attempt_time == "2026-11-30T10:00:01.000Z"


def test_wait_that_a_wrong_clock_wrote_is_not_waited_for() -> None:
    spec = job_spec()
    status = plan_for(seen(spec, ended(1), status=status_of(spec, running())), after_s=86_400).status
    assert created(plan_for(seen(spec, status=status))) == ["ppo-trainer-0-1"]


def test_restarting_ends_when_the_new_pods_are_ready() -> None:
    spec = job_spec()
    status = plan_for(seen(spec, ended(1), status=status_of(spec, running()))).status
    creating = plan_for(seen(spec, a_pod(attempt=1), status=status), after_s=2)
    assert (creating.status.phase, creating.status.reason) == ("Restarting", "Creating")
    again = plan_for(seen(spec, running(attempt=1), status=creating.status), after_s=3)
    assert (again.status.phase, again.status.running_time) == ("Running", "2026-11-30T10:00:00Z")
    assert events(again) == ["Running"]


def test_job_whose_engine_is_not_ready_for_a_moment_keeps_running() -> None:
    spec = job_spec(roles=[TRAINER, ENGINE])
    status = status_of(spec, running(), running("engine"))
    plan = plan_for(seen(spec, running(), running("engine", ready=False), status=status))
    assert (plan.status.phase, plan.status.ready) == ("Running", "1/2")
    assert pods_ready(plan) == ("False", "Creating")
    assert plan.events == ()


def test_job_about_to_lose_a_trainer_that_somebody_deleted_says_so() -> None:
    spec = job_spec()
    plan = plan_for(seen(spec, deleting(running(), grace_s=120), status=status_of(spec, running())))
    assert (plan.status.phase, plan.status.reason) == ("Restarting", "Terminating")
    assert (plan.deletes, created(plan)) == ((), [])
    assert plan.status.restarts is None


def test_restarted_pod_is_judged_anew_by_the_api_server_where_nobody_remembers_that_it_was() -> None:
    spec = job_spec()
    status = plan_for(seen(spec, ended(75), status=status_of(spec, running()))).status
    plan = plan_for(seen(spec, status=status, templates_valid=None))
    assert plan == Plan(status=status, dry_runs=plan.dry_runs)
    assert len(plan.dry_runs) == 1
