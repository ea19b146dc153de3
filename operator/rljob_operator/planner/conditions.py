"""Conditions: aspects of the job, the interface for programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from rljob_operator.builders.claims import claim_of
from rljob_operator.builders.owner import Owner
from rljob_operator.planner.times import stamp
from rlruntime.spec.policies import Storage
from rlruntime.spec.status import Condition

_MOST = 16
_MOST_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Said:
    """What is to be said of one aspect."""

    type: str
    holds: bool
    reason: str
    message: str = ""


def updated(
    before: tuple[Condition, ...], said: Iterable[Said], *, generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Return the conditions of the job; what isn't said any more is gone.

    The time of a condition moves only with its status. Where nothing changed the result is ``before`` itself.
    """
    known = {condition.type: condition for condition in before}
    found: list[Condition] = []
    for item in said:
        status, message, old = "True" if item.holds else "False", item.message[:_MOST_CHARS], known.get(item.type)
        if (
            old is not None
            and old.status == status
            and old.reason == item.reason
            and old.message == message
            and old.observed_generation == generation
        ):
            found.append(old)
            continue
        moved = old is None or old.status != status
        found.append(
            Condition(
                type=item.type,
                status=status,
                reason=item.reason,
                message=message,
                observed_generation=generation,
                last_transition_time=stamp(now) if moved or old is None else old.last_transition_time,
            )
        )
    result = tuple(found[:_MOST])
    same = len(result) == len(before) and all(new is old for new, old in zip(result, before, strict=True))
    return before if same else result


def find(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    """Return the condition of this type, if there is one."""
    for condition in conditions:
        if condition.type == kind:
            return condition
    return None


def durability(owner: Owner, storage: Storage | None) -> Said:
    """Return whether checkpoints outlive their pod."""
    claim = claim_of(owner, storage)
    if claim is None:
        message = "checkpoints go with their pod, and a restart begins anew; set spec.storage to keep them"
        return Said("CheckpointDurable", False, "NoStorage", message)
    return Said("CheckpointDurable", True, "Stored", f"checkpoints are kept in the claim {claim}")
