"""No transport: who acts holds the very tensors that learn, in the same process."""

from __future__ import annotations

import threading

from rlruntime.errors import ConfigError
from rlruntime.weights.manifest import describe
from rlruntime.weights.protocol import Outcome, Publication, Status, Weights, WeightSyncError


class InPlacePublisher:
    """Count versions of weights that are shared as they are; see `Publisher`.

    The caller sees to it that nobody acts while the weights change: learning and acting take turns.

    Args:
        weights: the models that will be published.
        last_version: number of the last version of an earlier publisher.
    """

    def __init__(self, weights: Weights, *, last_version: int = 0) -> None:
        self.manifest = describe(weights)
        self._weights = weights
        self._changed = threading.Condition()
        self._version, self._published, self._closed = last_version, False, False
        self._members: dict[str, InPlaceReceiver] = {}

    @property
    def version(self) -> int:
        """The last version published."""
        return self._version

    def receiver(self, name: str, targets: Weights) -> InPlaceReceiver:
        """Return the member ``name``, in place of an earlier one of that name.

        Raises:
            ConfigError: ``targets`` are not the published tensors themselves.
        """
        self.check_shared(targets)
        self._members[name] = InPlaceReceiver(self, targets)
        return self._members[name]

    def check_shared(self, weights: Weights) -> None:
        """Raise a `ConfigError` where these are not the tensors that this publisher was made for."""
        ours, theirs = self.manifest.bind(self._weights), self.manifest.bind(weights)
        for entry, own, other in zip(self.manifest.stored, ours, theirs, strict=True):
            if own.data_ptr() != other.data_ptr():
                raise ConfigError(
                    f"without transport all must hold the same tensors, and {entry.name} is a copy",
                    remedy="use the same module, or another scheme",
                )

    def publish(self, weights: Weights) -> Publication:
        """See `Publisher.publish`."""
        if self._closed:
            raise WeightSyncError("the publisher is closed")
        self.check_shared(weights)
        with self._changed:
            self._version += 1
            self._published = True
            self._changed.notify_all()
        return Publication(self._version, self._wait_applied)

    def close(self) -> None:
        """See `Publisher.close`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_for(self, needed: int, timeout_s: float) -> int:
        """Return the version, once it is at least ``needed``; see `Receiver.acquire` for the errors."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (self._published and self._version >= needed), max(timeout_s, 0.0)
            )
            if self._published and self._version >= needed:
                return self._version
            newest = self._version if self._published else 0
            why = "the publisher is closed" if self._closed else f"it did not come within {timeout_s:g} s"
            raise WeightSyncError(f"there is no version {max(needed, 1)} or later: {why}; the newest is {newest}")

    def _wait_applied(self, version: int, timeout_s: float) -> dict[str, Outcome]:
        return {name: Outcome(self._version, Status.APPLIED) for name in self._members}


class InPlaceReceiver:
    """Act with the published tensors themselves; see `Receiver`. Made by `InPlacePublisher.receiver`."""

    def __init__(self, publisher: InPlacePublisher, targets: Weights) -> None:
        self._publisher: InPlacePublisher | None = publisher
        self._targets = targets
        self._version = 0

    @property
    def version(self) -> int:
        """The version at the last acquisition."""
        return self._version

    def acquire(self, min_version: int, timeout_s: float) -> int:
        """See `Receiver.acquire`."""
        if self._publisher is None:
            raise WeightSyncError("the receiver is closed")
        self._publisher.check_shared(self._targets)
        self._version = self._publisher.wait_for(min_version, timeout_s)
        return self._version

    def close(self) -> None:
        """See `Receiver.close`."""
        self._publisher = None
