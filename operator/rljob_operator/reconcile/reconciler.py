"""One pass over one job: what is known of it, what is to be done, and the doing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Protocol

from rljob_operator.kube.client import KubeClient
from rljob_operator.kube.errors import NotFound
from rljob_operator.kube.resources import RLJOBS
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.planner.observed import Observed, ObservedPod
from rljob_operator.planner.plan import Plan
from rljob_operator.reconcile.cache import Cache
from rljob_operator.reconcile.events import EventWriter
from rljob_operator.reconcile.execute import Executor, NamespaceGoing
from rljob_operator.reconcile.inspect import PodInspector
from rljob_operator.reconcile.memory import JobMemory, Memories
from rljob_operator.reconcile.progress import is_storable
from rljob_operator.reconcile.status import status_changes
from rljob_operator.reconcile.views import JobView, time_of, time_text
from rljob_operator.settings import Timing
from rlruntime.spec.contract import TerminationMessage
from rlruntime.spec.status import CheckpointStatus, ProgressStatus, RLJobStatus

logger = logging.getLogger(__name__)

_ROUNDS = 3
"""Plans in one pass: one asks for a dry run, the next acts on its answer."""
_AFTER_CONFLICT_S = 0.2
_TERMINAL = frozenset({"Succeeded", "Failed"})


class Decide(Protocol):
    """The planner."""

    def __call__(self, observed: Observed, *, now: datetime, image: str, nonce: str) -> Plan:
        """Return what is to be done."""


class Reconciler:
    """Passes over jobs. `work` is what the queue calls.

    Args:
        now: the present time, aware, in UTC.
        nonce: returns a new random text for a Secret's name.
        image: image of a role for which the manifest names none.
        dry_run: plans are logged, and nothing is written.
    """

    def __init__(
        self,
        decide: Decide,
        client: KubeClient,
        cache: Cache,
        memories: Memories,
        executor: Executor,
        events: EventWriter,
        inspector: PodInspector,
        *,
        timing: Timing,
        now: Callable[[], datetime],
        nonce: Callable[[], str],
        image: str,
        dry_run: bool = False,
    ) -> None:
        self._decide, self._client, self._cache, self._memories = decide, client, cache, memories
        self._executor, self._events, self._inspector = executor, events, inspector
        self._timing, self._now, self._nonce, self._image, self._dry_run = timing, now, nonce, image, dry_run

    async def work(self, uid: str) -> float | None:
        """Make one pass over a job.

        Returns:
            Seconds after which it wants to be looked at again; None where only an event can change anything.

        Raises:
            KubeError: the API server couldn't do something; the next pass begins anew.
        """
        job = self._cache.job(uid)
        if job is None:
            self._memories.forget(uid)
            return None
        if job.status_problem:
            raise ValueError(f"the status of {job.owner.namespace}/{job.owner.name} can't be read")
        memory = self._memories.of(uid)
        try:
            await self._executor.resolve(job, memory)
            return await self._pass(job, memory)
        except NamespaceGoing:
            logger.info("the namespace is being deleted", extra=about(job))
            return None

    async def _pass(self, job: JobView, memory: JobMemory) -> float | None:
        for _ in range(_ROUNDS):
            observed = self.observe(job, memory)
            plan = self._decide(observed, now=self._now(), image=self._image, nonce=self._nonce())
            if self._dry_run and plan.dry_runs:
                memory.verdict_generation = job.generation  # nothing is asked of the server, not even to judge
                continue
            if self._dry_run:
                self._log_plan(job, plan, memory)
                return plan.requeue_after_s
            if not plan.dry_runs:
                return await self._carry_out(job, memory, observed, plan)
            await self._executor.judge(job, memory, plan.dry_runs)
        raise RuntimeError("the planner asked for the same dry run again")

    def observe(self, job: JobView, memory: JobMemory) -> Observed:
        """Return all that is known of a job."""
        pods = self._cache.pods(job.owner.uid)
        judged = memory.verdict_generation == job.generation
        progress, checkpoint = last_words(job, pods) or _answers(memory, pods)
        return Observed(
            owner=job.owner,
            spec=job.spec,
            status=job.status,
            generation=job.generation,
            spec_problem=job.spec_problem,
            managed_by=job.managed_by,
            deleting=job.deleting,
            pods=pods,
            existing=frozenset(memory.existing),
            templates_valid=not memory.template_problem if judged else None,
            template_problem=memory.template_problem if judged else "",
            refused=tuple(memory.refused.values()),
            pod_events=dict(memory.pod_events),
            progress=progress,
            checkpoint=checkpoint,
        )

    async def _carry_out(self, job: JobView, memory: JobMemory, observed: Observed, plan: Plan) -> float | None:
        """Do what the plan says, in its order."""
        waits: list[float | None] = [plan.requeue_after_s]
        written = await self._executor.write_status(job, plan, memory)
        if not written.holds:
            await self._read_again(job)
            return _AFTER_CONFLICT_S
        waits.append(written.wait_s)
        for event in plan.events:  # they tell of the status; a write that fails below would lose them
            self._events.emit(job.owner, event)
        await self._executor.delete_pods(job, plan.deletes)
        waits.append(await self._executor.create(job, memory, plan.creates))
        if plan.creates or plan.deletes:
            # What was created is to be counted, and what was deleted to be waited for, though no event may come.
            waits.append(self._timing.counts_hold_s)
        if plan.delete_job and not await self._executor.delete_job(job):
            await self._read_again(job)
            return _AFTER_CONFLICT_S
        self._forget(job, memory, observed, plan)
        self._inspector.inspect(job, plan.inspect_pods)
        return soonest(waits)

    async def _read_again(self, job: JobView) -> None:
        """A write was refused since the job has changed; the watch may be late, or may have missed it.

        Another job of its name is left to the watch, which puts it into the queue: what the cache knows already is no
        news any more.
        """
        try:
            found = await self._client.get(RLJOBS, job.owner.namespace, job.owner.name)
        except NotFound:
            self._cache.remove_job(job.owner.uid)
            return
        if found["metadata"]["uid"] == job.owner.uid:
            self._cache.apply_job(found)
        else:
            self._cache.remove_job(job.owner.uid)

    def _forget(self, job: JobView, memory: JobMemory, observed: Observed, plan: Plan) -> None:
        """Drop what the plan has accounted for."""
        self._cache.forget_gone(job.owner.uid, lambda pod: is_past(observed, plan.status, pod))
        getting_on = [pod for pod in observed.pods if pod.gone or pod.started]
        self._inspector.forget(getting_on)
        for pod in getting_on:
            memory.pod_events.pop(pod.name, None)

    def _log_plan(self, job: JobView, plan: Plan, memory: JobMemory) -> None:
        """Write a plan to the log, unless it is the one that was written last."""
        text = json.dumps(plan_document(job, plan), sort_keys=True)
        if text != memory.logged_plan:
            memory.logged_plan = text
            logger.info("%s", text, extra=about(job))


Said = tuple[ProgressStatus | None, CheckpointStatus | None]
"""How far training is, and the newest checkpoint."""


def last_words(job: JobView, pods: Iterable[ObservedPod]) -> Said | None:
    """Return what trainer 0 of the current attempt said of its progress when it ended; None where it didn't."""
    if job.spec is None:
        return None
    role = next(role.name for role in job.spec.roles if role.type == "Trainer")
    for pod in pods:
        if pod.slot != (role, 0) or pod.attempt != (job.status.attempt or 0) or pod.end is None:
            continue
        message = TerminationMessage.from_text(pod.end.message)
        report = message.report if message is not None else None
        if report is None or not is_storable(report):
            continue
        if report.uid == job.owner.uid and report.attempt <= pod.attempt:
            time = pod.end.finished_at or pod.created_at
            return report.to_progress(time_text(time) if time is not None else ""), report.checkpoint
    return None


def _answers(memory: JobMemory, pods: Iterable[ObservedPod]) -> Said:
    """Return what the trainer said when it was last asked, if its pod is still there."""
    if any(pod.uid == memory.progress_of for pod in pods):
        return memory.progress, memory.checkpoint
    return None, None


def is_past(observed: Observed, status: RLJobStatus, pod: ObservedPod) -> bool:
    """Return whether a pod that is gone is accounted for in ``status``: its place has a later attempt, or is none."""
    if observed.spec is None or status.phase in _TERMINAL or status.phase == "Suspended":
        return True
    role = next((role for role in observed.spec.roles if role.name == pod.role), None)
    if role is None:
        return True
    if role.type == "Trainer":
        return (status.attempt or 0) > pod.attempt
    first = status.activation.round if status.activation is not None else 0
    slots = status.restarts.slots if status.restarts is not None else {}
    return slots.get(f"{pod.role}/{pod.index}", first) > pod.attempt


def plan_document(job: JobView, plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON values: what would change in the status, and which objects it names."""
    return {
        "job": f"{job.owner.namespace}/{job.owner.name}",
        "uid": job.owner.uid,
        "status": status_changes(job.status, plan.status),
        "write": plan.write,
        "deletes": [item.name for item in plan.deletes],
        "creates": [f"{item['kind']}/{item['metadata']['name']}" for item in plan.creates],
        "events": [f"{event.reason}: {event.message}" for event in plan.events],
        "deleteJob": plan.delete_job,
    }


def soonest(waits: Iterable[float | None]) -> float | None:
    """Return the shortest of the waits that there are."""
    return min((wait_s for wait_s in waits if wait_s is not None), default=None)


def tell_status(metrics: OperatorMetrics, job: JobView, status: RLJobStatus) -> None:
    """Log and count what a status that was just written tells of: a job that runs, a restart that was charged."""
    old = job.status
    if status.phase != old.phase:
        extra = {**about(job), "attempt": status.attempt or 0}
        logger.info("%s%s", status.phase, f" ({status.reason})" if status.reason else "", extra=extra)
        if status.phase in _TERMINAL:
            metrics.count_end(status.phase, status.reason or "")
    if old.running_time is None and status.running_time is not None:
        began, running = time_of(status.start_time), time_of(status.running_time)
        if began is not None and running is not None:
            metrics.time_to_running.observe(max(0.0, (running - began).total_seconds()))
    if status.restarts is None:
        return
    faults, disruptions = (old.restarts.faults, old.restarts.disruptions) if old.restarts is not None else (0, 0)
    scope = "Gang" if (status.attempt or 0) > (old.attempt or 0) else "Pod"
    reason = status.restarts.last_reason or "Unknown"
    for budget, count in (
        ("Faults", status.restarts.faults - faults),
        ("Disruptions", status.restarts.disruptions - disruptions),
    ):
        if count > 0:
            metrics.count_restarts(scope, budget, reason, count)


def about(job: JobView) -> dict[str, Any]:
    """Return what the log says of a job."""
    return {
        "job": job.owner.name,
        "namespace": job.owner.namespace,
        "uid": job.owner.uid,
        "attempt": job.status.attempt or 0,
    }
