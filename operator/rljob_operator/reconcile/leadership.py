"""Which of several operators acts: the one that holds a Lease.

Every few seconds each of them looks at the Lease. Whoever holds it writes the time into it; another takes it once it
has seen it unchanged for as long as it is to last. Times of different machines are never compared: what counts is how
long the Lease was seen unchanged, on a clock of one's own. The holder may act for a shorter time than others wait, and
writes nothing after it (`holds`), so that one that was stopped for a minute does no harm when it goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from rljob_operator.builders.owner import KubeObject
from rljob_operator.kube.errors import AlreadyExists, Conflict, Forbidden, KubeError, NotFound
from rljob_operator.kube.resources import LEASES, Resource
from rlruntime.errors import ConfigError, RLJobError

logger = logging.getLogger(__name__)

_RENEW_PART, _RETRY_PART = 2 / 3, 2 / 15
"""Of the time that a Lease lasts: for how long the holder acts without a renewal, and the pause between two looks."""


class LeadershipLost(RLJobError):
    """Another operator may act from now on: this one must end."""


class LeaseClient(Protocol):
    """The requests about a Lease. Every method raises `KubeError` or one of its kinds."""

    async def get(self, resource: Resource, namespace: str, name: str, *, metadata_only: bool = False) -> KubeObject:
        """Return the object."""

    async def create(self, body: KubeObject, *, dry_run: bool = False) -> KubeObject:
        """Create ``body``."""

    async def replace(self, body: KubeObject) -> KubeObject:
        """Put ``body`` in the place of the object if that still has its `resourceVersion`."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Which Lease, and for how long it lasts."""

    namespace: str
    name: str
    seconds: int

    @property
    def renew_s(self) -> float:
        """For how long the holder acts without having renewed it."""
        return self.seconds * _RENEW_PART

    @property
    def retry_s(self) -> float:
        """Between two looks at it."""
        return self.seconds * _RETRY_PART


class Leadership:
    """Takes a Lease, keeps it, gives it back.

    Args:
        client: has connections of its own: a renewal must not wait behind what is done for jobs.
        identity: differs from that of any other process, earlier ones of this machine included.
        now: the time that is written, for people to read.
        monotonic: seconds on a clock that never jumps.
        uniform: a number between its two arguments.
        sleep: waits for so many seconds of that clock.
    """

    def __init__(
        self,
        client: LeaseClient,
        lease: Lease,
        *,
        identity: str,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
        uniform: Callable[[float, float], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client, self._lease, self._identity = client, lease, identity
        self._now, self._monotonic, self._uniform, self._sleep = now, monotonic, uniform, sleep
        self._until_s = float("-inf")
        """Until when this process may act."""
        self._seen: tuple[Any, ...] = ()
        self._seen_s = self._answer_s = monotonic()
        self._told = ""

    def holds(self) -> bool:
        """Whether this process may act now."""
        return self._monotonic() < self._until_s

    def silence_s(self) -> float:
        """Return for how long no question about the Lease was answered."""
        return self._monotonic() - self._answer_s

    async def acquire(self) -> None:
        """Wait until the Lease is ours.

        Raises:
            ConfigError: the account lacks a right, or there is no such namespace.
        """
        while not await self._try():
            await self._pause()
        self._tell(f"{self._words} is held by {self._identity}, which acts from now on")

    async def keep(self) -> None:
        """Renew the Lease for as long as that succeeds.

        Raises:
            LeadershipLost: it was not renewed in time, or another one holds it.
        """
        while True:
            await self._pause()
            try:
                async with asyncio.timeout(max(0.0, self._until_s - self._monotonic())):
                    await self._try()
            except TimeoutError:
                pass
            if not self.holds():
                raise LeadershipLost(f"{self._words} could not be renewed in time, or was taken: {self._told}")

    async def release(self) -> None:
        """Give the Lease back, so that another one takes it at its next look; nothing may be written after it."""
        if not self.holds():
            return
        self._until_s = float("-inf")
        try:
            found = await self._client.get(LEASES, self._lease.namespace, self._lease.name)
            if _spec(found).get("holderIdentity") == self._identity:
                await self._client.replace(self._body(found, holder=""))
                logger.info("%s is given back", self._words)
        except KubeError as error:
            logger.info("%s isn't given back, and will run out: %s", self._words, error)

    @property
    def _words(self) -> str:
        return f"the Lease {self._lease.namespace}/{self._lease.name}"

    async def _pause(self) -> None:
        await self._sleep(self._lease.retry_s * self._uniform(1.0, 1.2))

    async def _try(self) -> bool:
        """Take or renew the Lease, where it may be; return whether it is ours."""
        began_s = self._monotonic()  # the promise counts from here: whoever sees it sees it later
        try:
            taken = await self._take()
        except Forbidden as error:
            raise ConfigError(
                f"the operator's account lacks a right: {error.message}",
                remedy="give it get, create and update of leases in that namespace, or leave out --lease",
            ) from None
        except KubeError as error:
            self._tell(f"{self._words}: {error}; it is tried again")
            return False
        self._answer_s = self._monotonic()
        if taken:
            self._until_s = began_s + self._lease.renew_s
        return taken

    async def _take(self) -> bool:
        try:
            found = await self._client.get(LEASES, self._lease.namespace, self._lease.name)
        except NotFound:
            return await self._create()
        spec = _spec(found)
        holder = str(spec.get("holderIdentity") or "")
        seen = (holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_s = seen, self._monotonic()
        if holder and holder != self._identity and not self._has_run_out(spec):
            self._until_s = float("-inf")
            self._tell(f"{self._words} is held by {holder}")
            return False
        try:
            await self._client.replace(self._body(found, holder=self._identity))
        except (Conflict, NotFound):  # somebody else was faster; the next look says who
            return False
        return True

    async def _create(self) -> bool:
        try:
            await self._client.create(self._body(None, holder=self._identity))
        except (AlreadyExists, Conflict):
            return False
        except NotFound:
            raise ConfigError("there is no such namespace", field="--lease", value=self._lease.namespace) from None
        return True

    def _has_run_out(self, spec: KubeObject) -> bool:
        lasts_s = spec.get("leaseDurationSeconds")
        lasts_s = lasts_s if isinstance(lasts_s, int) and lasts_s > 0 else self._lease.seconds
        return self._monotonic() - self._seen_s > lasts_s

    def _body(self, found: KubeObject | None, *, holder: str) -> KubeObject:
        """Return the Lease as it is to be; ``found`` is what it was."""
        before = _spec(found or {})
        now = f"{self._now():%Y-%m-%dT%H:%M:%S.%fZ}"
        is_ours = before.get("holderIdentity") == holder
        transitions = int(before.get("leaseTransitions") or 0)
        metadata = (found or {}).get("metadata") or {"namespace": self._lease.namespace, "name": self._lease.name}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": self._lease.seconds if holder else 1,
                "acquireTime": before.get("acquireTime", now) if is_ours else now,
                "renewTime": now,
                "leaseTransitions": transitions if found is None or is_ours or not holder else transitions + 1,
            },
        }

    def _tell(self, words: str) -> None:
        """Log what has changed, once."""
        if words != self._told:
            self._told = words
            logger.info("%s", words)


def _spec(found: KubeObject) -> KubeObject:
    spec: KubeObject = found.get("spec") or {}
    return spec
