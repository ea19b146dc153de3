"""Which job is looked at when.

A key stands in the queue at most once, and no key is worked on twice at a time: what is added meanwhile makes one more
pass afterwards. A pass that fails is tried again with a growing pause; a pass may also say when it wants to come back.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Mapping

from rljob_operator.metrics import OperatorMetrics
from rljob_operator.settings import Timing

logger = logging.getLogger(__name__)

_PACE_WEIGHT = 0.05
_LEAST_DROPPED = 64

Work = Callable[[str], Awaitable[float | None]]
"""One pass over a key. Returns seconds after which the key wants to be looked at again, or None; raises what it can't
handle."""


class WorkQueue:
    """Keys, their wake-up times, and the workers.

    Args:
        work: one pass.
        about: returns what the log says of a key.
        monotonic: seconds on a clock that never jumps.
        uniform: returns a random number between two bounds.
    """

    def __init__(
        self,
        work: Work,
        *,
        timing: Timing,
        metrics: OperatorMetrics,
        about: Callable[[str], Mapping[str, object]],
        monotonic: Callable[[], float],
        uniform: Callable[[float, float], float],
    ) -> None:
        self._work, self._timing, self._metrics = work, timing, metrics
        self._about, self._monotonic, self._uniform = about, monotonic, uniform
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._queued: dict[str, float] = {}
        self._working: set[str] = set()
        self._again: set[str] = set()
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._sooner = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._pace_s = 0.0

    def add(self, key: str) -> None:
        """Have ``key`` looked at as soon as there is a worker."""
        if key in self._queued:
            return
        if key in self._working:
            self._again.add(key)
            return
        self._queued[key] = self._monotonic()
        self._ready.put_nowait(key)
        self._metrics.queue_depth.set(len(self._queued))

    def add_after(self, key: str, delay_s: float) -> None:
        """Have ``key`` looked at after ``delay_s``, unless it is due before."""
        if delay_s <= 0:
            self.add(key)
            return
        due = self._monotonic() + delay_s
        if due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        if len(self._heap) > 2 * len(self._due) + _LEAST_DROPPED:
            self._drop_overtaken()
        if self._heap[0] == (due, key):
            self._sooner.set()

    @property
    def alarms(self) -> int:
        """Number of wake-up times that are kept, those among them that an earlier pass has overtaken."""
        return len(self._heap)

    def _drop_overtaken(self) -> None:
        """A job is looked at many times before a deadline of weeks, and each time asks for it anew."""
        self._heap = [(due, key) for key, due in self._due.items()]
        heapq.heapify(self._heap)

    def forget(self, key: str) -> None:
        """Drop what is remembered of a key that will not come back."""
        self._due.pop(key, None)
        self._failures.pop(key, None)

    def start(self, workers: int) -> None:
        """Begin to work."""
        self._tasks = [asyncio.create_task(self._worker(), name=f"worker {number}") for number in range(workers)]
        self._tasks.append(asyncio.create_task(self._alarm(), name="alarm of the queue"))

    @property
    def is_busy(self) -> bool:
        """Whether keys wait for a worker."""
        return bool(self._queued)

    @property
    def pace_s(self) -> float:
        """Seconds that a key takes of late, from its adding to the end of its pass."""
        return self._pace_s

    @property
    def is_alive(self) -> bool:
        """Whether all workers and the alarm run."""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    async def stop(self) -> None:
        """End all passes where they stand."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _worker(self) -> None:
        while True:
            key = await self._ready.get()
            began = self._monotonic()
            added = self._queued.pop(key)
            self._metrics.queue_latency.observe(began - added)
            self._metrics.queue_depth.set(len(self._queued))
            self._working.add(key)
            self._due.pop(key, None)  # this pass says anew when it wants to come back
            try:
                await self._pass(key)
            finally:
                self._working.discard(key)
                ended = self._monotonic()
                self._metrics.reconcile_duration.observe(ended - began)
                self._pace_s += _PACE_WEIGHT * (ended - added - self._pace_s)
            if key in self._again:
                self._again.discard(key)
                self.add(key)

    async def _pass(self, key: str) -> None:
        """Run one pass. Whatever it raises ends here: a job that can't be worked on must not stop the others."""
        try:
            async with asyncio.timeout(self._timing.pass_timeout_s):
                again_s = await self._work(key)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._failed(key, error)  # something that the pass waited for was ended, not the pass
        except Exception as error:
            self._failed(key, error)
        else:
            self._failures.pop(key, None)
            if again_s is not None:
                self.add_after(key, again_s)

    def _failed(self, key: str, error: BaseException) -> None:
        self._metrics.reconcile_errors.labels(type(error).__name__).inc()
        pause_s = self._pause_s(key)
        logger.warning(
            "a pass failed and is tried again in %.1f s: %s",
            pause_s,
            _words(error),
            extra=dict(self._about(key)),
            exc_info=error if logger.isEnabledFor(logging.DEBUG) else None,
        )
        self.add_after(key, pause_s)

    def _pause_s(self, key: str) -> float:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        timing = self._timing
        pause_s = min(timing.error_retry_max_s, timing.error_retry_min_s * 2.0 ** min(failures, 30))
        return pause_s * self._uniform(0.5, 1.0)

    async def _alarm(self) -> None:
        while True:
            self._sooner.clear()
            now = self._monotonic()
            while self._heap and self._heap[0][0] <= now:
                due, key = heapq.heappop(self._heap)
                if self._due.get(key) == due:
                    del self._due[key]
                    self.add(key)
            timeout_s = self._heap[0][0] - now if self._heap else None
            try:
                async with asyncio.timeout(timeout_s):
                    await self._sooner.wait()
            except TimeoutError:
                pass


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
