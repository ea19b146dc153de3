"""What every scheme of weight synchronisation promises.

A publisher has the weights that learn, a receiver a copy that acts. ``publish`` returns when its version is available
to all members, so that a rollout that starts after it, with ``acquire``, uses that version or a later one, and only
one: a receiver's weights change in ``acquire`` alone, all models together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from torch import Tensor, nn

from rlruntime.errors import RLJobError

Weights: TypeAlias = Mapping[str, nn.Module | Mapping[str, Tensor]]
"""Models by name. Of a module, all that its ``state_dict`` holds is meant: parameters and persistent buffers."""


class Status(StrEnum):
    """What became of a version at one member."""

    APPLIED = "applied"
    """Its weights are of that version."""
    FAILED = "failed"
    """It could not take them over; it is still a member."""
    LATE = "late"
    """It did not answer in time."""
    REFUSED = "refused"
    """Its weights are others than those published; it is no member."""
    LOST = "lost"
    """Its process is gone, or was given up; it is no member."""


@dataclass(frozen=True)
class Outcome:
    """A member's last word on a version.

    Attributes:
        version: that it applied, or failed to; the last one applied where it is late or lost, 0 for none.
        status: what became of it.
        words: why, in the words of the member where it spoke; empty when applied.
    """

    version: int
    status: Status
    words: str = ""


class WeightSyncError(RLJobError):
    """Weights did not reach every member.

    Args:
        message: one line.
        outcomes: by member; empty in a receiver.
        publication: what was published nonetheless, to the members that the outcomes don't name. None where nothing
            was, and in a receiver.
    """

    def __init__(
        self,
        message: str,
        *,
        outcomes: Mapping[str, Outcome] | None = None,
        publication: Publication | None = None,
    ) -> None:
        self.outcomes = dict(outcomes or {})
        self.publication = publication
        super().__init__(message)


class Publication:
    """A version that is available to all members.

    Attributes:
        version: its number; each one is greater than the last.
    """

    def __init__(self, version: int, wait: Callable[[int, float], dict[str, Outcome]]) -> None:
        self.version, self._wait = version, wait

    def wait_applied(self, timeout_s: float) -> dict[str, Outcome]:
        """Wait until every member acts with this version or a later one; return the outcomes by member.

        Raises:
            WeightSyncError: one failed, is late or is lost; ``outcomes`` has them all.
        """
        return self._wait(self.version, timeout_s)


class Publisher(Protocol):
    """The side that learns. For use by one thread."""

    @property
    def version(self) -> int:
        """The last version published."""

    def publish(self, weights: Weights) -> Publication:
        """Make a new version available to all members, and return.

        Raises:
            ConfigError: the weights are others than this publisher was made for; nothing is published.
            WeightSyncError: a member is lost, or failed since the last call. The others have the version nonetheless,
                unless the error's ``publication`` is None.
        """

    def close(self) -> None:
        """Let go of members and memory. May be called twice; never raises."""


class Receiver(Protocol):
    """The side that acts. For use by one thread."""

    @property
    def version(self) -> int:
        """The version of its weights; 0 before the first, and after a failure that may have left them incomplete."""

    def acquire(self, min_version: int, timeout_s: float) -> int:
        """Take over the newest version, at least ``min_version``, and return its number. Between rollouts only.

        Before the first publication it waits for that, whatever ``min_version``.

        Raises:
            ConfigError: the own weights are no longer those that were agreed on; none has changed.
            WeightSyncError: there is no such version in time, or the publisher is gone.
        """

    def close(self) -> None:
        """Leave. May be called twice; never raises."""
