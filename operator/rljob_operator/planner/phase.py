"""The phase: a summary for people, found anew in every pass."""

from __future__ import annotations


def phase(*, ready: bool, restarting: bool, before: str | None) -> str:
    """Return the phase of a job that is active.

    Args:
        ready: all pods are ready, or have done their work.
        restarting: a place waits for its next pod: for the end of a back-off, or for an old pod to go.
        before: the phase so far. A job that runs keeps running while a pod is added, or is not ready for a while.
    """
    if ready:
        return "Running"
    if restarting:
        return "Restarting"
    return before if before in ("Running", "Restarting") else "Pending"
