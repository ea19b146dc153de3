"""How far training is: trainer 0 of every running job is asked now and then, beside the passes.

The answer comes from a user's container, so it is bounded in time and size, and read by the model of the contract. The
address comes from the pod's status, and is asked only where a pod can have it.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
from collections.abc import Callable
from datetime import datetime

import aiohttp

from rljob_operator.planner.observed import ObservedPod
from rljob_operator.reconcile.cache import Cache
from rljob_operator.reconcile.memory import Memories
from rljob_operator.reconcile.views import JobView, time_text
from rljob_operator.settings import Timing
from rlruntime.spec.base import MAX_INT
from rlruntime.spec.contract import STATUS_BYTES, STATUS_PATH, TrainerReport, port_of

_AT_ONCE = 16
_TIMEOUT_S = 1.0
_TICK_S = 1.0


class ProgressPoller:
    """Asks trainers, notes what they say in their job's memory, and has the job looked at.

    Args:
        add: puts a job into the queue.
        now: the present time, aware, in UTC.
        monotonic: seconds on a clock that never jumps.
        uniform: returns a random number between two bounds.
        may_be_a_pods: returns whether an address can be that of a pod.
    """

    def __init__(
        self,
        cache: Cache,
        memories: Memories,
        add: Callable[[str], None],
        *,
        timing: Timing,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
        uniform: Callable[[float, float], float],
        may_be_a_pods: Callable[[str], bool] | None = None,
    ) -> None:
        self._cache, self._memories, self._add, self._timing = cache, memories, add, timing
        self._now, self._monotonic, self._uniform = now, monotonic, uniform
        self._may_be_a_pods = may_be_a_pods or is_address_of_a_pod
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Ask until cancelled."""
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_AT_ONCE, force_close=True),
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        try:
            while True:
                self._ask_those_due(session)
                await asyncio.sleep(_TICK_S)
        finally:
            tasks = list(self._asking.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await session.close()

    def _ask_those_due(self, session: aiohttp.ClientSession) -> None:
        now_s = self._monotonic()
        for job in self._cache.jobs():
            uid = job.owner.uid
            if job.status.phase != "Running" or job.deleting or job.spec is None or uid in self._asking:
                continue  # whoever doesn't answer is asked again once he was given up, or questions would pile up
            memory = self._memories.of(uid)
            if memory.poll_at_s > now_s or (pod := self._trainer(job)) is None:
                continue
            period_s = self._timing.progress_poll_s
            memory.poll_at_s = now_s + self._uniform(0.8 * period_s, 1.2 * period_s)
            task = asyncio.create_task(self._ask(session, job, pod, port_of(job.spec.metrics)))
            self._asking[uid] = task
            task.add_done_callback(functools.partial(self._answered, uid))

    def _answered(self, uid: str, _: asyncio.Task[None]) -> None:
        self._asking.pop(uid, None)

    def _trainer(self, job: JobView) -> ObservedPod | None:
        """Return the pod of trainer 0 that runs now."""
        if job.spec is None:
            return None
        role = next(role.name for role in job.spec.roles if role.type == "Trainer")
        for pod in self._cache.pods(job.owner.uid):
            is_current = pod.slot == (role, 0) and pod.attempt == (job.status.attempt or 0)
            if is_current and pod.phase == "Running" and not pod.gone and pod.end is None:
                return pod if self._may_be_a_pods(pod.ip) else None
        return None

    async def _ask(self, session: aiohttp.ClientSession, job: JobView, pod: ObservedPod, port: int) -> None:
        async with self._slots:
            report = await fetch_report(session, pod.ip, port)
        if report is None or report.uid != job.owner.uid or report.attempt > pod.attempt:
            return
        if self._cache.job(job.owner.uid) is None:
            return
        memory = self._memories.of(job.owner.uid)
        progress = report.to_progress(time_text(self._now()))
        old = memory.progress if memory.progress_of == pod.uid else None
        same = old is not None and progress.model_copy(update={"update_time": old.update_time}) == old
        if same and memory.checkpoint == report.checkpoint:
            return
        memory.progress_of, memory.progress, memory.checkpoint = pod.uid, progress, report.checkpoint
        self._add(job.owner.uid)


def is_address_of_a_pod(ip: str) -> bool:
    """Return whether ``ip`` is an address, and none of this machine or of its link, as those of metadata services."""
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return not (address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified)


async def fetch_report(session: aiohttp.ClientSession, ip: str, port: int) -> TrainerReport | None:
    """Return what the trainer at ``ip`` says of itself; None where it says nothing that is one."""
    host = f"[{ip}]" if ":" in ip else ip
    plain = {"Accept-Encoding": "identity"}
    try:
        async with session.get(f"http://{host}:{port}{STATUS_PATH}", allow_redirects=False, headers=plain) as response:
            if response.status != 200 or "Content-Encoding" in response.headers:
                return None
            body = b""
            async for part in response.content.iter_chunked(4096):
                body += part
                if len(body) > STATUS_BYTES:
                    return None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
    report = TrainerReport.from_text(body)
    return report if report is not None and is_storable(report) else None


def is_storable(report: TrainerReport) -> bool:
    """Return whether the API server takes the numbers of ``report``; it refuses the whole status for one of them."""
    checkpoint = report.checkpoint.frames if report.checkpoint is not None else None
    numbers = (report.frames, report.total_frames, report.remaining_seconds, checkpoint)
    return all(number is None or number <= MAX_INT for number in numbers)
