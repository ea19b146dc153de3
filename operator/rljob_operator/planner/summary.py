"""Counts: how many pods each role wants and has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rljob_operator.builders.labels import job_selector
from rljob_operator.builders.owner import Owner
from rljob_operator.planner.observed import ObservedPod
from rljob_operator.planner.roster import Roster
from rljob_operator.planner.scaling import desired
from rljob_operator.planner.seen import format_ranges
from rlruntime.spec.contract import LABEL_ROLE
from rlruntime.spec.manifest import RLJobSpec
from rlruntime.spec.status import ElasticStatus, RoleStatus


def roles(
    spec: RLJobSpec, before: tuple[RoleStatus, ...], roster: Roster | None, faults: Mapping[str, int]
) -> tuple[RoleStatus, ...]:
    """Return the counts of each role.

    Args:
        roster: the places of the job; None where it has none: it is suspended, or finished.
        faults: faults of this pass, by role.
    """
    ready = [0] * len(spec.roles)
    seen: list[list[int]] = [[] for _ in spec.roles]
    done: list[list[int]] = [[] for _ in spec.roles]
    for slot in roster.slots if roster is not None else ():
        ready[slot.role] += slot.satisfied
        if slot.seen or slot.pod is not None:
            seen[slot.role].append(slot.index)
        if slot.end == "Done":
            done[slot.role].append(slot.index)
    known = {role.name: role for role in before}
    found = []
    for position, role in enumerate(spec.roles):
        old = known.get(role.name)
        failed = (old.failed if old else 0) + faults.get(role.name, 0)
        wanted, seen_text, done_text = (
            desired(spec, position),
            format_ranges(seen[position]),
            format_ranges(done[position]),
        )
        if (
            old is not None
            and old.desired == wanted
            and old.ready == ready[position]
            and old.failed == failed
            and old.seen == seen_text
            and old.done == done_text
        ):
            found.append(old)
        else:
            found.append(
                RoleStatus(
                    name=role.name,
                    desired=wanted,
                    ready=ready[position],
                    failed=failed,
                    seen=seen_text,
                    done=done_text,
                )
            )
    return tuple(found)


def ready_text(counts: tuple[RoleStatus, ...]) -> str:
    """Return how many of all pods are ready, such as ``6/7``."""
    return f"{sum(role.ready for role in counts)}/{sum(role.desired for role in counts)}"


def elastic(owner: Owner, spec: RLJobSpec, pods: Iterable[ObservedPod]) -> ElasticStatus | None:
    """Return what the scale subresource reads; None for a job without an elastic role."""
    if spec.elastic is None:
        return None
    name = spec.elastic.role
    existing = sum(
        pod.role == name and not pod.gone and pod.deletion_at is None and pod.phase not in ("Succeeded", "Failed")
        for pod in pods
    )
    selector = ",".join(f"{key}={value}" for key, value in {**job_selector(owner), LABEL_ROLE: name}.items())
    return ElasticStatus(replicas=existing, selector=selector)
