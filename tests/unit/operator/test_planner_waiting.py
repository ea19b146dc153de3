"""What a job that isn't ready waits for, in the words of what it waits for; and the small rules on literals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from planner_cases import (
    NOW,
    TRAINER,
    a_pod,
    condition,
    deleted,
    events,
    job_spec,
    plan_for,
    pods_ready,
    running,
    seen,
    status_of,
)
from rljob_operator.planner.observed import CreateRefused, ObservedPod, Trouble
from rljob_operator.planner.phase import phase
from rljob_operator.planner.seen import format_ranges, parse_ranges
from rljob_operator.planner.times import parse, stamp, stamp_ms

SPEC = job_spec()
STATUS = plan_for(seen(SPEC)).status
NO_NODES = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"


def _waiting(reason: str, message: str = "") -> ObservedPod:
    return a_pod(node="node-a", waiting=Trouble(reason, message))


@pytest.mark.parametrize(
    ("pod", "reason", "message"),
    [
        pytest.param(a_pod(unschedulable=NO_NODES), "Unschedulable", NO_NODES, id="no node"),
        pytest.param(
            a_pod(unschedulable='persistentvolumeclaim "runs" not found'),
            "Unschedulable",
            'persistentvolumeclaim "runs" not found',
            id="no claim",
        ),
        pytest.param(
            _waiting("ImagePullBackOff", 'Back-off pulling image "ghcr.io/o/missing:1"'),
            "ImagePullFailed",
            'ImagePullBackOff: Back-off pulling image "ghcr.io/o/missing:1"',
            id="no image",
        ),
        pytest.param(_waiting("ErrImagePull"), "ImagePullFailed", "ErrImagePull", id="no image yet"),
        pytest.param(_waiting("InvalidImageName"), "ImagePullFailed", "InvalidImageName", id="no such image"),
        pytest.param(
            _waiting("CreateContainerConfigError", 'secret "keys" not found'),
            "ContainerConfigInvalid",
            'CreateContainerConfigError: secret "keys" not found',
            id="no Secret",
        ),
        pytest.param(
            _waiting("CreateContainerError", "x"), "ContainerConfigInvalid", "CreateContainerError: x", id="no"
        ),
    ],
)
def test_condition_and_event_quote_what_a_pod_waits_for(pod: ObservedPod, reason: str, message: str) -> None:
    plan = plan_for(seen(SPEC, pod, status=STATUS))
    assert pods_ready(plan) == ("False", reason)
    assert (plan.status.reason, plan.status.message) == (reason, f"trainer-0: {message}")
    assert [(event.reason, event.warning) for event in plan.events] == [(reason, True)]
    again = plan_for(seen(SPEC, pod, status=plan.status), after_s=5)
    assert (again.events, again.write) == ((), "None")


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Trouble("FailedMount", 'MountVolume.SetUp failed: configmap "my-code" not found'), "VolumeUnavailable"),
        (Trouble("FailedAttachVolume", "in use by another node"), "VolumeUnavailable"),
        (Trouble("FailedCreatePodSandBox", "no network"), "Creating"),
    ],
)
def test_condition_quotes_the_events_of_a_pod_that_is_creating_for_long(event: Trouble, reason: str) -> None:
    pod = a_pod(node="node-a")
    plan = plan_for(seen(SPEC, pod, status=STATUS, pod_events={pod.name: event}), after_s=30)
    assert pods_ready(plan) == ("False", reason)
    assert plan.status.message == f"trainer-0: {event.reason}: {event.message}"


def test_events_of_a_pod_that_is_creating_for_twenty_seconds_are_asked_for() -> None:
    observed = seen(SPEC, a_pod(node="node-a", waiting=Trouble("ContainerCreating")), status=STATUS)
    early = plan_for(observed, after_s=5)
    assert (early.inspect_pods, early.requeue_after_s) == ((), 15.0)
    late = plan_for(observed, after_s=20)
    assert (late.inspect_pods, late.requeue_after_s) == (("ppo-trainer-0-0",), None)


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(a_pod(), id="not scheduled"),
        pytest.param(a_pod(node="n", waiting=Trouble("ErrImagePull")), id="says itself what it waits for"),
        pytest.param(running(ready=False), id="started"),
    ],
)
def test_events_are_not_asked_for_where_the_pod_says_enough(pod: ObservedPod) -> None:
    plan = plan_for(seen(SPEC, pod, status=STATUS), after_s=3600)
    assert (plan.inspect_pods, plan.requeue_after_s) == ((), None)


def test_events_of_at_most_three_pods_are_asked_for() -> None:
    spec = job_spec(roles=[{**TRAINER, "replicas": 5}])
    pods = [a_pod("trainer", index, node="n") for index in range(5)]
    plan = plan_for(seen(spec, *pods, status=plan_for(seen(spec)).status), after_s=60)
    assert plan.inspect_pods == ("ppo-trainer-0-0", "ppo-trainer-1-0", "ppo-trainer-2-0")


def test_quota_is_quoted_and_the_pod_is_tried_again() -> None:
    words = 'pods "ppo-trainer-0-0" is forbidden: exceeded quota: small, requested: pods=1'
    refused = (CreateRefused("ppo-trainer-0-0", "QuotaExceeded", words),)
    plan = plan_for(seen(SPEC, status=STATUS, refused=refused))
    assert pods_ready(plan) == ("False", "QuotaExceeded")
    assert plan.status.message == f"ppo-trainer-0-0: {words}"
    assert [item["kind"] for item in plan.creates][-1] == "Pod"
    assert events(plan) == ["QuotaExceeded"]
    assert plan.status.phase == "Pending"


def test_most_telling_reason_is_said_where_several_pods_wait() -> None:
    spec = job_spec(roles=[{**TRAINER, "replicas": 3}])
    status = plan_for(seen(spec)).status
    pods = [a_pod("trainer", 0, unschedulable=NO_NODES), a_pod("trainer", 1), a_pod("trainer", 2, node="n")]
    pods[2] = a_pod("trainer", 2, node="n", waiting=Trouble("ImagePullBackOff", "no"))
    plan = plan_for(seen(spec, *pods, status=status))
    assert plan.status.message == "trainer-2: ImagePullBackOff: no"


def test_ready_counts_what_is_ready_and_not_what_was_created() -> None:
    spec = job_spec(roles=[{**TRAINER, "replicas": 3}])
    pods = [running(), a_pod("trainer", 1), a_pod("trainer", 2, phase="Running", started=True)]
    plan = plan_for(seen(spec, *pods, status=plan_for(seen(spec)).status))
    assert plan.status.ready == "1/3"
    assert (plan.status.roles[0].ready, plan.status.roles[0].desired, plan.status.roles[0].seen) == (1, 3, "0-2")
    assert plan.status.message == "waiting for trainer-1, trainer-2 to be ready"


def test_time_of_a_condition_moves_with_its_status_alone() -> None:
    first = plan_for(seen(SPEC, a_pod(), status=STATUS), after_s=1)
    other = plan_for(seen(SPEC, a_pod(unschedulable=NO_NODES), status=first.status), after_s=10)
    ready = plan_for(seen(SPEC, running(), status=other.status), after_s=20)
    times = [found.last_transition_time for plan in (first, other, ready) if (found := condition(plan, "PodsReady"))]
    assert times == ["2026-11-30T10:00:00Z", "2026-11-30T10:00:00Z", "2026-11-30T10:00:20Z"]


def test_conditions_say_which_generation_they_are_about() -> None:
    status = status_of(SPEC, running())
    plan = plan_for(seen(SPEC, running(), status=status, generation=7))
    assert {item.observed_generation for item in plan.status.conditions} == {7}
    assert (plan.status.observed_generation, plan.write) == (7, "Lazy")


def test_pod_that_waits_for_a_long_time_is_neither_deleted_nor_charged() -> None:
    plan = plan_for(seen(SPEC, a_pod(unschedulable=NO_NODES), status=STATUS), after_s=25_200)
    assert (plan.status.phase, plan.status.running_time, deleted(plan)) == ("Pending", None, [])
    assert plan.status.restarts is None


@pytest.mark.parametrize(
    ("ready", "restarting", "before", "expected"),
    [
        (True, False, "Pending", "Running"),
        (True, False, "Restarting", "Running"),
        (False, True, "Running", "Restarting"),
        (False, True, "Pending", "Restarting"),
        (False, False, "Restarting", "Restarting"),
        (False, False, "Running", "Running"),
        (False, False, "Suspended", "Pending"),
        (False, False, None, "Pending"),
    ],
)
def test_phase(ready: bool, restarting: bool, before: str | None, expected: str) -> None:
    assert phase(ready=ready, restarting=restarting, before=before) == expected


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ((), ""),
        ((0,), "0"),
        ((0, 1, 2, 3, 5), "0-3,5"),
        ((4095,), "4095"),
        ((7, 1, 3, 2), "1-3,7"),
        (tuple(range(0, 10, 2)), "0,2,4,6,8"),
    ],
)
def test_ranges_read_back_as_they_were_written(indices: tuple[int, ...], text: str) -> None:
    assert format_ranges(indices) == text
    assert parse_ranges(text) == set(indices)


@pytest.mark.parametrize("text", ["x", "1-", "-1", "1-x", "99999999999", "0-99999999999", "\u0664", ",,"])
def test_ranges_that_make_no_sense_name_few_or_none(text: str) -> None:
    assert len(parse_ranges(text)) <= 1


def test_times_are_written_in_utc_and_read_back() -> None:
    time = datetime(2026, 11, 30, 12, 0, 1, 234567, tzinfo=timezone(timedelta(hours=2)))
    assert stamp(time) == "2026-11-30T10:00:01Z"
    assert stamp_ms(time) == "2026-11-30T10:00:01.234Z"
    assert parse("2026-11-30T10:00:01.234Z") == datetime(2026, 11, 30, 10, 0, 1, 234000, tzinfo=UTC)
    assert parse("2026-11-30T10:00:00") == NOW
    assert parse("yesterday") is None
    assert parse(None) is None
