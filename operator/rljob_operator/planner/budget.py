"""What restarts cost: two budgets, and a wait that grows from restart to restart."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from rljob_operator.planner.times import parse, stamp_ms
from rlruntime.spec.policies import RunPolicy
from rlruntime.spec.status import RestartsStatus

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 300.0
HEALTHY_S = 600.0
"""Seconds for which all pods must have been ready for the next restart to be the first of a row again."""
_KEPT_UIDS = 64


@dataclass(frozen=True, slots=True)
class Charge:
    """A restart, and what it is for."""

    kind: Literal["Fault", "Disruption"]
    where: str
    """The place that it is about, such as ``trainer-0``."""
    reason: str
    message: str
    uid: str = ""
    """Of the pod that ended; empty where nothing is known of it but that it was there."""
    again: bool = False
    """The pod that ended was itself the outcome of a restart."""


def rested(restarts: RestartsStatus, *, healthy_since: datetime | None, now: datetime) -> RestartsStatus:
    """Return ``restarts`` of a job whose pods aren't all ready any more: was it healthy for long, its row has ended.

    It is said at once, since a pod that is asked to go isn't ready long before it ends.

    Args:
        healthy_since: since when all pods have been ready; None when they weren't, at the last look.
    """
    if not restarts.streak or healthy_since is None or (now - healthy_since).total_seconds() < HEALTHY_S:
        return restarts
    return restarts.model_copy(update={"streak": 0})


def charged(restarts: RestartsStatus, charges: list[Charge], *, now: datetime) -> RestartsStatus:
    """Return ``restarts`` with ``charges`` added, and the time before which none of them is acted on.

    Pods that end together are one setback: the wait grows only when a pod ends that a restart had brought.
    """
    streak = restarts.streak
    wait_s = 0.0
    faults = disruptions = 0
    grown = False
    for charge in charges:
        if streak == 0 or (charge.again and not grown):
            streak, grown = streak + 1, True
        wait_s = max(wait_s, _wait_s(charge.kind, streak))
        faults += charge.kind == "Fault"
        disruptions += charge.kind == "Disruption"
    before = parse(restarts.next_attempt_time)
    due = now + timedelta(seconds=wait_s)
    if before is not None and due < before <= now + timedelta(seconds=LONGEST_WAIT_S):
        due = before
    last = charges[-1]
    return restarts.model_copy(
        update={
            "faults": restarts.faults + faults,
            "disruptions": restarts.disruptions + disruptions,
            "charged_pods": (*restarts.charged_pods, *(charge.uid for charge in charges if charge.uid))[-_KEPT_UIDS:],
            "next_attempt_time": stamp_ms(due) if due > now else None,
            "streak": streak,
            "last_reason": last.reason[:253],
            "last_message": f"{last.where}: {last.message}"[:4096],
        }
    )


def exceeded(restarts: RestartsStatus, policy: RunPolicy) -> tuple[str, str] | None:
    """Return reason and message of the failure where a budget is overspent."""
    for reason, spent, limit, what, field in (
        ("BackoffLimitExceeded", restarts.faults, policy.backoff_limit, "faults", "backoffLimit"),
        ("DisruptionLimitExceeded", restarts.disruptions, policy.disruption_limit, "disruptions", "disruptionLimit"),
    ):
        if spent > limit:
            return reason, f"{spent} {what} are more than {field}: {limit}; the last: {restarts.last_message}"
    return None


def waits_until(restarts: RestartsStatus, now: datetime) -> datetime | None:
    """Return when the next attempt may begin; None when it may now.

    A time further off than any wait was written by a clock that was wrong, and isn't waited for.
    """
    due = parse(restarts.next_attempt_time)
    if due is None or due <= now or due > now + timedelta(seconds=LONGEST_WAIT_S):
        return None
    return due


def _wait_s(kind: str, streak: int) -> float:
    exponent = streak - 1 if kind == "Fault" else streak - 2
    return 0.0 if exponent < 0 else min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(exponent, 16))
