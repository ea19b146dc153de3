"""A pod of a job as these commands read it, and which pods somebody means."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rlruntime.cli.cluster.jobs import clean
from rlruntime.spec.contract import LABEL_ATTEMPT, LABEL_INDEX, LABEL_JOB_UID, LABEL_ROLE, MAIN_CONTAINER, hostname

_ORDINARY_WAITS = ("", "ContainerCreating", "PodInitializing")


@dataclass(frozen=True)
class PodView:
    """What is read of a pod."""

    name: str
    uid: str
    role: str
    index: int
    attempt: int
    started: bool
    """The container has run, or runs."""
    ended: bool
    """The container has run to its end, or never will."""
    waits: str
    """Why it hasn't started, in Kubernetes' words; empty where it simply starts."""

    @classmethod
    def of(cls, item: dict[str, Any], container: str = MAIN_CONTAINER) -> PodView:
        """Return what there is to say of an object of the API server."""
        about, status = item.get("metadata") or {}, item.get("status") or {}
        labels = about.get("labels") or {}
        statuses = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
        state = next((found.get("state") or {} for found in statuses if found.get("name") == container), {})
        over = status.get("phase") in ("Succeeded", "Failed")
        return cls(
            name=str(about.get("name")),
            uid=str(about.get("uid")),
            role=str(labels.get(LABEL_ROLE)),
            index=_number(labels.get(LABEL_INDEX)),
            attempt=_number(labels.get(LABEL_ATTEMPT)),
            started="running" in state or "terminated" in state,
            ended="terminated" in state or over,
            waits="" if over else clean(_waits(status, state)),
        )

    @property
    def place(self) -> str:
        """What people call it, the same in every attempt: ``trainer-0``."""
        return hostname(self.role, self.index)


def containers_of(item: dict[str, Any]) -> list[str]:
    """Return the names of a pod's containers, those that start it included."""
    spec = item.get("spec") or {}
    found = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    return [str(container.get("name")) for container in found]


def _waits(status: dict[str, Any], state: dict[str, Any]) -> str:
    waiting = state.get("waiting") or {}
    if waiting.get("reason", "") not in _ORDINARY_WAITS:
        return ": ".join(str(waiting[part]) for part in ("reason", "message") if waiting.get(part))
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return ": ".join(str(condition[part]) for part in ("reason", "message") if condition.get(part))
    return ""


def _number(text: Any) -> int:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdecimal() else 0


@dataclass(frozen=True)
class Choice:
    """Which pods of a job somebody means."""

    role: str | None = None
    index: int | None = None
    attempt: int | None = None
    """None: the newest there is of each place."""

    def selector(self, uid: str) -> dict[str, str]:
        """Return the parameters of a list or a watch of these pods."""
        labels = {LABEL_JOB_UID: uid}
        if self.role is not None:
            labels[LABEL_ROLE] = self.role
        if self.index is not None:
            labels[LABEL_INDEX] = str(self.index)
        if self.attempt is not None:
            labels[LABEL_ATTEMPT] = str(self.attempt)
        return {"labelSelector": ",".join(f"{name}={value}" for name, value in labels.items())}

    def has(self, role: str, index: int) -> bool:
        """Return whether a place is meant."""
        return self.role in (None, role) and self.index in (None, index)


def newest(pods: Iterable[PodView]) -> list[PodView]:
    """Return the pod with the highest attempt of each place, in the order of places."""
    found: dict[tuple[str, int], PodView] = {}
    for pod in pods:
        known = found.get((pod.role, pod.index))
        if known is None or pod.attempt > known.attempt:
            found[pod.role, pod.index] = pod
    return [found[place] for place in sorted(found)]
