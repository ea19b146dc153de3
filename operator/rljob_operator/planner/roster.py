"""The places of a job: which pods are wanted, and which pod each place has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rljob_operator.planner.observed import ObservedPod
from rljob_operator.planner.outcomes import Outcome, outcome
from rljob_operator.planner.scaling import desired
from rljob_operator.planner.seen import parse_ranges
from rlruntime.spec.manifest import RLJobSpec
from rlruntime.spec.roles import Role
from rlruntime.spec.status import ActivationStatus, RestartsStatus, RoleStatus


@dataclass(slots=True)
class Slot:
    """One place of a job, wanted or, where it is in `Roster.surplus`, given up."""

    role: int
    """Position of its role in `spec.roles`."""
    of: Role
    index: int
    attempt: int
    """Attempt that its pod is to have; a pod of another is not its pod."""
    first: bool
    """This is the first attempt of the activation."""
    seen: bool = False
    """A pod of this attempt has been seen."""
    done: bool = False
    """A pod of this attempt has been seen to have done its work."""
    pod: ObservedPod | None = None
    """The pod of this attempt; its object exists."""
    lost: ObservedPod | None = None
    """The pod of this attempt, where its object is gone; what was last seen of it."""
    old: tuple[ObservedPod, ...] = ()
    """Pods of earlier attempts whose objects still exist."""
    end: Outcome | None = None
    """How the pod of this attempt ended; a place that had a pod and has none lost it, a disruption."""

    @property
    def name(self) -> str:
        """Return what people call it: ``trainer-0``."""
        return f"{self.of.name}-{self.index}"

    @property
    def satisfied(self) -> bool:
        """Return whether its pod is ready, or has done its work."""
        if self.end is not None:
            return self.end == "Done"
        return self.pod is not None and self.pod.ready and self.pod.deletion_at is None

    @property
    def missing(self) -> bool:
        """Return whether it needs a pod."""
        return self.pod is None and self.end is None

    def give_up(self, attempt: int) -> None:
        """Go on to ``attempt``: what there is of an earlier one is old now."""
        if self.pod is not None:
            self.old = (*self.old, self.pod)
        self.attempt, self.first, self.seen, self.done = attempt, False, False, False
        self.pod, self.lost, self.end = None, None, None


@dataclass(slots=True)
class Roster:
    """All places of a job in the present activation."""

    slots: list[Slot] = field(default_factory=list)
    """Those that are wanted, role by role, index by index."""
    surplus: list[Slot] = field(default_factory=list)
    """Those that aren't wanted any more, and have a pod or are remembered to have had one."""
    ahead: bool = False
    """A pod has an attempt that the status doesn't know yet: the status is old."""

    @property
    def trainers(self) -> list[Slot]:
        """Return the places of the Trainer role."""
        return [slot for slot in self.slots if slot.of.type == "Trainer"]


def roster(
    spec: RLJobSpec,
    pods: Iterable[ObservedPod],
    *,
    attempt: int,
    activation: ActivationStatus,
    restarts: RestartsStatus,
    roles: tuple[RoleStatus, ...],
) -> Roster:
    """Return the places of a job that is active.

    Args:
        attempt: the trainers' attempt.
        roles: as the status has them; what was seen and done is read of them.
    """
    found = Roster()
    by_slot: dict[tuple[str, int], list[ObservedPod]] = {}
    for pod in pods:
        by_slot.setdefault((pod.role, pod.index), []).append(pod)
    remembered = {role.name: (role.seen, role.done) for role in roles}
    for position, role in enumerate(spec.roles):
        trains = role.type == "Trainer"
        seen, done = (parse_ranges(text) for text in remembered.get(role.name, ("", "")))
        wanted = desired(spec, position)
        extra = {index for name, index in by_slot if name == role.name and index >= wanted}
        extra.update(index for index in seen if index >= wanted)
        first = activation.attempt if trains else activation.round
        for index in (*range(wanted), *sorted(extra)):
            now = attempt if trains else restarts.slots.get(f"{role.name}/{index}", first) if restarts.slots else first
            slot = Slot(position, role, index, now, now == first, index in seen, index in done)
            found.ahead |= _fill(slot, by_slot.get((role.name, index), ()))
            (found.slots if index < wanted else found.surplus).append(slot)
    return found


def _fill(slot: Slot, pods: Iterable[ObservedPod]) -> bool:
    """Put ``pods`` where they belong; return whether one has a later attempt than the slot."""
    ahead = False
    for pod in pods:
        if pod.attempt > slot.attempt:
            ahead = True
        elif pod.attempt == slot.attempt:
            if not pod.gone:
                slot.pod = pod
            elif slot.lost is None:
                slot.lost = pod
        elif not pod.gone:
            slot.old = (*slot.old, pod)
    known = slot.pod or slot.lost
    if slot.lost is not None and slot.pod is not None and not _done(slot.lost, slot):
        # Its name was taken anew before the loss was known: what was lost counts, and the pod goes.
        known = slot.lost
    if slot.done:
        slot.end = "Done"
    elif known is not None:
        slot.end = outcome(known, leads=slot.of.type == "Trainer" and slot.index == 0)
    elif slot.seen:
        slot.end = "Disruption"
    return ahead


def _done(pod: ObservedPod, slot: Slot) -> bool:
    return outcome(pod, leads=slot.of.type == "Trainer" and slot.index == 0) == "Done"
