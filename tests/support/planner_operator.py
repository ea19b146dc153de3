"""An operator around the planner, for property tests: a cache that lags behind, writes that get lost, crashes.

It executes a plan as the real one does: the status first, guarded by its version, and nothing else where that fails;
then deletions with the pod's uid; then creations, where a name that is taken by our own object is as good as made. What
it wrote itself it knows at once; an object that it doesn't know to be made or not is looked for before the next pass.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field

from planner_world import OWNER, ConflictError, ExistsError, Job, Versioned, World
from rljob_operator.builders.owner import KubeObject
from rljob_operator.planner.decide import decide
from rljob_operator.planner.observed import CreateRefused, Observed
from rljob_operator.planner.plan import Plan

from rlruntime.spec.status import RLJobStatus


class CrashedError(Exception):
    """The operator's process ended."""


class LostError(Exception):
    """The API server's answer didn't come, whether it did what was asked or not."""


@dataclass
class Operator:
    """One operator at a time; a crash leaves an empty one that lists everything anew."""

    world: World
    random: random.Random
    trouble: float = 0.0
    """Chance of each request that something goes wrong about it."""
    remembers: bool = True
    """It knows the status that it wrote at once; else only when it is told."""
    refuses: bool = False
    """The quota is used up."""
    job: Job | None = None
    pods: dict[str, Versioned] = field(default_factory=dict)
    existing: set[str] = field(default_factory=set)
    templates_valid: bool | None = None
    refused: tuple[CreateRefused, ...] = ()
    unresolved: set[str] = field(default_factory=set)
    forced: set[str] = field(default_factory=set)
    """Uids of pods that were deleted by force."""
    failing: bool = False
    """Something goes wrong about the present request."""

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin with an empty memory, and a list of everything."""
        world = self.world
        world.crash()
        world.events.clear()
        self.job = world.job
        self.pods = {held.pod.uid: held for held in world.pods.values()}
        self.existing, self.unresolved, self.refused, self.templates_valid = set(), set(), (), None

    def deliver(self, key: str, *, twice: bool = False) -> None:
        """Take in the next event about an object; a repeated or an older one changes nothing."""
        queue = self.world.events[key]
        item = queue[0] if twice else queue.popleft()
        if not queue:
            del self.world.events[key]
        if isinstance(item, Versioned):
            self._take(item)
        elif item is None:
            self.job = None
        elif self.job is not None and item.version > self.job.version:
            self.job = item

    def deliver_all(self) -> None:
        """Take in every event."""
        while self.world.events:
            self.deliver(next(iter(self.world.events)))

    def step(self) -> Plan | None:
        """Do one pass; return its plan, or None where there was nothing to plan for."""
        try:
            return self._pass()
        except CrashedError:
            self.start()
            return None
        except LostError:
            return None

    def _pass(self) -> Plan | None:
        for name in sorted(self.unresolved):
            self._read()
            if name in self.world.pods:
                self._take(self.world.pods[name])
            self.unresolved.discard(name)
        if self.job is None:
            return None
        observed = self.observe(self.job)
        plan = decide(observed, now=self.world.now, image="i", nonce="abcde")
        self.world.planned = observed.spec
        if plan.dry_runs:
            self._read()
            self.templates_valid = True
            return plan
        if plan.write != "None" and not self._write(plan.status, plan):
            return plan
        self._execute(plan)
        return plan

    def observe(self, job: Job) -> Observed:
        """Return what the cache holds."""
        return Observed(
            owner=OWNER,
            spec=job.spec,
            status=job.status,
            generation=job.generation,
            deleting=job.deleting,
            pods=tuple(held.pod for held in self.pods.values()),
            existing=frozenset(self.existing),
            templates_valid=self.templates_valid,
            refused=self.refused,
        )

    def _write(self, status: RLJobStatus, plan: Plan) -> bool:
        if plan.write == "Lazy" and self.trouble and self.random.random() < 0.5:
            return True  # held back, and the rest of the plan done
        assert self.job is not None
        written, applied = self.job, self._request()
        if applied:
            try:
                written = self.world.write_status(status, self.job.version)
            except ConflictError:
                return False
        self._answer(applied)
        if self.remembers:
            self.job = written
        return True

    def _execute(self, plan: Plan) -> None:
        for deletion in plan.deletes:
            applied = self._request()
            if applied:
                with suppress(ConflictError):
                    self.world.delete(deletion.name, deletion.uid, deletion.grace_seconds)
                if deletion.grace_seconds == 0:
                    self.forced.add(deletion.uid)
            self._answer(applied)
        for item in plan.creates:
            self._create(item)
            if self.refused:
                break
        if plan.delete_job:
            self._read()
            self.world.delete_job()
            self.job = None

    def _create(self, item: KubeObject) -> None:
        name = item["metadata"]["name"]
        if item["kind"] == "Pod" and self.refuses:
            self.refused = (CreateRefused(name, "QuotaExceeded", "exceeded quota"),)
            return
        self.refused = ()
        if item["kind"] == "Pod":
            self.unresolved.add(name)
        applied = self._request()
        made: Versioned | None = None
        if applied:
            try:
                made = self.world.create(item)
            except ExistsError:
                made = self.world.pods.get(name)
        self._answer(applied)
        self.unresolved.discard(name)
        if item["kind"] != "Pod":
            self.existing.add(name)
        elif made is not None:
            self._take(made)

    def _take(self, held: Versioned) -> None:
        known = self.pods.get(held.pod.uid)
        if known is None or held.version > known.version:
            self.pods[held.pod.uid] = held

    def _request(self) -> bool:
        """Return whether the API server does what is asked next; it may be the last thing that this process does."""
        self.failing = self.random.random() < self.trouble
        if not self.failing:
            return True
        if self.random.random() < 0.3:
            raise CrashedError
        return self.random.random() < 0.5

    def _read(self) -> None:
        if not self._request():
            raise LostError
        self._answer(applied=True)

    def _answer(self, applied: bool) -> None:
        if self.failing:
            if applied and self.random.random() < 0.3:
                raise CrashedError
            raise LostError
