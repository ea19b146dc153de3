"""A job as these commands read it: what its status says, whatever version of the operator wrote it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rlruntime.spec.manifest import MANAGED_BY

ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class JobView:
    """What is shown of a job. Text is fit for a terminal: whoever may write a status can't move its cursor."""

    namespace: str
    name: str
    uid: str = ""
    phase: str = ""
    """Empty while no operator has said anything."""
    reason: str = ""
    message: str = ""
    percent: int | None = None
    frames: int | None = None
    total_frames: int | None = None
    reward: float | None = None
    frames_per_second: float | None = None
    remaining_seconds: int | None = None
    restarts: int = 0
    created: datetime | None = None
    heard: datetime | None = None
    """When its trainer last said how far it is."""
    suspend: bool = False
    """What its spec says."""
    generation: int = 0
    observed_generation: int = 0
    checkpoint_frames: int | None = None
    durable: bool = True
    """Checkpoints outlive their pod."""
    ours: bool = True
    """The operator acts on it."""

    @classmethod
    def of(cls, item: dict[str, Any]) -> JobView:
        """Return what there is to say of an object of the API server."""
        about, spec, status = _mapping(item, "metadata"), _mapping(item, "spec"), _mapping(item, "status")
        progress, restarts = _mapping(status, "progress"), _mapping(status, "restarts")
        faults, disruptions = _whole(restarts, "faults") or 0, _whole(restarts, "disruptions") or 0
        durable = _condition(status, "CheckpointDurable")
        ended = _text(status, "phase") in ENDED
        return cls(
            namespace=_text(about, "namespace"),
            name=_text(about, "name"),
            uid=_text(about, "uid"),
            phase=_text(status, "phase"),
            reason=_text(status, "reason"),
            message=_text(status, "message"),
            percent=_whole(progress, "percent"),
            frames=_whole(progress, "frames"),
            total_frames=_whole(progress, "totalFrames"),
            reward=_real(progress, "reward"),
            frames_per_second=None if ended else _real(progress, "framesPerSecond"),
            remaining_seconds=None if ended else _whole(progress, "remainingSeconds"),
            restarts=faults + disruptions,
            created=_time(about, "creationTimestamp"),
            heard=_time(progress, "updateTime"),
            suspend=_mapping(spec, "runPolicy").get("suspend") is True,
            generation=_whole(about, "generation") or 0,
            observed_generation=_whole(status, "observedGeneration") or 0,
            checkpoint_frames=_whole(_mapping(status, "checkpoint"), "frames"),
            durable=durable is None or durable.get("status") != "False",
            ours=spec.get("managedBy", MANAGED_BY) == MANAGED_BY,
        )

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def ended(self) -> bool:
        """Whether it has finished, one way or the other."""
        return self.phase in ENDED

    def age_s(self, now: datetime) -> float | None:
        """Return the seconds since it was made."""
        return None if self.created is None else (now - self.created).total_seconds()

    def silent_s(self, now: datetime) -> float:
        """Return for how many seconds a trainer that should speak has said nothing; 0 where none should."""
        if self.phase != "Running" or self.heard is None:
            return 0.0
        return (now - self.heard).total_seconds()


SORT_KEYS = ("status", "name", "age", "phase", "progress", "reward", "frames", "fps", "restarts")
"""What jobs can be sorted by: names from A on, times from the newest on, numbers from the largest on."""
_PHASES = ("Failed", "Restarting", "Pending", "", "Suspending", "Running", "Suspended", "Succeeded")


def in_order(jobs: Iterable[JobView], key: str = "status", *, reverse: bool = False) -> list[JobView]:
    """Return ``jobs`` sorted by one of `SORT_KEYS`; equal ones by namespace and name.

    ``status``: those that run before those that wait, are suspended, have ended; the newest first of each.
    """
    found = sorted(jobs, key=lambda job: job.key)
    if key == "status":
        found.sort(key=lambda job: (_rank(job), -_moment(job.created)), reverse=reverse)
    elif key == "name":
        found.sort(key=lambda job: job.key, reverse=reverse)
    elif key == "phase":
        found.sort(key=lambda job: _PHASES.index(job.phase) if job.phase in _PHASES else len(_PHASES), reverse=reverse)
    else:
        found.sort(key=lambda job: _sortable(job, key, largest_first=not reverse))
    return found


def _rank(job: JobView) -> int:
    """A wall of jobs that wait hides none that runs."""
    if job.ended:
        return 3
    return {"Running": 0, "Restarting": 0, "Suspending": 0, "Suspended": 2}.get(job.phase, 1)


def _sortable(job: JobView, key: str, *, largest_first: bool) -> tuple[bool, float]:
    """What isn't known comes last, either way."""
    values = {
        "age": None if job.created is None else _moment(job.created),
        "progress": job.percent,
        "reward": job.reward,
        "frames": job.frames,
        "fps": job.frames_per_second,
        "restarts": job.restarts,
    }
    value = values[key]
    return (True, 0.0) if value is None else (False, -value if largest_first else value)


def _moment(time: datetime | None) -> float:
    return 0.0 if time is None else time.timestamp()


def clean(text: str) -> str:
    """Return ``text`` with a question mark for whatever doesn't print: a terminal would obey it."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _mapping(item: dict[str, Any], name: str) -> dict[str, Any]:
    value = item.get(name)
    return value if isinstance(value, dict) else {}


def _text(item: dict[str, Any], name: str) -> str:
    value = item.get(name)
    return clean(" ".join(value.split())) if isinstance(value, str) else ""


def _whole(item: dict[str, Any], name: str) -> int | None:
    value = item.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _real(item: dict[str, Any], name: str) -> float | None:
    value = item.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _time(item: dict[str, Any], name: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(_text(item, name))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _condition(status: dict[str, Any], kind: str) -> dict[str, Any] | None:
    conditions = status.get("conditions")
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, dict) and condition.get("type") == kind:
            return condition
    return None
