"""A small API server with nodes, in memory: what the planner's plans are executed against in property tests.

It keeps one job and its pods, with uids, resource versions and graceful deletion, and remembers what happened to pods
while they were their job's current ones. It checks what may never be seen in it, whoever writes.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from rljob_operator.builders.owner import KubeObject, Owner
from rljob_operator.planner.observed import ContainerEnd, ObservedPod
from rljob_operator.planner.outcomes import CLOCKS_APART
from rljob_operator.planner.scaling import desired
from rljob_operator.planner.seen import parse_ranges
from rljob_operator.planner.times import parse

from rlruntime.spec.contract import LABEL_ATTEMPT, LABEL_INDEX, LABEL_ROLE
from rlruntime.spec.manifest import RLJobSpec
from rlruntime.spec.status import RLJobStatus

OWNER = Owner(name="ppo", namespace="n", uid="1b4e28ba-2fa1-4a6b-8c3d-0123456789ab")
START = datetime(2026, 1, 1, tzinfo=UTC)
TERMINAL = ("Succeeded", "Failed")


class ConflictError(Exception):
    """A write whose precondition doesn't hold."""


class ExistsError(Exception):
    """A name that is taken."""


class Job(NamedTuple):
    """The job object."""

    version: int
    generation: int
    spec: RLJobSpec
    status: RLJobStatus
    deleting: bool = False


class Versioned(NamedTuple):
    """A pod object."""

    version: int
    pod: ObservedPod


@dataclass
class Incident:
    """A pod that ended badly, or vanished, while it was its place's current one and the job was active."""

    key: tuple[str, int, int]
    """Role, index, attempt; the trainers share index -1."""
    kinds: set[str]
    """What it may be charged as."""
    uid: str
    required: bool
    """It has to be charged; not where the job was to be suspended just then, or the place given up."""
    known: bool = True
    """Something can still tell the operator of it."""


@dataclass
class World:
    """The API server and its nodes."""

    spec: RLJobSpec
    now: datetime = START
    job: Job | None = None
    pods: dict[str, Versioned] = field(default_factory=dict)
    children: set[str] = field(default_factory=set)
    lost_nodes: set[str] = field(default_factory=set)
    events: dict[str, deque[Any]] = field(default_factory=dict)
    """What watchers haven't been sent yet, by object, in order."""
    incidents: list[Incident] = field(default_factory=list)
    charged: set[str] = field(default_factory=set)
    highest: Counter[str] = field(default_factory=Counter)
    """Highest attempt of each place, and of the round, that was ever written."""
    created: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Highest attempt of each place for which a pod was ever made."""
    version: int = 0
    uids: int = 0
    planned: RLJobSpec | None = None
    """The spec that the operator has planned for; an older one, where its cache is stale."""
    done: set[int] = field(default_factory=set)
    """Attempts whose first trainer has done its work."""
    permanent: bool = False
    """A pod ended with the code for a configuration that can't work."""

    def __post_init__(self) -> None:
        self.job = Job(self._next(), 1, self.spec, RLJobStatus())
        self._send("job", self.job)

    # What clients do.

    def write_status(self, status: RLJobStatus, version: int) -> Job:
        """Replace the job's status, where it still has this version."""
        if self.job is None or self.job.version != version:
            raise ConflictError
        # As it comes back: through JSON, without what is unset.
        status = RLJobStatus.model_validate_json(
            status.model_dump_json(by_alias=True, exclude_none=True), by_alias=True
        )
        self._check_status(self.job.status, status)
        self.job = self.job._replace(version=self._next(), status=status)
        self._send("job", self.job)
        return self.job

    def change_spec(self, spec: RLJobSpec) -> None:
        """Do what ``kubectl edit`` does."""
        if self.job is not None and spec != self.job.spec:
            self.job = self.job._replace(version=self._next(), spec=spec, generation=self.job.generation + 1)
            self._send("job", self.job)

    def delete_job(self) -> None:
        """Delete the job, and its pods with it, as the garbage collector does."""
        self.job = None
        self._send("job", None)
        for name in list(self.pods):
            self.remove(name)

    def create(self, item: KubeObject) -> Versioned | None:
        """Create an object; return it where it is a pod."""
        name = item["metadata"]["name"]
        if self.job is None:
            return None  # the garbage collector takes what belongs to nobody
        if item["kind"] != "Pod":
            if name in self.children:
                raise ExistsError
            self.children.add(name)
            return None
        if name in self.pods:
            raise ExistsError
        labels = item["metadata"]["labels"]
        self.uids += 1
        pod = ObservedPod(
            name=name,
            uid=f"u{self.uids}",
            role=labels[LABEL_ROLE],
            index=int(labels[LABEL_INDEX]),
            attempt=int(labels[LABEL_ATTEMPT]),
            created_at=self.now,
        )
        self._check_creation(pod)
        return self._store(pod)

    def delete(self, name: str, uid: str, grace_seconds: int | None = None) -> None:
        """Begin to delete a pod: at once where nothing runs, or by force; else its node ends it in its own time."""
        held = self.pods.get(name)
        if held is None or held.pod.uid != uid:
            raise ConflictError
        pod = held.pod
        if grace_seconds == 0 or not pod.node or pod.phase in TERMINAL:
            self.remove(name, deleted=True)
        elif pod.deletion_at is None:
            grace = 30 if grace_seconds is None else grace_seconds
            self._store(replace(pod, deletion_at=self.now + timedelta(seconds=grace), deletion_grace_seconds=grace))

    # What nodes do.

    def update(self, name: str, **fields: Any) -> None:
        """Change a pod as its node does."""
        self._store(replace(self.pods[name].pod, **fields))

    def end(self, name: str, code: int, reason: str = "Error", **fields: Any) -> None:
        """End the main container of a pod."""
        pod = self.pods[name].pod
        phase = "Succeeded" if code == 0 else "Failed"
        done = ContainerEnd(code, reason, finished_at=self.now)
        after = replace(pod, phase=phase, ready=False, started=True, end=done, waiting=None, **fields)
        self._note(pod, _kinds(after))
        self.permanent |= code == 78
        if code == 0 and pod.slot == (self.trainer, 0):
            self.done.add(pod.attempt)
        self._store(after)

    def fail(self, name: str, kind: str, **fields: Any) -> None:
        """End a pod whose main container didn't run."""
        pod = self.pods[name].pod
        self._note(pod, {kind if pod.deletion_at is None else "Disruption"})
        self._store(replace(pod, phase="Failed", ready=False, **fields))

    def remove(self, name: str, *, deleted: bool = False) -> None:
        """Take a pod's object away."""
        pod = self.pods.pop(name).pod
        if pod.phase not in TERMINAL:
            self._note(pod, {"Disruption"})
        elif all(incident.uid != pod.uid for incident in self.incidents):
            self._note(pod, {"Disruption"}, required=False)  # nobody may have seen that its work was done
        elif deleted and pod.deletion_at is None:
            self._widen(pod)
            pod = replace(pod, deletion_at=self.now, deletion_grace_seconds=0)
        self._send(pod.uid, Versioned(self._next(), replace(pod, gone=True)))

    def crash(self) -> None:
        """Forget what only a watcher's memory could tell of: a pod without object that no status has seen."""
        seen = self._seen()
        for incident in self.incidents:
            if all(held.pod.uid != incident.uid for held in self.pods.values()):
                role, _, attempt = incident.key
                incident.kinds.add("Disruption")
                incident.known = (incident.uid in seen) and attempt == self.attempt_of(role, incident.key[1])

    # What is known of the job.

    def attempt_of(self, role: str, index: int) -> int | None:
        """Return the attempt that the stored status gives a place; None while the job isn't active."""
        if self.job is None or self.job.status.activation is None:
            return None
        status = self.job.status
        if role == self.trainer:
            return status.attempt
        slots = status.restarts.slots if status.restarts else {}
        return slots.get(f"{role}/{index}", status.activation.round if status.activation else 0)

    @property
    def trainer(self) -> str:
        """Return the name of the Trainer role."""
        return next(role.name for role in self.spec.roles if role.type == "Trainer")

    @property
    def finished(self) -> bool:
        """Return whether the stored status is terminal."""
        return self.job is not None and self.job.status.phase in TERMINAL

    def wanted(self, role: str) -> int:
        """Return how many pods the spec wants of a role."""
        spec = self.job.spec if self.job else self.spec
        return desired(spec, next(number for number, item in enumerate(spec.roles) if item.name == role))

    # Bookkeeping.

    def _next(self) -> int:
        self.version += 1
        return self.version

    def _send(self, key: str, item: Any) -> None:
        self.events.setdefault(key, deque()).append(item)

    def _store(self, pod: ObservedPod) -> Versioned:
        held = Versioned(self._next(), pod)
        self.pods[pod.name] = held
        self._send(pod.uid, held)
        return held

    def _note(self, pod: ObservedPod, kinds: set[str], *, required: bool = True) -> None:
        """Remember an end that has to be charged: of a current pod of a job that is active."""
        if not kinds or self.job is None or self.attempt_of(pod.role, pod.index) != pod.attempt:
            return
        required = required and not self.job.spec.run_policy.suspend and pod.index < self.wanted(pod.role)
        index = -1 if pod.role == self.trainer else pod.index
        self.incidents.append(Incident((pod.role, index, pod.attempt), kinds, pod.uid, required))

    def _widen(self, pod: ObservedPod) -> None:
        """An end and a deletion soon after can't be told apart, nor where no container says when it ended."""
        for incident in self.incidents:
            if incident.uid == pod.uid and (pod.end is None or self._just_ended(pod.end)):
                incident.kinds |= {"Disruption"}

    def _just_ended(self, end: ContainerEnd) -> bool:
        return end.finished_at is None or self.now - end.finished_at <= CLOCKS_APART

    def _seen(self) -> set[str]:
        """Return the uids of incidents whose place the stored status says was seen."""
        if self.job is None:
            return set()
        seen = {role.name: parse_ranges(role.seen) for role in self.job.status.roles}
        return {
            item.uid
            for item in self.incidents
            if (seen.get(item.key[0]) if item.key[1] == -1 else item.key[1] in seen.get(item.key[0], ()))
        }

    def _check_creation(self, pod: ObservedPod) -> None:
        slot = [held.pod.name for held in self.pods.values() if held.pod.slot == pod.slot]
        assert not slot, f"{pod.name} is created while {slot} are there"
        if pod.role == self.trainer:
            others = [h.pod.name for h in self.pods.values() if h.pod.role == pod.role and h.pod.attempt != pod.attempt]
            assert not others, f"{pod.name} is created while {others} of another attempt are there"
        assert not self.finished, f"{pod.name} is created for a job that has finished"
        assert pod.attempt >= self.created[pod.slot], f"{pod.name} is created after {self.created[pod.slot]}"
        self.created[pod.slot] = pod.attempt
        written = self.attempt_of(pod.role, pod.index)
        assert pod.attempt == written, f"{pod.name} is created, and the status says {written}"
        assert not self._early(pod), f"{pod.name} is created before its wait is over"

    def _early(self, pod: ObservedPod) -> bool:
        """Return whether a restarted pod comes before the time that the status gives."""
        if self.job is None or (begun := self.job.status.activation) is None or self.job.status.restarts is None:
            return False
        first = begun.attempt if pod.role == self.trainer else begun.round
        due = parse(self.job.status.restarts.next_attempt_time)
        return pod.attempt > first and due is not None and self.now < due

    def _check_status(self, old: RLJobStatus, new: RLJobStatus) -> None:
        assert old.phase not in TERMINAL, f"the status of a job that has {old.phase} is written"
        before, after = old.restarts, new.restarts
        faults = (after.faults if after else 0) - (before.faults if before else 0)
        disruptions = (after.disruptions if after else 0) - (before.disruptions if before else 0)
        assert min(faults, disruptions) >= 0, "a budget grew back"
        uids = set(after.charged_pods if after else ()) - set(before.charged_pods if before else ())
        assert not uids & self.charged, f"charged twice: {uids & self.charged}"
        self.charged |= uids
        assert new.phase != "Succeeded" or new.attempt in self.done, "succeeds, and its trainer isn't done"
        if any(item.type == "Suspended" and item.status == "True" for item in new.conditions):
            assert not self.pods, f"called suspended with {list(self.pods)}"
        self._check_attempts(old, new, faults, disruptions)

    def _check_attempts(self, old: RLJobStatus, new: RLJobStatus, faults: int, disruptions: int) -> None:
        """No attempt falls; and but for resumption and scaling, each that rises is charged once, for what happened."""
        for place, attempt in _attempts(new).items():
            assert attempt >= self.highest[place], f"{place} falls from {self.highest[place]} to {attempt}"
            self.highest[place] = attempt
        if old.activation is None or new.activation is None:
            assert faults + disruptions == 0 or new.activation is not None, "charged while suspended"
            if new.activation is not None and old.attempt is not None:
                assert new.attempt == old.attempt + 1, "a resumed job begins no new attempt"
                assert new.activation.round > max(self.created.values(), default=-1), "an old name is used again"
            return
        risen: list[tuple[str, int, int]] = []
        if new.attempt != old.attempt:
            risen.append((self.trainer, -1, old.attempt or 0))
        had = old.restarts.slots if old.restarts else {}
        done = {role.name: parse_ranges(role.done) for role in old.roles}
        for place, attempt in (new.restarts.slots if new.restarts else {}).items():
            role, index = place.split("/")
            was = had.get(place, old.activation.round)
            if attempt != was and int(index) < self.planned_for(role):
                risen.append((role, int(index), was))
                assert int(index) not in done.get(role, ()), f"{place} restarts, and its work was done"
        if new.phase in TERMINAL:
            assert faults + disruptions <= len({item.key for item in self.incidents}), "charged for nothing"
            return
        assert faults + disruptions == len(risen), f"{faults}+{disruptions} charges for {risen}"
        assert (new.round or 0) == (old.round or 0) + len(risen), "a restart begins no round of its own"
        kinds = []
        for key in risen:
            found: set[str] = set().union(*(item.kinds for item in self.incidents if item.key == key))
            assert found, f"{key} restarts for nothing"
            kinds.append(found)
        if all(len(found) == 1 for found in kinds):
            assert faults == sum("Fault" in found for found in kinds), f"{risen}: {kinds} charged as {faults} faults"

    def planned_for(self, role: str) -> int:
        """Return how many pods the operator believes to be wanted."""
        spec = self.planned or self.spec
        return desired(spec, next(number for number, item in enumerate(spec.roles) if item.name == role))


def _attempts(status: RLJobStatus) -> dict[str, int]:
    found = {"attempt": status.attempt or 0, "round": status.round or 0}
    if status.restarts is not None:
        found.update(status.restarts.slots)
    return found


def _kinds(pod: ObservedPod) -> set[str]:
    """Say what the end of a pod may be charged as, from what happened to it; nothing for work that is done."""
    assert pod.end is not None
    taken = pod.deletion_at is not None or pod.disruption
    if pod.end.exit_code == 0:
        return {"Disruption"} if taken and pod.index + (pod.role != "trainer") else set()
    if pod.end.exit_code == 78:
        return set()
    return {"Disruption"} if taken or pod.end.exit_code == 75 else {"Fault"}
