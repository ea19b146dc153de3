"""The status and the actions of a pass, while the rules fill them in."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from rljob_operator.builders.owner import KubeObject
from rljob_operator.planner.observed import Observed
from rljob_operator.planner.plan import DeletePod, JobEvent, Plan, Urgency
from rlruntime.spec.status import Condition, RestartsStatus, RLJobStatus

_DURABLE = (
    "phase", "attempt", "round", "activation", "token_secret", "start_time", "running_time", "completion_time",
    "claim_name", "restarts",
)  # fmt: skip
"""What decisions rest on, or people wait for: a change of these is written at once."""
_COUNTS = (
    "observed_generation", "reason", "message", "ready", "pre_running_seconds", "conditions", "roles", "elastic",
    "progress", "checkpoint",
)  # fmt: skip
NO_RESTARTS = RestartsStatus()


@dataclass(slots=True)
class Draft:
    """A pass in the making. What it holds of the status are whole values, replaced where they change."""

    before: RLJobStatus
    now: datetime
    changed: dict[str, Any] = field(default_factory=dict)
    """Fields of the status that differ from ``before``."""
    deletes: list[DeletePod] = field(default_factory=list)
    creates: list[KubeObject] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    inspect_pods: tuple[str, ...] = ()
    wakes: list[datetime] = field(default_factory=list)
    """When the job is to be looked at again."""

    @classmethod
    def of(cls, observed: Observed, now: datetime) -> Draft:
        """Return the draft of a pass over ``observed``, with what the trainer last said of itself."""
        draft = cls(observed.status, now)
        draft.set("observed_generation", observed.generation)
        if observed.progress is not None:
            draft.set("progress", observed.progress)
        if observed.checkpoint is not None:
            draft.set("checkpoint", observed.checkpoint)
        return draft

    def get(self, name: str) -> Any:
        """Return a field of the status as it stands in the draft."""
        return self.changed[name] if name in self.changed else getattr(self.before, name)

    def set(self, name: str, value: Any) -> None:
        """Set a field of the status."""
        old = getattr(self.before, name)
        if value is old or value == old:
            self.changed.pop(name, None)
        else:
            self.changed[name] = value

    @property
    def restarts(self) -> RestartsStatus:
        """Return the restarts so far."""
        found: RestartsStatus | None = self.get("restarts")
        return NO_RESTARTS if found is None else found

    @restarts.setter
    def restarts(self, value: RestartsStatus) -> None:
        if value is not NO_RESTARTS:
            self.set("restarts", value)

    def wake(self, at: datetime | None) -> None:
        """Have the job looked at again at this time."""
        if at is not None:
            self.wakes.append(at)

    def wake_in(self, seconds: float) -> None:
        """Have the job looked at again after so many seconds."""
        self.wakes.append(self.now + timedelta(seconds=seconds))

    def event(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Have an Event written."""
        self.events.append(JobEvent(reason, message[:1024], warning))

    def plan(self) -> Plan:
        """Return what is to be done."""
        status, write = self.before, self._urgency()
        if write != "None":
            names = (*_DURABLE, *_COUNTS, "weights")
            status = RLJobStatus(**{name: self.get(name) for name in names})
        seconds = [(at - self.now).total_seconds() for at in self.wakes]
        return Plan(
            status=status,
            write=write,
            deletes=tuple(self.deletes),
            creates=tuple(self.creates),
            events=tuple(self.events),
            inspect_pods=self.inspect_pods,
            requeue_after_s=max(0.0, min(seconds)) if seconds else None,
        )

    def _urgency(self) -> Urgency:
        if not self.changed:
            return "None"
        if not self.changed.keys().isdisjoint(_DURABLE) or self.events:
            return "Now"
        conditions = self.changed.get("conditions")
        if conditions is not None and _states(conditions) != _states(self.before.conditions):
            return "Now"
        return "Lazy"


def _states(conditions: tuple[Condition, ...]) -> set[tuple[str, str]]:
    return {(condition.type, condition.status) for condition in conditions}
