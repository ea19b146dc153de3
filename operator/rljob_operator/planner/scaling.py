"""How many pods of a role are wanted, and what becomes of those that aren't any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_operator.builders.children import desired_replicas as desired
from rljob_operator.planner.plan import DeletePod
from rlruntime.spec.status import RestartsStatus

if TYPE_CHECKING:
    from rljob_operator.planner.roster import Slot

__all__ = ["deletions", "desired", "retired"]


def retired(restarts: RestartsStatus, surplus: list[Slot]) -> RestartsStatus:
    """Return ``restarts`` with a new attempt for each place that is given up.

    Written before its pod is deleted, this tells a pod that was scaled away from one that was lost, and a pod that the
    place gets later from the one that still ends. It is charged to no budget.
    """
    left = {f"{slot.of.name}/{slot.index}": slot.attempt + 1 for slot in surplus if slot.pod or slot.lost or slot.seen}
    return restarts.model_copy(update={"slots": {**restarts.slots, **left}}) if left else restarts


def deletions(surplus: list[Slot]) -> list[DeletePod]:
    """Return what to delete of the places that aren't wanted: the highest index of a role first."""
    pods = [
        (-slot.role, slot.index, pod)
        for slot in surplus
        for pod in ((*slot.old, slot.pod) if slot.pod else slot.old)
        if pod.deletion_at is None
    ]
    pods.sort(key=lambda item: item[:2], reverse=True)
    return [DeletePod(pod.name, pod.uid) for _role, _index, pod in pods]
