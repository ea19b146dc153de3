"""How long a job may take to run, and how long it may run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from rljob_operator.planner.times import parse
from rlruntime.spec.policies import RunPolicy


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment at which the job fails."""

    at: datetime
    reason: str
    message: str


def deadline(policy: RunPolicy, *, activated: str, running: str | None) -> Deadline | None:
    """Return the deadline whose clock runs; None where there is none.

    Args:
        activated: when the present activation began; until its pods first run, the pre-running clock counts from here.
        running: when they first did; the active clock counts from here.
    """
    if running is not None:
        limit_s, since = policy.active_deadline_seconds, parse(running)
        reason, field, what = "DeadlineExceeded", "activeDeadlineSeconds", "the job has been active for"
    else:
        limit_s, since = policy.pre_running_deadline_seconds, parse(activated)
        reason, field, what = "PreRunningDeadlineExceeded", "preRunningDeadlineSeconds", "the job isn't running after"
    if limit_s is None or since is None:
        return None
    return Deadline(since + timedelta(seconds=limit_s), reason, f"{what} {field}: {limit_s} s")
