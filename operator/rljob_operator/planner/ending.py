"""How a job finishes, and what is left to do afterwards."""

from __future__ import annotations

from datetime import datetime

from rljob_operator.planner import cleanup
from rljob_operator.planner.conditions import Said, durability, find, updated
from rljob_operator.planner.draft import Draft
from rljob_operator.planner.node_loss import overdue
from rljob_operator.planner.observed import Observed
from rljob_operator.planner.outcomes import message_of, outcome
from rljob_operator.planner.plan import DeletePod, JobEvent, Plan
from rljob_operator.planner.summary import elastic, ready_text, roles
from rljob_operator.planner.times import parse, stamp
from rlruntime.spec.manifest import RLJobSpec


def success(observed: Observed, spec: RLJobSpec) -> str | None:
    """Return the last words of a trainer that has done its work, or None while there is none.

    It is the trainer of index 0 and the current attempt; those of earlier ones don't count any more.
    """
    attempt = observed.status.attempt
    trainer = next(role.name for role in spec.roles if role.type == "Trainer")
    for pod in observed.pods:
        if pod.index == 0 and pod.attempt == attempt and pod.role == trainer and outcome(pod, leads=True) == "Done":
            said = message_of(pod)
            return said.message if said and said.message else f"{trainer}-0 has done its work"
    return None


def finish(
    draft: Draft,
    observed: Observed,
    spec: RLJobSpec,
    *,
    phase: str,
    reason: str,
    message: str,
    faults: dict[str, int] | None = None,
) -> Plan:
    """Return the plan that ends a job: the whole result in one write, then what its policy says of pods.

    Args:
        phase: ``Succeeded`` or ``Failed``.
        faults: faults that were charged in this pass, by role.
    """
    draft.set("phase", phase)
    draft.set("reason", reason[:253])
    draft.set("message", message[:4096])
    draft.set("completion_time", stamp(draft.now))
    if draft.get("start_time") is None:
        draft.set("start_time", stamp(draft.now))
    counts = roles(spec, observed.status.roles, None, faults or {})
    draft.set("roles", counts)
    draft.set("ready", ready_text(counts))
    draft.set("elastic", elastic(observed.owner, spec, ()))
    suspended = find(observed.status.conditions, "Suspended")
    said = [
        Said(phase, True, reason, message),
        Said("PodsReady", False, "Finished", f"the job has {phase.lower()}"),
        durability(observed.owner, spec.storage),
    ]
    if suspended is not None:
        said.append(Said("Suspended", False, "Finished", f"the job has {phase.lower()}"))
    draft.set("conditions", updated(observed.status.conditions, said, generation=observed.generation, now=draft.now))
    draft.event(phase, f"{reason}: {message}" if phase == "Failed" else message, warning=phase == "Failed")
    draft.creates.clear()
    draft.deletes.clear()
    _clean(draft, observed, spec)
    if (ttl_s := spec.run_policy.ttl_seconds_after_finished) is not None:
        draft.wake_in(ttl_s)
    return draft.plan()


def aftermath(observed: Observed, spec: RLJobSpec, now: datetime) -> Plan:
    """Return what is left to do for a job that has finished. Its status stays as it is."""
    expires = cleanup.expires_at(spec.run_policy, observed.status)
    if expires is not None and expires <= now:
        return Plan(observed.status, delete_job=True)
    draft = Draft(observed.status, now)
    _clean(draft, observed, spec)
    draft.wake(expires)
    return draft.plan()


def _clean(draft: Draft, observed: Observed, spec: RLJobSpec) -> None:
    """Delete what the policy says, and by force what doesn't go."""
    completed = parse(draft.get("completion_time")) or draft.now
    deletes, again_at = cleanup.deletions(spec.run_policy, observed.pods, completed=completed, now=draft.now)
    draft.deletes.extend(deletes)
    draft.wake(again_at)
    force(draft, observed)


def force(draft: Draft, observed: Observed) -> None:
    """Delete by force what should have gone by itself long ago."""
    due, next_at = overdue(observed.pods, draft.now)
    draft.wake(next_at)
    for pod in due:
        draft.deletes.append(DeletePod(pod.name, pod.uid, grace_seconds=0))
        where = f" on node {pod.node}" if pod.node else ""
        message = f"{pod.name}{where} didn't end in time: its object is deleted by force, its process may live on"
        draft.events.append(JobEvent("ForceDeleted", message, warning=True))
