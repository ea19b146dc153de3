"""kopf: its settings, and what is done with the events of its watches.

They are taken over into the cache, and the job is put into the queue; nothing is decided here. Most are taken from the
stream of a watch before kopf unpacks them, see `login`; its handlers are told of what it lists. kopf keeps nothing in
the objects: it stores no last-handled state, no progress and no finalizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kopf

from rljob_operator.handlers.login import Event, Login, Take
from rljob_operator.kube.resources import PODS, RLJOBS
from rljob_operator.reconcile.cache import Cache
from rljob_operator.reconcile.resync import POD_SELECTOR
from rljob_operator.reconcile.watches import Stream
from rljob_operator.settings import LIST_CHUNK
from rlruntime.spec.contract import LABEL_JOB_UID
from rlruntime.spec.manifest import GROUP, VERSION

_SERVER_TIMEOUT_S, _CLIENT_TIMEOUT_S, _CONNECT_TIMEOUT_S = 300, 330, 10
_INACTIVITY_S = 70.0
"""Bookmarks come every 60 s. A watch that says nothing for longer is held open by something that lost the server."""
_EXIT_S = 20.0
_BACKOFF_MAX_S = 5.0


class _Forever:
    """Pauses between tries of kopf's requests. They never run out: watches wait while the API server is away."""

    def __iter__(self) -> Iterator[float]:
        pause_s = 0.1
        while True:
            yield pause_s
            pause_s = min(_BACKOFF_MAX_S, 2 * pause_s)


class _NoDiffs(kopf.DiffBaseStorage):
    """kopf compares every object with its last one for handlers that there are none of; this spares it the copies."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        return None


class _NoProgress(kopf.ProgressStorage):
    """Handlers of events have no progress to be kept."""

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence


def kopf_settings() -> kopf.OperatorSettings:
    """Return kopf's settings, all that matter said."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.watching.server_timeout = _SERVER_TIMEOUT_S
    settings.watching.client_timeout = _CLIENT_TIMEOUT_S
    settings.watching.connect_timeout = _CONNECT_TIMEOUT_S
    settings.watching.inactivity_timeout = _INACTIVITY_S
    settings.watching.reconnect_backoff = 0.1
    settings.watching.chunk_size = LIST_CHUNK
    settings.watching.label_selectors["", "v1", "pods"] = POD_SELECTOR
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = _CONNECT_TIMEOUT_S
    settings.networking.error_backoffs = _Forever()
    settings.queueing.error_delays = (0.1, 0.5, 1, 2, 5)
    settings.queueing.idle_timeout = 1.0
    settings.queueing.exit_timeout = 0.5
    settings.execution.default_backoff = 1
    settings.process.ultimate_exiting_timeout = _EXIT_S
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.persistence.progress_storage = _NoProgress()
    return settings


class Intake:
    """Takes what watches and lists tell of into the cache, and has the job looked at where that changes anything.

    Args:
        add: puts a job into the queue.
        add_soon: does so a moment later, so that the pods of a job make one pass together.
    """

    def __init__(self, cache: Cache, *, add: Callable[[str], None], add_soon: Callable[[str], None]) -> None:
        self._cache, self._add, self._add_soon = cache, add, add_soon

    @property
    def takers(self) -> dict[str, Take]:
        """What takes the events of each resource, by its plural."""
        return {RLJOBS.plural: self.take_job, PODS.plural: self.take_pod}

    def take_job(self, event: Event) -> None:
        """Take an event of a job."""
        item = event["object"]
        is_gone = event["type"] == "DELETED"
        uid = item["metadata"]["uid"]
        changed = self._cache.remove_job(uid) if is_gone else self._cache.apply_job(item)
        if changed is not None:
            self._add(changed)

    def take_pod(self, event: Event) -> None:
        """Take an event of a pod."""
        item = event["object"]
        about = item["metadata"]
        if event["type"] == "DELETED":
            changed = self._cache.remove_pod(about.get("labels", {}).get(LABEL_JOB_UID, ""), about["uid"], item)
        else:
            changed = self._cache.apply_pod(item)
        if changed is not None:
            self._add_soon(changed)


def kopf_registry(intake: Intake, login: Login) -> kopf.OperatorRegistry:
    """Return the handlers."""
    registry = kopf.OperatorRegistry()

    async def job_event(event: Any, **_: Any) -> None:
        intake.take_job(event)

    async def pod_event(event: Any, **_: Any) -> None:
        intake.take_pod(event)

    async def log_in(**arguments: Any) -> kopf.AiohttpSession:
        return await login(**arguments)

    kopf.on.login(registry=registry)(log_in)
    kopf.on.event(GROUP, VERSION, "rljobs", registry=registry)(job_event)
    kopf.on.event("", "v1", "pods", registry=registry)(pod_event)
    return registry


def streams(namespaces: tuple[str | None, ...]) -> list[Stream]:
    """Return the watches that kopf opens."""
    return [Stream(resource.plural, namespace) for namespace in namespaces for resource in (RLJOBS, PODS)]
