"""Whether all pods are ready, and what is waited for where they aren't."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from rljob_operator.planner.observed import ORDINARY_WAITS, CreateRefused, ObservedPod, Trouble
from rljob_operator.planner.roster import Slot
from rlruntime.errors import one_line

Hold = Literal["BackOff", "Terminating", "StartupOrder"]
"""Why a place that needs a pod isn't given one now."""

TROUBLES = (
    "QuotaExceeded", "Forbidden", "NameTaken", "Refused", "ContainerConfigInvalid", "ImagePullFailed",
    "VolumeUnavailable", "Unschedulable",
)  # fmt: skip
"""Reasons for which somebody may have to do something: each is worth an event."""

INSPECT_AFTER_S = 20.0
"""Seconds after which the Events of a pod are read that is still being created."""
_MOST_INSPECTED = 3
_MOST_NAMED = 5
_MOST_WORDS = 1024
_IMAGE = frozenset(
    {
        "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
        "RegistryUnavailable", "SignatureValidationFailed",
    }
)  # fmt: skip
_CONTAINER = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError", "CrashLoopBackOff"}
)


@dataclass(frozen=True, slots=True)
class Readiness:
    """What the condition `PodsReady` says."""

    ready: bool
    reason: str
    message: str = ""


def readiness(
    slots: list[Slot],
    holds: Mapping[int, Hold],
    *,
    refused: tuple[CreateRefused, ...],
    pod_events: Mapping[str, Trouble],
    until: str | None,
    last: str | None,
) -> Readiness:
    """Return whether all pods are ready, or the most telling reason why they aren't.

    Args:
        holds: which of ``slots``, by position, have to wait, and for what.
        until: when the back-off ends, if there is one.
        last: what the last restart was for.
    """
    pending = [(number, slot) for number, slot in enumerate(slots) if not slot.satisfied]
    if not pending:
        return Readiness(True, "AllReady")
    if refused:
        return Readiness(False, refused[0].reason, f"{refused[0].name}: {_words(refused[0].message)}")
    worst: tuple[int, str, str] | None = None
    for _number, slot in pending:
        trouble = _trouble(slot.pod, pod_events) if slot.pod is not None else None
        if trouble is not None:
            rank = TROUBLES.index(trouble.reason) if trouble.reason in TROUBLES else len(TROUBLES)
            if worst is None or rank < worst[0]:
                worst = rank, trouble.reason, f"{slot.name}: {_words(trouble.message)}"
    if worst is not None and worst[1] in TROUBLES:
        return Readiness(False, worst[1], worst[2])
    because = f"; {last}" if last else ""
    for hold, words in (("BackOff", f"a restart waits until {until}"), ("Terminating", "waiting for old pods to go")):
        held = [slots[number].name for number in holds if holds[number] == hold]
        if held:
            return Readiness(False, hold, _words(f"{words}: {_named(held)}{because}"))
    if going := [slot.name for _number, slot in pending if slot.pod is not None and slot.pod.deletion_at is not None]:
        return Readiness(False, "Terminating", f"being deleted: {_named(going)}")
    named = _named([slot.name for number, slot in pending if not holds.get(number)])
    if worst is not None:
        return Readiness(False, "Creating", f"{worst[2]}")
    later = [slots[number].name for number in holds if holds[number] == "StartupOrder"]
    if later:
        return Readiness(False, "StartupOrder", f"waiting for {named} to be ready; after that come {_named(later)}")
    return Readiness(False, "Creating", f"waiting for {named} to be ready")


def _trouble(pod: ObservedPod, events: Mapping[str, Trouble]) -> Trouble | None:
    if pod.unschedulable:
        return Trouble("Unschedulable", pod.unschedulable)
    if pod.waiting is not None and pod.waiting.reason not in ORDINARY_WAITS:
        words = f"{pod.waiting.reason}: {pod.waiting.message}" if pod.waiting.message else pod.waiting.reason
        if pod.waiting.reason in _IMAGE:
            return Trouble("ImagePullFailed", words)
        return Trouble("ContainerConfigInvalid" if pod.waiting.reason in _CONTAINER else "Creating", words)
    event = events.get(pod.name)
    if event is None or pod.started:
        return None
    words = f"{event.reason}: {event.message}" if event.message else event.reason
    if event.of_a_volume:
        return Trouble("VolumeUnavailable", words)
    return Trouble("Unschedulable" if event.reason == "FailedScheduling" else "Creating", words)


def to_inspect(slots: Iterable[Slot], now: datetime) -> tuple[tuple[str, ...], datetime | None]:
    """Return the pods whose Events may say why they aren't created yet, and when the next one is to be looked at."""
    names: list[str] = []
    next_at: datetime | None = None
    for slot in slots:
        pod = slot.pod
        if pod is None or pod.started or pod.ready or slot.end is not None or not pod.node or pod.created_at is None:
            continue
        if pod.deletion_at is not None or (pod.waiting is not None and pod.waiting.reason not in ORDINARY_WAITS):
            continue
        at = pod.created_at + timedelta(seconds=INSPECT_AFTER_S)
        if at <= now:
            names.append(pod.name)
        elif next_at is None or at < next_at:
            next_at = at
    return tuple(names[:_MOST_INSPECTED]), next_at


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _words(text: str) -> str:
    return one_line(text)[:_MOST_WORDS]
