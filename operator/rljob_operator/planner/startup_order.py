"""The order in which pods are created: what others need comes first."""

from __future__ import annotations

from collections.abc import Iterable

from rljob_operator.planner.roster import Slot
from rlruntime.spec.roles import RoleType

TIER: dict[RoleType, int] = {"Inference": 0, "Service": 0, "Trainer": 1, "Collector": 2}
"""Pods of a tier are created once every place of the earlier ones has a pod that is ready, or has done its work."""


def open_tier(slots: Iterable[Slot], *, has_run: bool) -> int:
    """Return the last tier whose pods may be created.

    Args:
        has_run: the job was Running in this activation already: who restarts then finds the others, or waits for them.
    """
    if has_run:
        return max(TIER.values())
    return min((TIER[slot.of.type] for slot in slots if not slot.satisfied), default=max(TIER.values()))
