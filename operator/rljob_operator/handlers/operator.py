"""The operator as a process: all its parts put together, started in order, and ended within seconds."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Coroutine, Sequence
from typing import Any

import kopf

from rljob_operator.handlers.assembly import assemble
from rljob_operator.handlers.probes import Probes
from rljob_operator.handlers.watching import kopf_registry, kopf_settings
from rljob_operator.kube.connection import Connection
from rljob_operator.kube.errors import Forbidden, KubeError, NotFound, Unauthorized
from rljob_operator.kube.resources import PODS, RLJOBS
from rljob_operator.kube.schema import OPENAPI_PATH, check_crd
from rljob_operator.reconcile.reconciler import Decide
from rljob_operator.settings import Options, Timing
from rlruntime import __version__
from rlruntime.errors import EXIT_FAULT, EXIT_OK, EXIT_SIGINT, EXIT_TRY_AGAIN, ConfigError, RLJobError

logger = logging.getLogger(__name__)

_START_PAUSE_S = 1.0
_EVENTS_STOP_S = 1.0
_RELEASE_S = 1.0


class Unavailable(RLJobError):
    """The API server could not be reached in time."""

    exit_code = EXIT_TRY_AGAIN


async def run(options: Options, decide: Decide, timing: Timing | None = None) -> int:
    """Run the operator until a signal ends it, and return its exit code.

    Raises:
        ConfigError: it can't work as it is: no configuration, missing rights, a missing or an older CRD.
        Unavailable: the API server didn't answer.
    """
    timing = timing or Timing()
    stop = _Stop()
    stop.listen()
    _calm_the_collector()
    connection = await Connection.load(options.kubeconfig, options.context)
    operator = _Operator(options, timing, decide, connection)
    try:
        return await operator.run(stop)
    finally:
        await operator.close()


class _Stop:
    """The wish to end, by a signal."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.exit_code = EXIT_OK

    def listen(self) -> None:
        """Take the signals; kopf takes them when it starts, and is told by us instead."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._ask, EXIT_OK)
        loop.add_signal_handler(signal.SIGINT, self._ask, EXIT_SIGINT)

    def _ask(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self.asked.set()


class _Operator:
    def __init__(self, options: Options, timing: Timing, decide: Decide, connection: Connection) -> None:
        self._options, self._timing, self._connection = options, timing, connection
        self._parts = assemble(options, timing, decide, connection)
        self._probes = Probes(self._parts.metrics.registry, unhealthy=self._unhealthy, unready=self._unready)
        self._tasks: list[asyncio.Task[Any]] = []
        self._ended = ""
        self._stands_by = False
        self._ready = False

    async def run(self, stop: _Stop) -> int:
        """Start all parts in their order, and wait until a signal or a failure ends them."""
        parts = self._parts
        port = await self._probes.start(self._options.metrics_host, self._options.metrics_port)
        logger.info("rljob-operator %s, probes and metrics on port %d", __version__, port)
        if not await self._until(stop, self._check_server()) or not await self._until(stop, self._lead()):
            return stop.exit_code
        ignored = asyncio.all_tasks()
        kopf_stop = asyncio.Event()
        kopf_tasks = await kopf.spawn_tasks(
            registry=kopf_registry(parts.intake, parts.login),
            settings=kopf_settings(),
            clusterwide=not self._options.namespaces,
            namespaces=self._options.namespaces,
            stop_flag=kopf_stop,
        )
        stop.listen()
        self._spawn("watches", _first_of(kopf_tasks))
        self._spawn("reconciling", self._reconcile())
        if parts.leadership is not None:
            self._spawn("leadership", parts.leadership.keep())
        asked = asyncio.create_task(stop.asked.wait())
        await asyncio.wait([asked, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        failed = [task for task in self._tasks if task.done()]
        asked.cancel()
        if not stop.asked.is_set():
            self._ended = f"{failed[0].get_name()} ended"
            error = None if failed[0].cancelled() else failed[0].exception()
            logger.error("%s: %s; the operator ends", self._ended, f"{type(error).__name__}: {error}" if error else "")
        else:
            logger.info("asked to end")
        has_stopped = await self._stop_all(kopf_tasks, kopf_stop, ignored)
        if parts.leadership is not None and has_stopped:  # else something may still be written
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RELEASE_S):
                    await parts.leadership.release()
        return stop.exit_code if stop.asked.is_set() else EXIT_FAULT

    async def _lead(self) -> None:
        """Where there are several operators, wait until it is this one that acts."""
        parts = self._parts
        if parts.leadership is None:
            return
        self._stands_by = True
        parts.monitor.stand_by()
        await parts.leadership.acquire()
        parts.monitor.begin()
        self._stands_by = False

    async def _reconcile(self) -> None:
        """Fill the cache, then act."""
        parts = self._parts
        await parts.resync.fill()
        parts.events.start()
        parts.queue.start(self._options.workers)
        self._ready = True
        where = ", ".join(self._options.namespaces) or "all namespaces"
        logger.info("watching %s; %d jobs", where, sum(1 for _ in parts.cache.jobs()))
        if self._options.dry_run:
            await parts.resync.run()
        else:
            await asyncio.gather(parts.resync.run(), parts.poller.run())

    def _spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _until(self, stop: _Stop, work: Coroutine[Any, Any, None]) -> bool:
        """Run ``work`` to its end, or until a signal; return whether it ended."""
        task, asked = asyncio.create_task(work), asyncio.create_task(stop.asked.wait())
        await asyncio.wait([task, asked], return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return False
        await task
        return True

    async def _check_server(self) -> None:
        """Wait for the API server, and see that it is one that this version can work with."""
        last: Exception = TimeoutError("no answer")
        try:
            async with asyncio.timeout(self._timing.start_timeout_s):
                while True:
                    try:
                        return await self._check_once()
                    except KubeError as error:
                        last = error
                        logger.debug("the API server isn't there yet: %s", error)
                    await asyncio.sleep(_START_PAUSE_S)
        except TimeoutError:
            raise Unavailable(
                f"the API server {self._connection.server} didn't answer within {self._timing.start_timeout_s:.0f} s"
                f" ({last}); see that it runs and can be reached from here"
            ) from None

    async def _check_once(self) -> None:
        try:
            try:
                check_crd(await self._parts.client.document(OPENAPI_PATH))
            except NotFound:
                check_crd(None)
            for namespace in self._options.namespaces or (None,):
                for resource in (RLJOBS, PODS):
                    async for _ in self._parts.client.pages(resource, namespace, metadata_only=True, chunk=1):
                        break
        except Unauthorized:
            raise ConfigError(
                "the API server refuses the credentials",
                value=self._connection.server,
                remedy="see that they are of this cluster and haven't expired",
            ) from None
        except Forbidden as error:
            raise ConfigError(
                f"the operator's account lacks a right: {error.message}", remedy="apply deploy/rbac.yaml"
            ) from None

    async def _stop_all(
        self,
        kopf_tasks: Sequence[asyncio.Task[Any]] | Any,
        kopf_stop: asyncio.Event,
        ignored: set[asyncio.Task[Any]],
    ) -> bool:
        """End all parts, first whoever writes, then the watches; return whether all have ended.

        What doesn't end in time ends with the process.
        """
        try:
            async with asyncio.timeout(self._timing.stop_timeout_s):
                await self._parts.queue.stop()
                for task in self._tasks:
                    task.cancel()
                await self._parts.inspector.stop()
                await self._parts.events.stop(_EVENTS_STOP_S)
                kopf_stop.set()
                for task in kopf_tasks:
                    task.cancel()
                await asyncio.gather(*kopf_tasks, *self._tasks, return_exceptions=True)
                left = asyncio.all_tasks() - ignored - {asyncio.current_task()}
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)
        except TimeoutError:
            logger.warning("not all parts ended in time")
            return False
        return True

    async def close(self) -> None:
        """Close what is open."""
        for client in self._parts.clients:
            await client.close()
        await self._probes.close()

    def _unhealthy(self) -> str:
        if self._ended:
            return self._ended
        if self._stands_by and self._parts.leadership is not None:
            silence_s = self._parts.leadership.silence_s()
            return (
                f"nothing was heard of the Lease for {silence_s:.0f} s"
                if silence_s > self._timing.watch_silence_s
                else ""
            )
        if self._ready and not self._parts.queue.is_alive:
            return "a worker of the queue ended"
        silence_s = self._parts.monitor.silence_s()
        if silence_s > self._timing.watch_silence_s:
            return f"a watch has said nothing for {silence_s:.0f} s"
        return ""

    def _unready(self) -> str:
        return self._unhealthy() or ("" if self._ready or self._stands_by else "the first list isn't complete")


def _calm_the_collector() -> None:
    """Spare the garbage collector what was imported, and objects by the thousand that soon go by themselves.

    Reading the events of a busy cluster it would take an eighth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


async def _first_of(tasks: Any) -> None:
    """Wait until one of kopf's tasks ends, which none should, and raise what it raised."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        await task
