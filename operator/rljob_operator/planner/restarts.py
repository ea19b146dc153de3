"""Which places restart, for what, and what must have happened before they get their next pod."""

from __future__ import annotations

from rljob_operator.planner.budget import Charge
from rljob_operator.planner.outcomes import of_infrastructure, reason_of, words_of
from rljob_operator.planner.plan import DeletePod
from rljob_operator.planner.roster import Roster, Slot
from rlruntime.spec.status import RestartsStatus


def failures(roster: Roster) -> list[Slot]:
    """Return the places to restart: those whose pod ended and wasn't done, and of the trainers only the telling one.

    Trainers restart together, at one charge. It is for what was done to them, where anything was, since the others fail
    when one goes; else for a fault; else for one that asks to be tried again, as trainers do that lost another.
    """
    ended = [slot for slot in roster.slots if slot.end in ("Fault", "Disruption")]
    if not ended:
        return []
    gang = sorted((slot for slot in ended if slot.of.type == "Trainer"), key=_weight)
    return [*gang[:1], *(slot for slot in ended if slot.of.type != "Trainer")]


def _weight(slot: Slot) -> int:
    pod = slot.lost or slot.pod
    if pod is None or of_infrastructure(pod):
        return 0
    return 1 if slot.end == "Fault" else 2


def charge_of(slot: Slot) -> Charge:
    """Return the charge for a place whose pod ended."""
    pod = slot.lost or slot.pod
    kind: str = slot.end or "Disruption"
    if pod is None:
        return Charge(
            "Disruption",
            slot.name,
            "PodLost",
            "its pod vanished, and nothing is known of its end",
            again=not slot.first,
        )
    return Charge(
        "Fault" if kind == "Fault" else "Disruption",
        slot.name,
        reason_of(pod),
        words_of(pod),
        uid=pod.uid,
        again=not slot.first,
    )


def restart(roster: Roster, slots: list[Slot], restarts: RestartsStatus, attempt: int) -> tuple[RestartsStatus, int]:
    """Give each of ``slots`` its next attempt in ``roster``; return what the status has to say of it.

    Returns:
        The attempts of places that restart alone, and that of the trainers.
    """
    alone = dict(restarts.slots)
    for slot in slots:
        if slot.of.type == "Trainer":
            attempt += 1
            for trainer in roster.trainers:
                trainer.give_up(attempt)
        else:
            slot.give_up(slot.attempt + 1)
            alone[f"{slot.of.name}/{slot.index}"] = slot.attempt
    return (restarts.model_copy(update={"slots": alone}) if alone != restarts.slots else restarts), attempt


def stale(roster: Roster) -> list[DeletePod]:
    """Return the pods of earlier attempts that nobody has deleted yet; those that ended are in the way as well."""
    return [DeletePod(pod.name, pod.uid) for slot in roster.slots for pod in slot.old if pod.deletion_at is None]


def blocked(roster: Roster) -> set[int]:
    """Return which of ``roster.slots``, by position, wait for a predecessor's object to go; trainers wait for all."""
    waiting = {number for number, slot in enumerate(roster.slots) if slot.old}
    if any(roster.slots[number].of.type == "Trainer" for number in waiting):
        waiting.update(number for number, slot in enumerate(roster.slots) if slot.of.type == "Trainer")
    return waiting
