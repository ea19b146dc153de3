"""What is to be done for a job in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rljob_operator.builders.owner import KubeObject
from rlruntime.spec.status import RLJobStatus

Urgency = Literal["None", "Lazy", "Now"]


@dataclass(frozen=True, slots=True)
class DeletePod:
    """A pod to delete. It is deleted only if it still has this uid."""

    name: str
    uid: str
    grace_seconds: int | None = None
    """None: the pod's own grace period. 0: at once, without word from its node."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A Kubernetes Event about the job, for people."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class Plan:
    """What is to be done, in this order: the status, deletions, creations, events.

    Where the status has to be written and can't be, nothing of the rest is done.
    """

    status: RLJobStatus
    """The status that is wanted."""
    write: Urgency = "None"
    """Whether it differs from what the API server has. `Lazy`: only in counts and progress, which may wait a little so
    that several changes make one write, and on which nothing else of the plan rests."""
    dry_runs: tuple[KubeObject, ...] = ()
    """Pods, one of each role, that the API server is to judge before anything else is done. With these, the plan holds
    nothing else, and another pass follows once the answers are known."""
    deletes: tuple[DeletePod, ...] = ()
    creates: tuple[KubeObject, ...] = ()
    """Objects to create, in order of need: what pods mount comes first, pods last."""
    events: tuple[JobEvent, ...] = ()
    delete_job: bool = False
    """The job is finished and its time has come."""
    inspect_pods: tuple[str, ...] = ()
    """Pods that have been creating for long: their Kubernetes Events are to be listed, once and then with back-off."""
    requeue_after_s: float | None = None
    """Seconds after which the job is to be looked at again, though nothing has happened. None: not at all."""
