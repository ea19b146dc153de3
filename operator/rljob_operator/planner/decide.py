"""What to do for a job: the rules, in their order.

A job that is finished stays so; one whose trainer is done has succeeded; one that is to be suspended loses its pods;
any other is brought, pod by pod, to what its manifest says. What is decided about attempts, budgets and suspension
stands in the status before it is acted on, so that whoever reads it next, a crash later, goes on from there.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from rljob_operator.builders.claims import claim_of
from rljob_operator.builders.names import token_name
from rljob_operator.builders.network import Reach
from rljob_operator.planner import children, cleanup, restarts, scaling, suspension
from rljob_operator.planner.budget import Charge, charged, exceeded, rested, waits_until
from rljob_operator.planner.conditions import Said, find, updated
from rljob_operator.planner.deadlines import deadline
from rljob_operator.planner.draft import Draft
from rljob_operator.planner.ending import aftermath, finish, success
from rljob_operator.planner.observed import Observed
from rljob_operator.planner.outcomes import words_of
from rljob_operator.planner.plan import Plan
from rljob_operator.planner.report import conclude, report
from rljob_operator.planner.roster import Roster, Slot, roster
from rljob_operator.planner.scheduling import unsupported
from rljob_operator.planner.startup_order import TIER, open_tier
from rljob_operator.planner.summary import roles
from rljob_operator.planner.times import parse, stamp
from rljob_operator.planner.waiting import Hold
from rlruntime.errors import ConfigError
from rlruntime.spec.manifest import MANAGED_BY, RLJobSpec
from rlruntime.spec.status import ActivationStatus, RLJobStatus

STALE_S = 5.0
"""Seconds after which a job is looked at again whose status is older than its pods; its news comes sooner."""


def decide(observed: Observed, *, now: datetime, image: str, nonce: str, reach: Reach | None = None) -> Plan:
    """Return what to do for a job.

    Args:
        now: the time, with a time zone.
        image: image of a role for which the manifest names none.
        nonce: a few random letters and digits, for the name of the token's Secret where it has none yet.
        reach: who may reach the job's pods; None: everybody, and no NetworkPolicy is made.
    """
    spec, status = observed.spec, observed.status
    if observed.deleting or (observed.managed_by if spec is None else spec.managed_by) != MANAGED_BY:
        return Plan(status)
    if spec is None:
        return Plan(status) if cleanup.finished(status) else _unreadable(observed, now)
    if cleanup.finished(status):
        return aftermath(observed, spec, now)
    draft = Draft.of(observed, now)
    words = success(observed, spec)
    if words is not None:
        return finish(draft, observed, spec, phase="Succeeded", reason="Completed", message=words)
    _begin(draft, observed, spec)
    if spec.run_policy.suspend:
        return _suspend(draft, observed, spec)
    return _run(draft, observed, spec, image=image, nonce=nonce, reach=reach)


def _unreadable(observed: Observed, now: datetime) -> Plan:
    """A job whose spec this version can't read fails, unless it has pods: those are left alone, and so is the job."""
    draft = Draft.of(observed, now)
    problem = observed.spec_problem or "spec can't be read"
    kept = [
        Said(item.type, item.status == "True", item.reason, item.message)
        for item in observed.status.conditions
        if item.type != "Failed"
    ]
    fails = all(pod.gone for pod in observed.pods)
    said = [Said("Failed", fails, "SpecInvalid", problem), *kept]
    if fails:
        draft.set("phase", "Failed")
        draft.set("reason", "SpecInvalid")
        draft.set("message", problem[:4096])
        draft.set("completion_time", stamp(now))
        draft.event("Failed", f"SpecInvalid: {problem}", warning=True)
    draft.set("conditions", updated(observed.status.conditions, said, generation=observed.generation, now=now))
    return draft.plan()


def _begin(draft: Draft, observed: Observed, spec: RLJobSpec) -> None:
    """Say what holds from the first look at the job on."""
    if draft.get("start_time") is None:
        draft.set("start_time", stamp(draft.now))
        draft.set("claim_name", claim_of(observed.owner, spec.storage))


def _suspend(draft: Draft, observed: Observed, spec: RLJobSpec) -> Plan:
    """Take the pods away; only when the last object is gone the job is suspended. What ends meanwhile is no failure."""
    left = sum(not pod.gone for pod in observed.pods)
    before = observed.status.phase
    draft.set("activation", None)
    draft.set("running_time", None)
    draft.set("pre_running_seconds", None)
    draft.restarts = suspension.at_rest(draft.restarts)
    counts = roles(spec, observed.status.roles, None, {})
    message = f"waiting for {left} pods to end" if left else "spec.runPolicy.suspend is true"
    reason = "Suspending" if left else "Suspended"
    said = [Said("PodsReady", False, "Suspended", message), Said("Suspended", not left, reason, message)]
    draft.set("phase", reason)
    draft.set("reason", reason)
    draft.set("message", message)
    if not left and before != "Suspended":
        draft.event("Suspended", message)
    draft.deletes.extend(suspension.deletions(observed.pods))
    conclude(draft, observed, spec, counts, said)
    return draft.plan()


def _run(draft: Draft, observed: Observed, spec: RLJobSpec, *, image: str, nonce: str, reach: Reach | None) -> Plan:
    """Bring an active job towards what its manifest says, or fail it."""
    activation = _activate(draft, observed, nonce)
    places = roster(
        spec,
        observed.pods,
        attempt=draft.get("attempt"),
        activation=activation,
        restarts=draft.restarts,
        roles=observed.status.roles if observed.status.activation is not None else (),
    )
    if places.ahead:
        return Plan(observed.status, requeue_after_s=STALE_S)
    if (verdict := unsupported(spec) or _hopeless(observed, places)) is not None:
        return finish(draft, observed, spec, phase="Failed", reason=verdict[0], message=verdict[1])
    if not all(slot.satisfied for slot in places.slots):
        draft.restarts = rested(draft.restarts, healthy_since=_healthy_since(observed.status), now=draft.now)
    faults = _restart(draft, places, spec)
    verdict = exceeded(draft.restarts, spec.run_policy) or _too_late(draft, spec, activation)
    if verdict is not None:
        return finish(draft, observed, spec, phase="Failed", reason=verdict[0], message=verdict[1], faults=faults)

    draft.restarts = scaling.retired(draft.restarts, places.surplus)
    draft.deletes.extend(restarts.stale(places))
    draft.deletes.extend(scaling.deletions(places.surplus))
    new, holds = _missing(draft, places)
    if new or _lack_volumes(observed, places):
        secret = draft.get("token_secret")
        try:
            if new and observed.templates_valid is None:
                return Plan(
                    observed.status, dry_runs=children.samples(observed.owner, spec, image=image, secret=secret)
                )
            draft.creates.extend(children.missing(observed.owner, spec, observed.existing, secret=secret, reach=reach))
            draft.creates.extend(
                children.pods(observed.owner, spec, new, round_=draft.get("round"), image=image, secret=secret)
            )
        except ConfigError as error:
            problem = "TemplateInvalid", str(error)
            return finish(draft, observed, spec, phase="Failed", reason=problem[0], message=problem[1], faults=faults)
    report(draft, observed, spec, places, holds, activation, faults)
    limit = deadline(spec.run_policy, activated=activation.time, running=draft.get("running_time"))
    draft.wake(limit.at if limit else None)
    return draft.plan()


def _activate(draft: Draft, observed: Observed, nonce: str) -> ActivationStatus:
    """Begin an activation where there is none: the first, or the next after a suspension."""
    if observed.status.activation is not None and observed.status.attempt is not None:
        return observed.status.activation
    begun = suspension.activation(observed.status, draft.now)
    draft.set("activation", begun)
    draft.set("attempt", begun.attempt)
    draft.set("round", begun.round)
    draft.set("running_time", None)
    if draft.restarts.slots:
        draft.restarts = draft.restarts.model_copy(update={"slots": {}})
    if draft.get("token_secret") is None:
        draft.set("token_secret", token_name(observed.owner, nonce))
    if observed.status.phase is not None:
        draft.event("Resumed", f"trainers begin attempt {begun.attempt}")
    return begun


def _hopeless(observed: Observed, places: Roster) -> tuple[str, str] | None:
    """Return reason and message where no further attempt could end otherwise."""
    if observed.templates_valid is False:
        return "TemplateInvalid", observed.template_problem or "the API server refuses a pod of this template"
    for refusal in observed.refused:
        if refusal.reason == "TemplateInvalid":
            return "TemplateInvalid", f"{refusal.name}: {refusal.message}"
    for slot in places.slots:
        if slot.end == "Permanent" and (pod := slot.lost or slot.pod) is not None:
            return "ConfigInvalid", f"{slot.name}: {words_of(pod)}"
    return None


def _lack_volumes(observed: Observed, places: Roster) -> bool:
    """Return whether a pod can't mount what it needs: somebody may have deleted what was made for the job."""
    pods = [slot.pod for slot in places.slots if slot.pod is not None and not slot.pod.started]
    return any(trouble.of_a_volume for pod in pods if (trouble := observed.pod_events.get(pod.name)) is not None)


def _too_late(draft: Draft, spec: RLJobSpec, activation: ActivationStatus) -> tuple[str, str] | None:
    """Return reason and message where a deadline has passed."""
    limit = deadline(spec.run_policy, activated=activation.time, running=draft.get("running_time"))
    return (limit.reason, limit.message) if limit is not None and limit.at <= draft.now else None


def _healthy_since(status: RLJobStatus) -> datetime | None:
    condition = find(status.conditions, "PodsReady")
    return parse(condition.last_transition_time) if condition is not None and condition.status == "True" else None


def _restart(draft: Draft, places: Roster, spec: RLJobSpec) -> dict[str, int]:
    """Charge what ended badly, and give those places their next attempt; return the faults by role."""
    slots = restarts.failures(places)
    if not slots:
        return {}
    charges = [restarts.charge_of(slot) for slot in slots]
    draft.restarts = charged(draft.restarts, charges, now=draft.now)
    if exceeded(draft.restarts, spec.run_policy) is None:
        draft.restarts, attempt = restarts.restart(places, slots, draft.restarts, draft.get("attempt"))
        draft.set("attempt", attempt)
        draft.set("round", (draft.get("round") or 0) + len(slots))
        draft.event("Restarting", _restart_words(draft, charges, spec), warning=True)
    return Counter(slot.of.name for slot, charge in zip(slots, charges, strict=True) if charge.kind == "Fault")


def _restart_words(draft: Draft, charges: list[Charge], spec: RLJobSpec) -> str:
    spent, policy, first = draft.restarts, spec.run_policy, charges[0]
    budgets = []
    if any(charge.kind == "Fault" for charge in charges):
        budgets.append(f"fault {spent.faults} of at most {policy.backoff_limit}")
    if any(charge.kind == "Disruption" for charge in charges):
        budgets.append(f"disruption {spent.disruptions} of at most {policy.disruption_limit}")
    more = f" (and {len(charges) - 1} more)" if len(charges) > 1 else ""
    until = waits_until(spent, draft.now)
    when = f"in {(until - draft.now).total_seconds():.0f} s" if until else "at once"
    return f"{first.where}: {first.message}{more}; {', '.join(budgets)}; the next attempt begins {when}"


def _missing(draft: Draft, places: Roster) -> tuple[list[Slot], dict[int, Hold]]:
    """Return the places that get a pod now, and for what the others that need one wait."""
    slots = places.slots
    if not any(slot.missing for slot in slots):
        return [], {}
    tier = open_tier(slots, has_run=draft.get("running_time") is not None)
    until = waits_until(draft.restarts, draft.now)
    blocked = restarts.blocked(places)
    new: list[Slot] = []
    holds: dict[int, Hold] = {}
    for number, slot in enumerate(slots):
        if not slot.missing:
            continue
        if number in blocked:
            holds[number] = "Terminating"
        elif until is not None and not slot.first:
            holds[number] = "BackOff"
            draft.wake(until)
        elif TIER[slot.of.type] > tier:
            holds[number] = "StartupOrder"
        else:
            new.append(slot)
    return new, holds
