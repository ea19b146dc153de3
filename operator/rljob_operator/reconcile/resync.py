"""Compares the cache with the API server: in full before the first pass and after a gap, by metadata now and then.

A watch that could not be resumed is begun anew with a list, and what was deleted in between is in neither. A resync
finds it. It only reads: a job that has not changed is not even looked at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from rljob_operator.builders.owner import KubeObject
from rljob_operator.kube.client import KubeClient
from rljob_operator.kube.errors import Expired, KubeError, NotFound
from rljob_operator.kube.resources import PODS, RLJOBS, Resource
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.reconcile.cache import Cache
from rljob_operator.reconcile.views import pod_view, version_of
from rljob_operator.reconcile.watches import WatchMonitor
from rljob_operator.settings import Timing
from rlruntime.spec.contract import LABEL_MANAGED_BY, MANAGED_BY_OPERATOR

logger = logging.getLogger(__name__)

POD_SELECTOR = f"{LABEL_MANAGED_BY}={MANAGED_BY_OPERATOR}"
_FETCHES_AT_ONCE = 8


@dataclass(slots=True)
class _Listed:
    """What a list held: the uids, and those whose object is newer than the cache's."""

    uids: set[str] = field(default_factory=set)
    newer: list[tuple[str, str, str, int]] = field(default_factory=list)
    """Namespace, name, uid and resourceVersion."""
    version: int = 0
    """Of the list. What is newer than it may rightly be missing in it."""


class Resync:
    """Keeps the cache true.

    Args:
        namespaces: those that are acted on; None stands for all.
        add: puts a job into the queue.
        uniform: returns a random number between two bounds.
    """

    def __init__(
        self,
        client: KubeClient,
        cache: Cache,
        monitor: WatchMonitor,
        *,
        namespaces: tuple[str | None, ...],
        add: Callable[[str], None],
        timing: Timing,
        metrics: OperatorMetrics,
        uniform: Callable[[float, float], float],
    ) -> None:
        self._client, self._cache, self._monitor = client, cache, monitor
        self._namespaces, self._add = namespaces, add
        self._timing, self._metrics, self._uniform = timing, metrics, uniform
        for resource in (RLJOBS, PODS):  # a counter that begins at one shows no increase
            metrics.resync_corrections.labels(resource.plural)

    async def fill(self) -> None:
        """Fill the cache once all watches are open: nothing can be missed between the list and the watch.

        Jobs come before pods, so that a pod whose job is gone isn't waited with.
        """
        await self._monitor.all_open()
        while True:
            try:
                await self.full()
                return
            except KubeError as error:
                await self._retry("the first list", error)

    async def run(self) -> None:
        """Compare in full after every gap, and by metadata now and then, until cancelled."""
        while True:
            period_s = self._timing.resync_s
            pause_s = self._uniform(0.8 * period_s, 1.2 * period_s)
            gap = False
            try:
                async with asyncio.timeout(pause_s):
                    await self._monitor.gap()
                    gap = True
            except TimeoutError:
                pass
            while True:
                try:
                    await (self.full() if gap else self.by_metadata())
                    break
                except KubeError as error:
                    await self._retry("a resync", error)

    async def _retry(self, what: str, error: KubeError) -> None:
        pause_s = self._timing.list_retry_s
        logger.warning("%s failed and is tried again in %.0f s: %s", what, pause_s, error)
        await asyncio.sleep(pause_s)

    async def full(self) -> None:
        """List all jobs and pods, take over what is newer, and drop what is no more.

        Raises:
            KubeError: the API server couldn't do it.
        """
        for namespace in self._namespaces:
            await self._compare(namespace, metadata_only=False)

    async def by_metadata(self) -> None:
        """Compare versions alone, and read only what differs.

        Raises:
            KubeError: the API server couldn't do it.
        """
        for namespace in self._namespaces:
            jobs, pods = await self._compare(namespace, metadata_only=True)
            if jobs.newer or pods.newer:
                await asyncio.sleep(self._timing.watch_lag_s)  # most of it is under way
                await self._fetch(RLJOBS, jobs.newer)
                await self._fetch(PODS, pods.newer)

    async def _compare(self, namespace: str | None, *, metadata_only: bool) -> tuple[_Listed, _Listed]:
        """List jobs, then pods, and drop of each what is no more; return both."""
        jobs = await self._list(RLJOBS, namespace, metadata_only=metadata_only)
        self._drop_jobs(namespace, jobs)
        pods = await self._list(PODS, namespace, metadata_only=metadata_only)
        self._drop_pods(namespace, pods)
        return jobs, pods

    async def _list(self, resource: Resource, namespace: str | None, *, metadata_only: bool) -> _Listed:
        try:
            return await self._list_once(resource, namespace, metadata_only=metadata_only)
        except Expired:
            return await self._list_once(resource, namespace, metadata_only=metadata_only)

    async def _list_once(self, resource: Resource, namespace: str | None, *, metadata_only: bool) -> _Listed:
        listed = _Listed()
        selector = POD_SELECTOR if resource is PODS else ""
        versions = self._versions(resource) if metadata_only else {}
        async for page in self._client.pages(resource, namespace, label_selector=selector, metadata_only=metadata_only):
            listed.version = int(page.resource_version) if page.resource_version.isdigit() else 0
            for item in page.items:
                about = item["metadata"]
                listed.uids.add(about["uid"])
                if not metadata_only:
                    self._take(resource, item)
                elif self._is_ours(resource, item) and version_of(item) > versions.get(about["uid"], -1):
                    listed.newer.append((about["namespace"], about["name"], about["uid"], version_of(item)))
            await asyncio.sleep(0)  # a page takes milliseconds to read; passes go on in between
        return listed

    def _versions(self, resource: Resource) -> dict[str, int]:
        if resource is PODS:
            return {view.pod.uid: view.resource_version for view in self._cache.pod_views()}
        return {view.owner.uid: view.resource_version for view in self._cache.jobs()}

    def _take(self, resource: Resource, item: KubeObject) -> None:
        changed = self._cache.apply_pod(item) if resource is PODS else self._cache.apply_job(item)
        if changed is not None:
            self._add(changed)

    def _drop_jobs(self, namespace: str | None, listed: _Listed) -> None:
        for view in list(self._cache.jobs()):
            is_here = namespace is None or view.owner.namespace == namespace
            if is_here and view.owner.uid not in listed.uids and view.resource_version <= listed.version:
                self._metrics.resync_corrections.labels(RLJOBS.plural).inc()
                if (uid := self._cache.remove_job(view.owner.uid)) is not None:
                    self._add(uid)

    def _drop_pods(self, namespace: str | None, listed: _Listed) -> None:
        for view in list(self._cache.pod_views()):
            is_here = namespace is None or view.namespace == namespace
            if is_here and view.pod.uid not in listed.uids and view.resource_version <= listed.version:
                self._metrics.resync_corrections.labels(PODS.plural).inc()
                if (uid := self._cache.remove_pod(view.job_uid, view.pod.uid)) is not None:
                    self._add(uid)

    def _is_ours(self, resource: Resource, item: KubeObject) -> bool:
        """Anybody may give a pod our label."""
        return resource is RLJOBS or pod_view(item) is not None

    async def _fetch(self, resource: Resource, wanted: list[tuple[str, str, str, int]]) -> None:
        """Read those objects that are still newer than what is known of them."""
        slots = asyncio.Semaphore(_FETCHES_AT_ONCE)

        async def one(namespace: str, name: str) -> None:
            async with slots:
                try:
                    found = await self._client.get(resource, namespace, name)
                except NotFound:
                    return  # the watch says that it went
            self._metrics.resync_corrections.labels(resource.plural).inc()
            self._take(resource, found)

        known = self._versions(resource)
        still = [
            (namespace, name)
            for namespace, name, uid, version in wanted
            if version > known.get(uid, -1) and not self._cache.is_deleted(uid)
        ]
        await asyncio.gather(*(one(namespace, name) for namespace, name in still))
