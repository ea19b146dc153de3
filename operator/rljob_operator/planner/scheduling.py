"""How pods ask to be placed, as far as this operator can."""

from __future__ import annotations

from rlruntime.spec.manifest import RLJobSpec


def unsupported(spec: RLJobSpec) -> tuple[str, str] | None:
    """Return reason and message where a job asks for a scheduling that it wouldn't get, else None.

    Going on without it would place pods one by one where all or none was asked for, and past the quota of a queue.
    """
    if spec.scheduling.gang != "None":
        asked, remedy = f"gang: {spec.scheduling.gang}", "set None"
    elif spec.scheduling.queue_name is not None:
        asked, remedy = f"queueName: {spec.scheduling.queue_name}", "leave it out"
    else:
        return None
    return (
        "SchedulingUnsupported",
        f"spec.scheduling.{asked}: this operator places pods one by one and fails the job; {remedy}",
    )
