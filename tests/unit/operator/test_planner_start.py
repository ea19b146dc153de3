"""How a job begins: what is written before what is created, and in which order pods come."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planner_cases import (
    COLLECTOR,
    ENGINE,
    REWARD,
    TRAINER,
    a_pod,
    condition,
    created,
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
from rljob_operator.planner.observed import CreateRefused, ObservedPod, Trouble
from rljob_operator.planner.plan import Plan

from rlruntime.spec.status import ActivationStatus, RLJobStatus


def test_nothing_is_created_before_the_api_server_has_judged_a_pod_of_each_role() -> None:
    spec = job_spec(roles=[TRAINER, {**COLLECTOR, "replicas": 3}])
    observed = seen(spec, templates_valid=None)
    plan = plan_for(observed)
    names = [item["metadata"]["name"] for item in plan.dry_runs]
    assert names == ["ppo-trainer-0-0", "ppo-collector-0-0"]
    assert plan == Plan(status=observed.status, dry_runs=plan.dry_runs)


def test_template_that_the_api_server_refuses_fails_the_job_and_nothing_is_created() -> None:
    plan = plan_for(seen(job_spec(), templates_valid=False, template_problem='unknown field "spec.nodeSelectr"'))
    assert (plan.status.phase, plan.status.reason) == ("Failed", "TemplateInvalid")
    assert plan.status.message == 'unknown field "spec.nodeSelectr"'
    assert plan.status.completion_time == "2026-11-30T10:00:00Z"
    assert plan.creates == ()
    assert events(plan) == ["Failed"]


def test_template_that_sets_what_is_the_operators_fails_the_job_with_the_field() -> None:
    role = {**TRAINER, "template": {"spec": {"restartPolicy": "Always"}}}
    plan = plan_for(seen(job_spec(roles=[role]), templates_valid=None))
    assert plan.status.reason == "TemplateInvalid"
    assert plan.status.message == ("spec.roles[0].template.spec.restartPolicy: is set by the operator; remove it")


@pytest.mark.parametrize(
    ("scheduling", "message"),
    [
        (
            {"gang": "Native"},
            "spec.scheduling.gang: Native: this operator places pods one by one and fails the job; set None",
        ),
        (
            {"queueName": "q"},
            "spec.scheduling.queueName: q: this operator places pods one by one and fails the job; leave it out",
        ),
    ],
)
def test_scheduling_that_a_job_would_not_get_fails_it_before_anything_is_created(
    scheduling: dict[str, str], message: str
) -> None:
    plan = plan_for(seen(job_spec(scheduling=scheduling)))
    assert (plan.status.phase, plan.status.reason) == ("Failed", "SchedulingUnsupported")
    assert plan.status.message == message
    assert plan.creates == ()


def test_object_that_is_refused_as_invalid_fails_the_job() -> None:
    refused = (CreateRefused("ppo-1b4e28ba-storage", "TemplateInvalid", "spec.accessModes: Required value"),)
    plan = plan_for(seen(job_spec(), refused=refused))
    assert (plan.status.phase, plan.status.reason) == ("Failed", "TemplateInvalid")
    assert plan.status.message == "ppo-1b4e28ba-storage: spec.accessModes: Required value"


def test_attempt_and_secrets_name_are_written_in_the_plan_that_creates_the_first_pods() -> None:
    plan = plan_for(seen(job_spec(storage={"volumeClaimTemplate": {"spec": {}}})))
    assert plan.write == "Now"
    assert [(item["kind"], item["metadata"]["name"]) for item in plan.creates] == [
        ("ConfigMap", "ppo-1b4e28ba-spec"),
        ("Secret", "ppo-1b4e28ba-token-a1b2c"),
        ("Service", "ppo-1b4e28ba"),
        ("PersistentVolumeClaim", "ppo-1b4e28ba-storage"),
        ("Pod", "ppo-trainer-0-0"),
    ]
    status = plan.status
    assert (status.phase, status.attempt, status.round) == ("Pending", 0, 0)
    assert status.activation == ActivationStatus(time="2026-11-30T10:00:00Z", attempt=0, round=0)
    assert status.token_secret == "ppo-1b4e28ba-token-a1b2c"
    assert status.claim_name == "ppo-1b4e28ba-storage"
    assert status.start_time == "2026-11-30T10:00:00Z"
    assert status.ready == "0/1"
    assert pods_ready(plan) == ("False", "Creating")
    assert plan.events == ()


def test_plan_holds_no_token() -> None:
    secret = next(item for item in plan_for(seen(job_spec())).creates if item["kind"] == "Secret")
    assert secret["stringData"] == {"token": ""}


def test_secrets_name_stays_once_it_is_written() -> None:
    spec = job_spec()
    status = RLJobStatus(**{**dict(status_of(spec)), "token_secret": "ppo-1b4e28ba-token-zzzzz"})
    plan = plan_for(seen(spec, status=status))
    names = [item["metadata"]["name"] for item in plan.creates if item["kind"] == "Secret"]
    assert names == ["ppo-1b4e28ba-token-zzzzz"]


def test_what_is_known_to_exist_is_not_created_again() -> None:
    spec = job_spec()
    status = status_of(spec)
    existing = frozenset({"ppo-1b4e28ba-spec", "ppo-1b4e28ba-token-a1b2c", "ppo-1b4e28ba"})
    plan = plan_for(seen(spec, status=status, existing=existing))
    assert [item["kind"] for item in plan.creates] == ["Pod"]
    assert plan.write == "None"


def test_pod_whose_creation_was_answered_by_nothing_is_created_again_under_the_same_name() -> None:
    spec = job_spec(roles=[{**TRAINER, "replicas": 2}])
    status = plan_for(seen(spec)).status
    plan = plan_for(seen(spec, a_pod("trainer", 1), status=status))
    assert created(plan) == ["ppo-trainer-0-0"]


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param((), ["ppo-engine-0-0", "ppo-reward-0-0"], id="servers come first"),
        pytest.param((running("engine"), a_pod("reward")), [], id="trainers wait until all servers are ready"),
        pytest.param(
            (running("engine"), running("reward")), ["ppo-trainer-0-0"], id="trainers come once servers are ready"
        ),
        pytest.param(
            (running("engine"), ended(0, "reward")), ["ppo-trainer-0-0"], id="a service that is done is ready enough"
        ),
        pytest.param(
            (running("engine"), running("reward"), a_pod("trainer")), [], id="collectors wait until trainers are ready"
        ),
        pytest.param(
            (running("engine"), running("reward"), running("trainer")),
            ["ppo-collector-0-0"],
            id="collectors come last",
        ),
    ],
)
def test_startup_order_follows_readiness(pods: tuple[ObservedPod, ...], expected: list[str]) -> None:
    spec = job_spec(roles=[TRAINER, ENGINE, REWARD, COLLECTOR])
    status = plan_for(seen(spec)).status
    assert created(plan_for(seen(spec, *pods, status=status))) == expected


def test_waiting_for_an_earlier_role_says_so() -> None:
    spec = job_spec(roles=[TRAINER, ENGINE])
    status = plan_for(seen(spec)).status
    plan = plan_for(seen(spec, a_pod("engine"), status=status))
    assert pods_ready(plan) == ("False", "StartupOrder")
    assert plan.status.message == "waiting for engine-0 to be ready; after that come trainer-0"


def test_job_that_has_run_recreates_its_trainer_though_an_engine_is_away() -> None:
    spec = job_spec(roles=[TRAINER, ENGINE])
    pods = (running("trainer"), running("engine"))
    status = status_of(spec, *pods)
    away = (a_pod("engine", attempt=1), ended(1))
    status = plan_for(seen(spec, ended(1), ended(1, "engine"), status=status)).status
    assert created(plan_for(seen(spec, away[0], status=status), after_s=2)) == ["ppo-trainer-0-1"]


def test_job_runs_only_when_every_pod_is_ready() -> None:
    spec = job_spec(roles=[{**TRAINER, "replicas": 2}])
    status = plan_for(seen(spec)).status
    half = plan_for(seen(spec, running(), a_pod("trainer", 1), status=status))
    assert (half.status.phase, half.status.ready, half.status.running_time) == ("Pending", "1/2", None)
    assert half.write == "Lazy"
    whole = plan_for(seen(spec, running(), running("trainer", 1), status=half.status), after_s=7)
    assert (whole.status.phase, whole.status.ready, whole.status.reason) == ("Running", "2/2", None)
    assert (whole.status.running_time, whole.status.pre_running_seconds) == ("2026-11-30T10:00:07Z", 7)
    assert whole.write == "Now"
    assert events(whole) == ["Running"]
    assert pods_ready(whole) == ("True", "AllReady")


def test_pass_over_an_unchanged_job_does_and_writes_nothing() -> None:
    spec = job_spec(roles=[TRAINER, ENGINE, COLLECTOR], elastic={"role": "collector", "replicas": 2})
    pods = (running("engine"), running("trainer"), running("collector"), running("collector", 1))
    status = status_of(spec, *pods)
    assert plan_for(seen(spec, *pods, status=status), after_s=3600) == Plan(status=status)


def test_status_comes_back_from_json_as_it_was_planned() -> None:
    spec = job_spec(roles=[TRAINER, ENGINE, COLLECTOR], elastic={"role": "collector", "replicas": 2})
    pods = (ended(1, "engine"), running("trainer"), running("collector"), running("collector", 1))
    status = plan_for(seen(spec, *pods, status=status_of(spec, *(running(*pod.slot) for pod in pods)))).status
    text = status.model_dump_json(by_alias=True, exclude_none=True)
    assert RLJobStatus.model_validate_json(text, by_alias=True, by_name=False) == status


def test_job_of_another_manager_is_left_alone() -> None:
    spec = job_spec(managedBy="example.com/other")
    assert plan_for(seen(spec, ended(1))) == Plan(status=RLJobStatus())


def test_job_that_is_being_deleted_is_left_alone() -> None:
    assert plan_for(seen(job_spec(), deleting=True, templates_valid=None)) == Plan(status=RLJobStatus())


def test_spec_that_cannot_be_read_fails_a_job_without_pods() -> None:
    observed = replace(seen(job_spec()), spec=None, spec_problem="spec.x: this field is unknown; remove it")
    plan = plan_for(observed)
    assert (plan.status.phase, plan.status.reason) == ("Failed", "SpecInvalid")
    assert plan.status.message == "spec.x: this field is unknown; remove it"
    again = plan_for(replace(observed, status=plan.status), after_s=60)
    assert again == Plan(status=plan.status)


def test_spec_that_cannot_be_read_of_a_job_of_another_manager_is_left_alone() -> None:
    observed = replace(seen(job_spec()), spec=None, spec_problem="no", managed_by="example.com/other")
    assert plan_for(observed) == Plan(status=RLJobStatus())


def test_what_was_made_for_a_job_is_made_again_where_a_pod_can_not_mount_it() -> None:
    spec = job_spec()
    status = status_of(spec, running())
    stuck = a_pod(node="node-a")
    lost = Trouble("FailedMount", 'configmap "ppo-1b4e28ba-spec" not found')
    observed = seen(spec, stuck, status=status, pod_events={stuck.name: lost}, templates_valid=None)
    assert [item["kind"] for item in plan_for(observed).creates] == ["ConfigMap", "Secret", "Service"]
    names = frozenset(item["metadata"]["name"] for item in plan_for(observed).creates)
    assert plan_for(replace(observed, existing=names)).creates == ()


def test_spec_that_cannot_be_read_leaves_the_pods_of_a_job_alone_and_says_so() -> None:
    spec = job_spec()
    observed = replace(seen(spec, running(), status=status_of(spec, running())), spec=None, spec_problem="no")
    plan = plan_for(observed)
    assert plan.status.phase == "Running"
    found = condition(plan, "Failed")
    assert found is not None
    assert (found.status, found.reason, found.message) == ("False", "SpecInvalid", "no")
    assert (plan.creates, plan.deletes) == ((), ())
    readable = plan_for(replace(observed, spec=spec, status=plan.status))
    assert condition(readable, "Failed") is None


def test_first_status_says_what_is_waited_for_even_where_nothing_can_be_created() -> None:
    refused = (CreateRefused("ppo-trainer-0-0", "Forbidden", "pods is forbidden: no service account"),)
    spec = job_spec()
    plan = plan_for(seen(spec, refused=refused, status=status_of(spec)))
    assert pods_ready(plan) == ("False", "Forbidden")
    assert plan.status.message == "ppo-trainer-0-0: pods is forbidden: no service account"
    assert created(plan) == ["ppo-trainer-0-0"]
    assert events(plan) == ["Forbidden"]


def test_name_that_belongs_to_another_is_said_and_tried_again() -> None:
    spec = job_spec()
    refused = (CreateRefused("ppo-1b4e28ba", "NameTaken", "a Service of this name belongs to somebody else"),)
    plan = plan_for(seen(spec, refused=refused, status=status_of(spec)))
    assert pods_ready(plan) == ("False", "NameTaken")
    assert plan.status.phase == "Pending"
    assert "Service" in [item["kind"] for item in plan.creates]


def test_job_without_storage_says_that_its_checkpoints_die() -> None:
    without, kept = (
        condition(plan_for(seen(spec)), "CheckpointDurable")
        for spec in (job_spec(), job_spec(storage={"persistentVolumeClaim": {"claimName": "runs"}}))
    )
    assert without is not None
    assert kept is not None
    assert (without.status, without.reason) == ("False", "NoStorage")
    assert (kept.status, kept.message) == ("True", "checkpoints are kept in the claim runs")


def test_pod_of_a_later_attempt_than_the_status_knows_means_that_the_status_is_old() -> None:
    spec = job_spec()
    status = status_of(spec, running())
    plan = plan_for(seen(spec, gone(ended(1)), a_pod(attempt=1), status=status))
    assert plan == Plan(status=status, requeue_after_s=5.0)
