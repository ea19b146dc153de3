"""What the schemes between processes have in common: members, outcomes, and an acquisition that says how it went."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor

from rlruntime.weights.manifest import Binding, Manifest, describe
from rlruntime.weights.mapping import WeightMap
from rlruntime.weights.protocol import Outcome, Publication, Status, Weights, WeightSyncError
from rlruntime.weights.schemes import wire
from rlruntime.weights.schemes.members import Member, Members

ACKNOWLEDGE_TIMEOUT_S = 10.0


class RemotePublisher(ABC):
    """A publisher whose receivers are other processes; see `Publisher`.

    Each receiver's process is started by the caller, who hands it the socket that ``invite`` returned and closes its
    own copy; the process calls `rlruntime.weights.joining.join`. Processes must be started by ``exec`` (`subprocess`,
    or multiprocessing's ``spawn``): a forked one would keep the connections of its siblings open.

    Args:
        weights: the models that will be published; their manifest is what receivers agree to.
        timeout_s: seconds that a publication may take.
        last_version: number of the last version of an earlier publisher, so that numbers go on after a restart.
        weight_map: what is published of the weights, and under which names; None publishes them as they are.

    Attributes:
        manifest: what receivers agree to.
        round: changes of the membership so far: each invitation begins a new round, and the others go on.
    """

    scheme: ClassVar[str]

    def __init__(self, weights: Weights, *, timeout_s: float, last_version: int, weight_map: WeightMap | None) -> None:
        self._weight_map = weight_map
        self.manifest = describe(self._published(weights))
        # What a map makes may be copies, which would be kept for as long as they are remembered.
        self._bind = Binding(self.manifest).tensors if weight_map is None else self.manifest.bind
        self.round = 0
        self._version = self._last_number = last_version
        self._timeout_s = timeout_s
        self._members = Members(self._on_joined)
        self._closed = False

    @property
    def version(self) -> int:
        """The last version published."""
        return self._version

    def invite(self, name: str) -> socket.socket:
        """Return the end of a connection that makes the process which holds it the member ``name``.

        A member that is gone is replaced by inviting another of its name.

        Raises:
            ValueError: the name is taken by a member that is alive.
        """
        self._refuse_when_closed()
        hello = {
            "scheme": self.scheme,
            "round": self.round + 1,
            **self._parameters(),
            "manifest": self.manifest.to_json(),
        }
        message = wire.frame(wire.HELLO, self._version, json.dumps(hello))
        theirs = self._members.invite(name, message, self._descriptors())
        self.round += 1
        return theirs

    def remove(self, name: str) -> None:
        """Let go of a member; nothing happens where there is none of that name."""
        self._members.remove(name)

    def wait_joined(self, timeout_s: float) -> None:
        """Wait until all who were invited have joined, and have been sent the newest version where the scheme sends.

        Raises:
            WeightSyncError: one refused, is late or is lost.
        """
        deadline = time.monotonic() + timeout_s
        self._members.wait(lambda member: member.joined and not member.outgoing, deadline)
        bad = {
            member.name: member.ended or Outcome(member.applied, Status.LATE, _lateness(member))
            for member in self._members
            if member.ended or not member.joined or member.outgoing
        }
        if bad:
            raise WeightSyncError(f"not all have joined: {_words(bad)}", outcomes=bad)

    def publish(self, weights: Weights) -> Publication:
        """See `Publisher.publish`. Who has not joined by then gets the newest version when joining.

        A member that is lost is an error of every publication until it is removed or replaced.
        """
        self._refuse_when_closed()
        deadline = time.monotonic() + self._timeout_s
        sources = self._bind(self._published(weights))
        self._members.exchange(0.0)
        self._last_number = version = self._last_number + 1  # one that was interrupted may be known to some
        self._offer(version, sources, deadline)
        self._version = version
        publication = Publication(version, self._wait_applied)
        self._raise_news(publication)
        return publication

    def close(self) -> None:
        """See `Publisher.close`."""
        self._closed = True
        self._members.close()

    @abstractmethod
    def _parameters(self) -> dict[str, int]:
        """Return what the scheme's receivers must know, as JSON."""

    @abstractmethod
    def _descriptors(self) -> Sequence[int]:
        """Return what the scheme's receivers must hold."""

    @abstractmethod
    def _on_joined(self, member: Member) -> None:
        """Give a new member the newest version, if there is one."""

    @abstractmethod
    def _offer(self, version: int, sources: Sequence[Tensor], deadline: float) -> None:
        """Make a version available, ending members that keep it from being so."""

    def _published(self, weights: Weights) -> Weights:
        return weights if self._weight_map is None else self._weight_map(weights)

    def _wait_applied(self, version: int, timeout_s: float) -> dict[str, Outcome]:
        self._members.wait(lambda member: member.has_answered(version), time.monotonic() + timeout_s)
        outcomes = {member.name: member.outcome(version) for member in self._members}
        bad = {name: outcome for name, outcome in outcomes.items() if outcome.status != Status.APPLIED}
        if bad:
            for member in self._members:
                member.failure_raised = member.failure is not None
            raise WeightSyncError(f"version {version} is not applied by all: {_words(bad)}", outcomes=outcomes)
        return outcomes

    def _raise_news(self, publication: Publication) -> None:
        bad: dict[str, Outcome] = {}
        for member in self._members:
            if member.ended:
                bad[member.name] = member.ended
            elif member.failure and not member.failure_raised:
                member.failure_raised = True
                bad[member.name] = Outcome(member.failure[0], Status.FAILED, member.failure[1])
        if bad:
            message = f"version {publication.version} is published, but not for all: {_words(bad)}"
            raise WeightSyncError(message, outcomes=bad, publication=publication)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise WeightSyncError("the publisher is closed")


class RemoteReceiver(ABC):
    """A receiver in another process than its publisher; see `Receiver`. Made by `rlruntime.weights.joining.join`.

    Args:
        link: the connection, owned from here on.
        manifest: what was agreed on.
        targets: the models to write into.

    Attributes:
        round: of the invitation.
    """

    def __init__(self, link: wire.Link, manifest: Manifest, targets: Weights, round_number: int) -> None:
        self.round = round_number
        self._link, self._binding, self._targets = link, Binding(manifest), targets
        self._version = 0

    @property
    def version(self) -> int:
        """See `Receiver.version`."""
        return self._version

    @abstractmethod
    def acquire(self, min_version: int, timeout_s: float) -> int:
        """See `Receiver.acquire`."""

    def close(self) -> None:
        """See `Receiver.close`."""
        self._link.close()

    def _take_over(self, newest: int, copy: Callable[[list[Tensor]], int | None]) -> int | None:
        """Write a version into the targets and acknowledge it, or say why that failed.

        Args:
            newest: the version that is expected, for the words.
            copy: writes into the tensors and returns the version; None where it found none to write.
        """
        before = self._version
        try:
            tensors = self._binding.tensors(self._targets)
            self._version = 0  # until all of it is written
            version = copy(tensors)
        except Exception as error:
            with contextlib.suppress(OSError, wire.DeadlineExceededError):
                words = f"{type(error).__name__}: {error}"
                self._link.send(wire.FAILED, newest, words, timeout_s=ACKNOWLEDGE_TIMEOUT_S)
            raise
        self._version = before if version is None else version
        if version is not None:
            self._acknowledge(version)
        return version

    def _acknowledge(self, version: int) -> None:
        try:
            self._link.send(wire.APPLIED, version, timeout_s=ACKNOWLEDGE_TIMEOUT_S)
        except wire.DeadlineExceededError:
            raise WeightSyncError(
                f"the publisher took no acknowledgement of version {version} within {ACKNOWLEDGE_TIMEOUT_S:g} s"
            ) from None
        except OSError:
            return  # the publisher is gone, which matters once a version is missing

    def _too_late(self, needed: int, newest: int, timeout_s: float) -> WeightSyncError:
        return WeightSyncError(f"no version {needed} or later came within {timeout_s:g} s; the newest is {newest}")

    def _publisher_gone(self, needed: int, newest: int) -> WeightSyncError:
        return WeightSyncError(
            f"the publisher is gone, or gave up on this receiver, before version {needed}; the newest is {newest}"
        )


def _lateness(member: Member) -> str:
    return "has not taken the newest version" if member.joined else "has not joined"


def _words(outcomes: dict[str, Outcome]) -> str:
    return "; ".join(
        f"{name} {outcome.status.value} at version {outcome.version}: {outcome.words}"
        for name, outcome in outcomes.items()
    )
