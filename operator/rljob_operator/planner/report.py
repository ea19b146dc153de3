"""What the status says of a job that isn't finished: its phase, what it waits for, its counts."""

from __future__ import annotations

from rljob_operator.planner.conditions import Said, durability, find, updated
from rljob_operator.planner.draft import Draft
from rljob_operator.planner.ending import force
from rljob_operator.planner.observed import Observed
from rljob_operator.planner.phase import phase
from rljob_operator.planner.roster import Roster
from rljob_operator.planner.summary import elastic, ready_text, roles
from rljob_operator.planner.times import parse, stamp
from rljob_operator.planner.waiting import TROUBLES, Hold, Readiness, readiness, to_inspect
from rlruntime.spec.manifest import RLJobSpec
from rlruntime.spec.status import ActivationStatus, RLJobStatus, RoleStatus


def report(
    draft: Draft,
    observed: Observed,
    spec: RLJobSpec,
    places: Roster,
    holds: dict[int, Hold],
    activation: ActivationStatus,
    faults: dict[str, int],
) -> None:
    """Say how the job is: its phase, what it waits for, its counts."""
    found = readiness(
        places.slots,
        holds,
        refused=observed.refused,
        pod_events=observed.pod_events,
        until=draft.restarts.next_attempt_time,
        last=draft.restarts.last_message,
    )
    leaving = any(slot.pod is not None and slot.pod.deletion_at is not None for slot in places.slots)
    restarting = leaving or any(hold in ("BackOff", "Terminating") for hold in holds.values())
    before = observed.status.phase
    now_phase = phase(ready=found.ready, restarting=restarting, before=before)
    draft.set("phase", now_phase)
    draft.set("reason", None if found.ready else found.reason)
    draft.set("message", None if found.ready else found.message)
    if found.ready and draft.get("running_time") is None:
        draft.set("running_time", stamp(draft.now))
        began = parse(activation.time) or draft.now
        draft.set("pre_running_seconds", max(0, int((draft.now - began).total_seconds())))
    counts = roles(spec, observed.status.roles, places, faults)
    if now_phase == "Running" and before != "Running":
        draft.event("Running", f"{ready_text(counts)} pods are ready")
    _warn(draft, observed.status, found)
    draft.inspect_pods, look_at = to_inspect(places.slots, draft.now)
    draft.wake(look_at)
    said = [Said("PodsReady", found.ready, found.reason, found.message)]
    if find(observed.status.conditions, "Suspended") is not None:
        said.append(Said("Suspended", False, "Resumed"))
    conclude(draft, observed, spec, counts, said)


def _warn(draft: Draft, status: RLJobStatus, found: Readiness) -> None:
    """Write an event about what somebody may have to see to, once."""
    said = find(status.conditions, "PodsReady")
    if not found.ready and found.reason in TROUBLES and (said is None or said.reason != found.reason):
        draft.event(found.reason, found.message, warning=True)


def conclude(
    draft: Draft, observed: Observed, spec: RLJobSpec, counts: tuple[RoleStatus, ...], said: list[Said]
) -> None:
    """Set what every pass over an unfinished job ends with."""
    draft.set("roles", counts)
    draft.set("ready", ready_text(counts))
    draft.set("elastic", elastic(observed.owner, spec, observed.pods))
    said.append(durability(observed.owner, spec.storage))
    conditions = observed.status.conditions
    draft.set("conditions", updated(conditions, said, generation=observed.generation, now=draft.now))
    force(draft, observed)
