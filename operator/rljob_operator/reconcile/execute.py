"""The writes of a plan: status, deletions, creations, events, in this order.

What is decided stands in the status before anything rests on it: whoever dies between two writes is followed by one who
reads what was meant. A write that finds the job changed ends the pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from rljob_operator.builders.owner import KubeObject
from rljob_operator.builders.secret import draw_token
from rljob_operator.kube.client import KubeClient
from rljob_operator.kube.errors import AlreadyExists, Conflict, Forbidden, Invalid, KubeError, NotFound, ServerError
from rljob_operator.kube.resources import PODS, RLJOBS, resource_of
from rljob_operator.planner.observed import CreateRefused
from rljob_operator.planner.plan import DeletePod, Plan
from rljob_operator.reconcile.cache import Cache
from rljob_operator.reconcile.memory import JobMemory
from rljob_operator.reconcile.status import is_talk_alone, status_changes, status_patch
from rljob_operator.reconcile.verdicts import Verdicts
from rljob_operator.reconcile.views import JobView, controller_uid, version_of
from rljob_operator.settings import CREATES_AT_ONCE, Timing
from rlruntime.spec.contract import LABEL_JOB_UID, TOKEN_NAME
from rlruntime.spec.status import RLJobStatus

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PASSES_HELD = 4


class NamespaceGoing(Exception):
    """The job's namespace is being deleted: there is nothing to be done for it any more."""


@dataclass(frozen=True, slots=True)
class Written:
    """What came of a status."""

    holds: bool
    """The API server has the status that the rest of the plan rests on."""
    wait_s: float | None = None
    """Seconds until a difference that may wait is to be written."""


class Executor:
    """Carries plans out.

    Args:
        monotonic: seconds on a clock that never jumps.
        pace_s: returns how long a pass takes of late, in seconds.
        on_status: told of every status that was written: the job as it was, and its new status.
    """

    def __init__(
        self,
        client: KubeClient,
        cache: Cache,
        *,
        timing: Timing,
        monotonic: Callable[[], float],
        pace_s: Callable[[], float],
        on_status: Callable[[JobView, RLJobStatus], None],
    ) -> None:
        self._client, self._cache = client, cache
        self._timing, self._monotonic, self._pace_s, self._on_status = timing, monotonic, pace_s, on_status
        self._verdicts = Verdicts(client, keep_s=timing.verdict_s, monotonic=monotonic)

    async def judge(self, job: JobView, memory: JobMemory, pods: Iterable[KubeObject]) -> None:
        """Have the API server judge ``pods``, and note the verdict for this generation of the job.

        Raises:
            KubeError: there is no verdict.
        """
        try:
            found = await asyncio.gather(*(self._verdicts.problem_of(job.owner, pod) for pod in pods))
        except KubeError as error:
            if error.namespace_is_going:
                raise NamespaceGoing from None
            raise
        memory.verdict_generation = job.generation
        memory.template_problem = next((problem for problem in found if problem), "")

    async def write_status(self, job: JobView, plan: Plan, memory: JobMemory) -> Written:
        """Write the status, unless it is as it was, or differs only in what may wait.

        Raises:
            KubeError: the API server couldn't do it.
        """
        changes = status_changes(job.status, plan.status)
        if not changes:
            memory.differs_since_s = None
            return Written(holds=True)
        now_s = self._monotonic()
        if plan.write != "Now":
            if memory.differs_since_s is None:
                memory.differs_since_s = now_s
            due_s = memory.differs_since_s + self._hold_s()
            if is_talk_alone(job.status, plan.status):
                due_s = memory.written_at_s + self._timing.progress_write_s
            if now_s < due_s:
                return Written(holds=True, wait_s=due_s - now_s)
        owner = job.owner
        try:
            answer = await self._client.patch_status(owner.namespace, owner.name, status_patch(job, changes))
        except (Conflict, NotFound) as error:
            logger.debug("the job has changed since it was read: %s", error, extra={"job": owner.name})
            return Written(holds=False)
        memory.differs_since_s, memory.written_at_s = None, now_s
        self._cache.wrote_status(owner.uid, plan.status, version_of(answer))
        self._on_status(job, plan.status)
        return Written(holds=True)

    def _hold_s(self) -> float:
        return min(self._timing.counts_hold_max_s, self._timing.counts_hold_s + _PASSES_HELD * self._pace_s())

    async def delete_pods(self, job: JobView, deletes: Iterable[DeletePod]) -> None:
        """Delete pods; one that is another by now, or gone, is left.

        Raises:
            KubeError: the API server couldn't do it.
        """
        await _all(self._delete_pod(job, item) for item in deletes)

    async def _delete_pod(self, job: JobView, item: DeletePod) -> None:
        try:
            left = await self._client.delete(
                PODS, job.owner.namespace, item.name, uid=item.uid, grace_s=item.grace_seconds
            )
        except (Conflict, NotFound):
            return
        self._cache.wrote_deletion(job.owner.uid, item.uid, left)

    async def create(self, job: JobView, memory: JobMemory, creates: Iterable[KubeObject]) -> float | None:
        """Create objects, what pods mount before pods. What exists already and is the job's counts as created.

        Returns:
            Seconds after which to try again what was refused; 0 when a refusal is new and is to be told first; None
            where nothing was refused.

        Raises:
            NamespaceGoing: the namespace is being deleted.
            KubeError: the API server couldn't do it.
        """
        wanted = list(creates)
        if not wanted:
            memory.refused, memory.refusals = {}, 0
            return None
        now_s = self._monotonic()
        if now_s < memory.create_at_s:
            return memory.create_at_s - now_s
        pods = [body for body in wanted if body["kind"] == "Pod"]
        others = [body for body in wanted if body["kind"] != "Pod"]
        refused = await self._create_all(job, memory, others)
        if not refused:
            refused = await self._create_all(job, memory, pods)
        was, memory.refused = memory.refused, {item.name: item for item in refused}
        if not refused:
            memory.refusals = 0
            return 0.0 if was else None
        pause_s = min(
            self._timing.create_retry_max_s, self._timing.create_retry_min_s * 2.0 ** min(memory.refusals, 30)
        )
        memory.refusals += 1
        memory.create_at_s = self._monotonic() + pause_s
        return pause_s if was == memory.refused else 0.0

    async def _create_all(self, job: JobView, memory: JobMemory, bodies: list[KubeObject]) -> list[CreateRefused]:
        slots = asyncio.Semaphore(CREATES_AT_ONCE)

        async def one(body: KubeObject) -> CreateRefused | None:
            async with slots:
                return await self._create(job, memory, body)

        return [item for item in await _all(one(body) for body in bodies) if item is not None]

    async def _create(self, job: JobView, memory: JobMemory, body: KubeObject) -> CreateRefused | None:
        name, kind = body["metadata"]["name"], body["kind"]
        if kind == "Secret":
            body = {**body, "stringData": {TOKEN_NAME: draw_token(secrets.token_bytes)}}
        if kind == "Pod":
            memory.unresolved.add(name)
        try:
            created = await self._client.create(body)
        except AlreadyExists:
            if kind != "Secret" and not await self._is_ours(job, kind, name):
                memory.unresolved.discard(name)
                return CreateRefused(name, "NameTaken", f"{kind} {name} exists already and isn't this job's")
            created = None  # a Secret's name is random, so it can only be from an earlier try of our own
        except KubeError as error:
            if error.code and error.code < 500:
                memory.unresolved.discard(name)
            return _refusal(name, error)
        memory.unresolved.discard(name)
        if kind != "Pod":
            memory.existing.add(name)
        elif created is not None:
            self._cache.apply_pod(created)
        return None

    async def resolve(self, job: JobView, memory: JobMemory) -> None:
        """Look for pods of which it isn't known whether they were created: who plans without them plans wrongly.

        Raises:
            KubeError: the API server doesn't say.
        """
        for name in sorted(memory.unresolved):
            with contextlib.suppress(NotFound):
                self._cache.apply_pod(await self._client.get(PODS, job.owner.namespace, name))
            memory.unresolved.discard(name)

    async def _is_ours(self, job: JobView, kind: str, name: str) -> bool:
        """Find out whose an object is; a pod of our own goes into the cache."""
        is_pod = kind == "Pod"
        found = await self._client.get(resource_of(kind), job.owner.namespace, name, metadata_only=not is_pod)
        uid = job.owner.uid
        if is_pod:
            self._cache.apply_pod(found)
        if controller_uid(found) == uid:
            return True
        labels = found["metadata"].get("labels") or {}
        return kind == "PersistentVolumeClaim" and labels.get(LABEL_JOB_UID) == uid

    async def delete_job(self, job: JobView) -> bool:
        """Delete a finished job, unless it has changed since; return whether it is on its way.

        Raises:
            KubeError: the API server couldn't do it.
        """
        current = self._cache.job(job.owner.uid) or job
        try:
            await self._client.delete(
                RLJOBS,
                job.owner.namespace,
                job.owner.name,
                uid=job.owner.uid,
                resource_version=str(current.resource_version),
            )
        except (Conflict, NotFound):
            return False
        return True


def _refusal(name: str, error: KubeError) -> CreateRefused:
    """Return what a refusal means for the job; raise what is none."""
    if error.namespace_is_going:
        raise NamespaceGoing from None
    words = error.message or str(error)
    if isinstance(error, Forbidden):
        return CreateRefused(name, "QuotaExceeded" if error.is_quota else "Forbidden", words)
    if isinstance(error, Invalid):
        return CreateRefused(name, "TemplateInvalid", words)
    if isinstance(error, ServerError) and error.is_webhook:
        return CreateRefused(name, "Refused", words)
    raise error


async def _all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all to their end, then raise the first error, so that no write is left under way when a pass ends."""
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
