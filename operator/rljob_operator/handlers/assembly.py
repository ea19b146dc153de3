"""All parts of the operator, put together."""

from __future__ import annotations

import functools
import random
import secrets
import socket
import string
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry

from rljob_operator.handlers.login import Login
from rljob_operator.handlers.watching import Intake, streams
from rljob_operator.kube.connection import Connection
from rljob_operator.kube.http import HttpClient
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.reconcile.cache import Cache
from rljob_operator.reconcile.events import EventWriter
from rljob_operator.reconcile.execute import Executor
from rljob_operator.reconcile.inspect import PodInspector
from rljob_operator.reconcile.job_metrics import job_values, phases
from rljob_operator.reconcile.leadership import Leadership, Lease
from rljob_operator.reconcile.memory import Memories
from rljob_operator.reconcile.progress import ProgressPoller
from rljob_operator.reconcile.queue import WorkQueue
from rljob_operator.reconcile.reconciler import Decide, Reconciler, about, tell_status
from rljob_operator.reconcile.resync import Resync
from rljob_operator.reconcile.watches import WatchMonitor
from rljob_operator.settings import Options, Timing

_NONCE_LETTERS, _NONCE_LENGTH = string.ascii_lowercase + string.digits, 5


@dataclass(frozen=True)
class Parts:
    """What the process starts, asks and ends."""

    metrics: OperatorMetrics
    clients: tuple[HttpClient, ...]
    """To be closed: that of all work, and that of the Lease."""
    client: HttpClient
    leadership: Leadership | None
    """None where this operator is the only one."""
    cache: Cache
    monitor: WatchMonitor
    intake: Intake
    login: Login
    queue: WorkQueue
    resync: Resync
    events: EventWriter
    inspector: PodInspector
    poller: ProgressPoller


def assemble(options: Options, timing: Timing, decide: Decide, connection: Connection) -> Parts:
    """Return all parts, with the clocks and the chance of this machine; nothing is started yet."""
    monotonic, uniform, now = time.monotonic, random.uniform, functools.partial(datetime.now, UTC)
    namespaces: tuple[str | None, ...] = options.namespaces or (None,)

    # What the operator knows.
    metrics = OperatorMetrics(CollectorRegistry())
    leadership, clients = _leadership(options, timing, connection, metrics)
    may_write = (lambda: True) if leadership is None else leadership.holds
    client = HttpClient(connection, metrics, timeout_s=timing.request_timeout_s, may_write=may_write)
    cache, memories = Cache(monotonic), Memories()
    monitor = WatchMonitor(streams(namespaces), monotonic=monotonic, time=time.time)
    metrics.gauges_of(lambda: phases(list(cache.jobs())), monitor.last_times, lambda: job_values(list(cache.jobs())))

    # When it looks at what. A pass is made by the reconciler, which comes below.
    async def work(uid: str) -> float | None:
        again_s = await reconciler.work(uid)
        if cache.job(uid) is None:
            queue.forget(uid)
        return again_s

    def said_of(uid: str) -> dict[str, Any]:
        job = cache.job(uid)
        return {"uid": uid} if job is None else about(job)

    queue = WorkQueue(work, timing=timing, metrics=metrics, about=said_of, monotonic=monotonic, uniform=uniform)
    resync = Resync(
        client, cache, monitor, namespaces=namespaces, add=queue.add, timing=timing, metrics=metrics, uniform=uniform
    )

    # What it does.
    tell = functools.partial(tell_status, metrics)
    executor = Executor(client, cache, timing=timing, monotonic=monotonic, pace_s=lambda: queue.pace_s, on_status=tell)
    events = EventWriter(
        client,
        timing=timing,
        metrics=metrics,
        now=now,
        monotonic=monotonic,
        suffix=functools.partial(secrets.token_hex, 8),
        is_busy=lambda: queue.is_busy,
        instance=socket.gethostname(),
    )
    inspector = PodInspector(
        client, cache, memories, add=queue.add, add_after=queue.add_after, timing=timing, monotonic=monotonic
    )
    reconciler = Reconciler(
        decide,
        client,
        cache,
        memories,
        executor,
        events,
        inspector,
        timing=timing,
        now=now,
        nonce=_nonce,
        image=options.image,
        dry_run=options.dry_run,
    )

    def add_soon(uid: str) -> None:
        queue.add_after(uid, timing.pod_events_hold_s)

    intake = Intake(cache, add=queue.add, add_soon=add_soon)
    return Parts(
        metrics=metrics,
        clients=(client, *clients),
        client=client,
        leadership=leadership,
        cache=cache,
        monitor=monitor,
        intake=intake,
        login=Login(connection, monitor, metrics, monotonic=monotonic, takers=intake.takers),
        queue=queue,
        resync=resync,
        events=events,
        inspector=inspector,
        poller=ProgressPoller(cache, memories, queue.add, timing=timing, now=now, monotonic=monotonic, uniform=uniform),
    )


def _leadership(
    options: Options, timing: Timing, connection: Connection, metrics: OperatorMetrics
) -> tuple[Leadership | None, list[HttpClient]]:
    """Return what takes the Lease, where there is one, and the connections for that alone."""
    if options.lease is None:
        return None, []
    lease = Lease(*options.lease, options.lease_s)
    client = HttpClient(connection, metrics, timeout_s=min(timing.request_timeout_s, lease.renew_s / 2))
    leadership = Leadership(
        client,
        lease,
        identity=f"{socket.gethostname()}_{secrets.token_hex(4)}",
        now=functools.partial(datetime.now, UTC),
        monotonic=time.monotonic,
        uniform=random.uniform,
    )
    metrics.leader.set_function(lambda: float(leadership.holds()))
    return leadership, [client]


def _nonce() -> str:
    return "".join(secrets.choice(_NONCE_LETTERS) for _ in range(_NONCE_LENGTH))
