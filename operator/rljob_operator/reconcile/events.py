"""Kubernetes Events about jobs, for people. Written beside the passes, they may be lost: conditions say more.

Pods come first: while jobs wait to be worked on, events are held back, but not for long.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime

from rljob_operator.builders.owner import KubeObject, Owner
from rljob_operator.kube.client import KubeClient
from rljob_operator.kube.errors import KubeError
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.planner.plan import JobEvent
from rljob_operator.reconcile.views import time_text
from rljob_operator.settings import Timing
from rlruntime.spec.manifest import API_VERSION, KIND

logger = logging.getLogger(__name__)

COMPONENT = "rljob-operator"
_MOST_WAITING, _MOST_REMEMBERED = 1000, 4096
_AT_ONCE = 4
_LOOK_AGAIN_S = 0.1
_MAX_MESSAGE_CHARS = 1024


class EventWriter:
    """Writes events in the order they were given. The same words about the same job are written once in a while only.

    Args:
        now: the present time, aware, in UTC.
        monotonic: seconds on a clock that never jumps.
        suffix: returns a new random text for an event's name.
        is_busy: tells whether jobs wait to be worked on.
        instance: name of this process, such as its pod's.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        timing: Timing,
        metrics: OperatorMetrics,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
        suffix: Callable[[], str],
        is_busy: Callable[[], bool],
        instance: str,
    ) -> None:
        self._client, self._timing, self._metrics = client, timing, metrics
        self._now, self._monotonic, self._suffix, self._instance = now, monotonic, suffix, instance
        self._is_busy, self._stopping = is_busy, False
        self._waiting: asyncio.Queue[KubeObject] = asyncio.Queue(_MOST_WAITING)
        self._written: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to write."""
        self._tasks = [asyncio.create_task(self._write(), name=f"events {number}") for number in range(_AT_ONCE)]

    async def stop(self, timeout_s: float) -> None:
        """Write what waits, as far as the time goes, and end."""
        self._stopping = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._waiting.join()
        except TimeoutError:
            pass
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def emit(self, owner: Owner, event: JobEvent) -> None:
        """Have an event about a job written; never waits, never raises."""
        key = (owner.uid, event.reason, event.message)
        now_s = self._monotonic()
        if now_s - self._written.get(key, float("-inf")) < self._timing.event_repeat_s:
            return
        self._written[key] = now_s
        self._written.move_to_end(key)
        while len(self._written) > _MOST_REMEMBERED:
            self._written.popitem(last=False)
        try:
            self._waiting.put_nowait(self._body(owner, event))
        except asyncio.QueueFull:
            self._metrics.events_dropped.inc()

    def _body(self, owner: Owner, event: JobEvent) -> KubeObject:
        time = time_text(self._now())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{owner.name}.{self._suffix()}", "namespace": owner.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": owner.name,
                "namespace": owner.namespace,
                "uid": owner.uid,
            },
            "reason": event.reason,
            "message": event.message[:_MAX_MESSAGE_CHARS],
            "type": "Warning" if event.warning else "Normal",
            "count": 1,
            "firstTimestamp": time,
            "lastTimestamp": time,
            "source": {"component": COMPONENT, "host": self._instance},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }

    async def _write(self) -> None:
        while True:
            body = await self._waiting.get()
            await self._let_jobs_go_first()
            try:
                await self._client.create(body)
            except Exception as error:  # whatever is wrong about one event, the next is written
                self._metrics.events_dropped.inc()
                about = body["involvedObject"]
                words = str(error) if isinstance(error, KubeError) else type(error).__name__
                logger.debug("an event could not be written: %s", words, extra={"job": about["name"]})
            finally:
                self._waiting.task_done()

    async def _let_jobs_go_first(self) -> None:
        """Wait while jobs wait, unless that lasts too long or many events do."""
        ends_s = self._monotonic() + self._timing.event_hold_max_s
        while (
            self._is_busy()
            and not self._stopping
            and self._waiting.qsize() < _MOST_WAITING // 2
            and self._monotonic() < ends_s
        ):
            await asyncio.sleep(_LOOK_AGAIN_S)
