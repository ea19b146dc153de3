"""Pods that don't go when they should: their node is lost, or doesn't answer."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from rljob_operator.planner.observed import ObservedPod

OVERDUE_S = 10.0
"""Seconds after the end of a pod's grace period from which its node is no longer waited for."""


def overdue(pods: Iterable[ObservedPod], now: datetime) -> tuple[list[ObservedPod], datetime | None]:
    """Return the pods to delete by force, and when the next one will be due, if any.

    One that was deleted by force already is held by a finalizer; force would not help it again.
    """
    due: list[ObservedPod] = []
    next_at: datetime | None = None
    for pod in pods:
        if pod.deletion_at is None or pod.gone or pod.deletion_grace_seconds == 0:
            continue
        at = pod.deletion_at + timedelta(seconds=OVERDUE_S)
        if at <= now:
            due.append(pod)
        elif next_at is None or at < next_at:
            next_at = at
    return due, next_at
