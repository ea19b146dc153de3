"""Literals for tests of the planner: a job, its pods, and a pass over them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rljob_operator.builders.owner import Owner
from rljob_operator.planner.decide import decide
from rljob_operator.planner.observed import ContainerEnd, Observed, ObservedPod
from rljob_operator.planner.plan import Plan

from rlruntime.spec.loader import parse_manifest
from rlruntime.spec.manifest import RLJobSpec
from rlruntime.spec.status import Condition, RLJobStatus

OWNER = Owner(name="ppo", namespace="team-a", uid="1b4e28ba-2fa1-4a6b-8c3d-0123456789ab")
NOW = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)
NODE = "node-a"

TRAINER: dict[str, Any] = {"name": "trainer", "type": "Trainer"}
ENGINE: dict[str, Any] = {"name": "engine", "type": "Inference"}
REWARD: dict[str, Any] = {"name": "reward", "type": "Service", "entrypoint": "rewards:serve"}
COLLECTOR: dict[str, Any] = {"name": "collector", "type": "Collector"}


def job_spec(**fields: Any) -> RLJobSpec:
    """Return the spec of a job that trains CartPole; ``roles`` by default one trainer."""
    training = {"algorithm": "PPO", "totalFrames": 1000, "env": {"id": "CartPole-v1"}}
    document = {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "ppo"},
        "spec": {"training": training, **fields},
    }
    return parse_manifest(document, "job.yaml").spec


def a_pod(role: str = "trainer", index: int = 0, attempt: int = 0, **fields: Any) -> ObservedPod:
    """Return a pod that is being created; its uid is its name."""
    name = f"ppo-{role}-{index}-{attempt}"
    return ObservedPod(
        **{"name": name, "uid": name, "created_at": NOW, **fields}, role=role, index=index, attempt=attempt
    )


def running(role: str = "trainer", index: int = 0, attempt: int = 0, **fields: Any) -> ObservedPod:
    """Return a pod that is ready."""
    return a_pod(role, index, attempt, **{"phase": "Running", "started": True, "ready": True, "node": NODE, **fields})


def ended(code: int, role: str = "trainer", index: int = 0, attempt: int = 0, **fields: Any) -> ObservedPod:
    """Return a pod whose main container ended with ``code``; ``why`` and ``message`` are the container's."""
    why, message = fields.pop("why", "Completed" if code == 0 else "Error"), fields.pop("message", "")
    end = ContainerEnd(code, why, message, finished_at=fields.pop("finished_at", NOW))
    phase = "Succeeded" if code == 0 else "Failed"
    return running(role, index, attempt, **{"phase": phase, "ready": False, "end": end, **fields})


def gone(pod: ObservedPod) -> ObservedPod:
    """Return ``pod`` as it was last seen, now that its object is deleted."""
    return replace(pod, gone=True)


def deleting(pod: ObservedPod, *, asked: datetime = NOW, grace_s: int = 30) -> ObservedPod:
    """Return ``pod`` as somebody deleted it."""
    return replace(pod, deletion_at=asked + timedelta(seconds=grace_s), deletion_grace_seconds=grace_s)


def seen(spec: RLJobSpec, *pods: ObservedPod, status: RLJobStatus | None = None, **fields: Any) -> Observed:
    """Return what is known of a job whose templates were judged to be valid."""
    return Observed(
        **{"owner": OWNER, "generation": 1, "templates_valid": True, **fields},
        spec=spec,
        status=status or RLJobStatus(),
        pods=pods,
    )


def plan_for(observed: Observed, *, after_s: float = 0.0) -> Plan:
    """Return the plan of a pass so many seconds after `NOW`."""
    return decide(observed, now=NOW + timedelta(seconds=after_s), image="runtime:1", nonce="a1b2c")


def status_of(spec: RLJobSpec, *pods: ObservedPod) -> RLJobStatus:
    """Return the status of a job that began at `NOW` and whose pods got to be as given: of attempt 0, none ended."""
    status = plan_for(seen(spec)).status
    return plan_for(seen(spec, *pods, status=status)).status


def created(plan: Plan) -> list[str]:
    """Return the names of the pods that a plan creates."""
    return [item["metadata"]["name"] for item in plan.creates if item["kind"] == "Pod"]


def deleted(plan: Plan) -> list[str]:
    """Return the names of the pods that a plan deletes."""
    return [item.name for item in plan.deletes]


def events(plan: Plan) -> list[str]:
    """Return the reasons of a plan's events."""
    return [event.reason for event in plan.events]


def condition(plan: Plan, kind: str) -> Condition | None:
    """Return a condition of the status that a plan wants."""
    return next((item for item in plan.status.conditions if item.type == kind), None)


def pods_ready(plan: Plan) -> tuple[str, str]:
    """Return status and reason of the condition `PodsReady`."""
    found = condition(plan, "PodsReady")
    assert found is not None
    return found.status, found.reason
