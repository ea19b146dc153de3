"""What a pod's conditions don't say: a missing Secret, ConfigMap or volume stands in its Kubernetes Events alone.

The Events of a pod that is creating for long are listed beside the passes: once, then with growing pauses. The server
reads all Events of the namespace for each such list, so they are listed one pod after the other, with a rest that grows
with what a list takes: a thousand jobs that wait for their images at once must not add to the crowd.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rljob_operator.builders.owner import KubeObject
from rljob_operator.kube.client import KubeClient
from rljob_operator.kube.errors import KubeError
from rljob_operator.kube.resources import EVENTS
from rljob_operator.planner.observed import ObservedPod, Trouble
from rljob_operator.reconcile.cache import Cache
from rljob_operator.reconcile.memory import Memories
from rljob_operator.reconcile.views import JobView
from rljob_operator.settings import Timing

logger = logging.getLogger(__name__)

_REST = 9.0
"""How many times what a list took is rested after it."""
_MOST = 16_384
"""Pods that are remembered. One that is forgotten is looked at sooner than it had to be."""


class PodInspector:
    """Lists the Events of pods, and notes the newest warning in their job's memory.

    Args:
        add: puts a job into the queue.
        add_after: does so after some seconds.
        monotonic: seconds on a clock that never jumps.
    """

    def __init__(
        self,
        client: KubeClient,
        cache: Cache,
        memories: Memories,
        *,
        add: Callable[[str], None],
        add_after: Callable[[str, float], None],
        timing: Timing,
        monotonic: Callable[[], float],
    ) -> None:
        self._client, self._cache, self._memories = client, cache, memories
        self._add, self._add_after, self._timing, self._monotonic = add, add_after, timing, monotonic
        self._next: dict[str, tuple[float, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    def inspect(self, job: JobView, names: Iterable[str]) -> None:
        """Have the Events of these pods listed, those whose time has come."""
        now_s = self._monotonic()
        wanted = set(names)
        for pod in self._cache.pods(job.owner.uid):
            if pod.name not in wanted or pod.gone:
                continue
            at_s, pause_s = self._next.get(pod.uid, (0.0, self._timing.inspect_min_s))
            if now_s < at_s:
                self._add_after(job.owner.uid, at_s - now_s)
                continue
            if len(self._next) >= _MOST:
                del self._next[next(iter(self._next))]
            self._next[pod.uid] = (now_s + pause_s, min(2 * pause_s, self._timing.inspect_max_s))
            self._add_after(job.owner.uid, pause_s)
            task = asyncio.create_task(self._inspect(job, pod))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def forget(self, pods: Iterable[ObservedPod]) -> None:
        """Drop what is remembered of pods that get on, or are gone."""
        for pod in pods:
            self._next.pop(pod.uid, None)

    async def stop(self) -> None:
        """End all listing."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _inspect(self, job: JobView, pod: ObservedPod) -> None:
        async with self._turn:
            if self._gets_on(job, pod):
                return
            began_s = self._monotonic()
            await self._ask(job, pod)
            rest_s = _REST * (self._monotonic() - began_s)
            await asyncio.sleep(min(rest_s, self._timing.inspect_rest_max_s))

    def _gets_on(self, job: JobView, pod: ObservedPod) -> bool:
        """Return whether a pod has started, or gone, since it was to be looked at."""
        now = next((known for known in self._cache.pods(job.owner.uid) if known.uid == pod.uid), None)
        return now is None or now.gone or now.started

    async def _ask(self, job: JobView, pod: ObservedPod) -> None:
        found: list[KubeObject] = []
        try:
            selector = f"involvedObject.uid={pod.uid}"
            async for page in self._client.pages(EVENTS, job.owner.namespace, field_selector=selector):
                found.extend(page.items)
        except KubeError as error:
            logger.debug("the events of a pod can't be read: %s", error, extra={"job": job.owner.name})
            return
        if self._cache.job(job.owner.uid) is None:
            return
        trouble = newest_warning(found)
        memory = self._memories.of(job.owner.uid)
        if trouble == memory.pod_events.get(pod.name):
            return
        if trouble is None:
            del memory.pod_events[pod.name]
        else:
            memory.pod_events[pod.name] = trouble
            if trouble.of_a_volume:
                memory.existing.clear()  # what was made for the job may be gone: it is made again, or found
        self._add(job.owner.uid)


def newest_warning(events: Iterable[Mapping[str, Any]]) -> Trouble | None:
    """Return the warning that was seen last; None where there is none, or the pod got on after it.

    Scheduled, or with its volume attached, a pod tells so by an event that isn't a warning.
    """
    last = max(events, key=lambda event: (_last_seen(event), event.get("type") == "Warning"), default=None)
    if last is None or last.get("type") != "Warning":
        return None
    return Trouble(str(last.get("reason") or "Unknown"), str(last.get("message") or ""))


def _last_seen(event: Mapping[str, Any]) -> str:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return max((str(time) for time in times if time), default="")
