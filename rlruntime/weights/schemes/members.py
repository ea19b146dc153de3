"""The publisher's view of its receivers: who joined, what each acknowledged, who is gone.

Nothing here blocks but `Members.wait`, which sends and reads for all members at once until its deadline.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rlruntime.weights.protocol import Outcome, Status
from rlruntime.weights.schemes import wire

_CHUNK = 1 << 16
_GONE = select.POLLHUP | select.POLLERR


@dataclass(eq=False)
class Member:
    """One receiver.

    Attributes:
        name: how messages name it.
        sock: the publisher's end of the connection.
        joined: whether it has agreed to the manifest.
        received: last version that it holds, not yet applied.
        applied: last version that its weights are of.
        failure: version and words of a failure after ``applied``.
        failure_raised: whether the publisher raised it.
        ended: why it is no member any more.
        outgoing: what is still to be sent.
    """

    name: str
    sock: socket.socket
    joined: bool = False
    received: int = 0
    applied: int = 0
    failure: tuple[int, str] | None = None
    failure_raised: bool = False
    ended: Outcome | None = None
    outgoing: deque[memoryview] = field(default_factory=deque)
    inbox: bytearray = field(default_factory=bytearray)

    def end(self, status: Status, words: str) -> None:
        """Close the connection, for this reason."""
        self.ended = self.ended or Outcome(self.applied, status, words)
        self.outgoing.clear()
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # a process that was forked may hold a copy
        self.sock.close()

    def has_answered(self, version: int) -> bool:
        """Tell whether it applied that version or a later one, or failed to."""
        return self.applied >= version or (self.failure is not None and self.failure[0] >= version)

    def outcome(self, version: int) -> Outcome:
        """Return its last word on a version."""
        if self.ended:
            return self.ended
        if self.applied >= version:
            return Outcome(self.applied, Status.APPLIED)
        if self.failure and self.failure[0] >= version:
            return Outcome(self.failure[0], Status.FAILED, self.failure[1])
        state = f"acts with version {self.applied}" if self.applied else "has no weights yet"
        return Outcome(self.applied, Status.LATE, state if self.joined else "has not joined")


class Members:
    """All receivers of a publisher, by name.

    Args:
        on_joined: called when a member has agreed to the manifest.
    """

    def __init__(self, on_joined: Callable[[Member], None]) -> None:
        self._by_name: dict[str, Member] = {}
        self._on_joined = on_joined

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._by_name.values()))

    def invite(self, name: str, hello: bytes, descriptors: Sequence[int]) -> socket.socket:
        """Return the receiver's end of a new connection.

        Raises:
            ValueError: there is a member of that name, and it isn't known to be gone.
        """
        known = self._by_name.get(name)
        if known is not None and not known.ended:
            self.exchange(0.0)  # its end may be news
            if not known.ended:
                raise ValueError(f"there is a member {name!r}; remove it first")
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            sent = socket.send_fds(ours, [hello], descriptors)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        member = Member(name, ours)
        if sent < len(hello):
            member.outgoing.append(memoryview(hello)[sent:])
        self._by_name[name] = member
        return theirs

    def remove(self, name: str) -> None:
        """Let go of a member, if there is one of that name; its receiver finds the publisher gone."""
        member = self._by_name.pop(name, None)
        if member is not None:
            member.end(Status.LOST, "it was removed")

    def close(self) -> None:
        """Let go of all. May be called twice."""
        for member in self:
            self.remove(member.name)

    def wait(self, done: Callable[[Member], bool], deadline: float) -> list[Member]:
        """Exchange messages until each member is done or gone; return those that are neither at the deadline.

        Args:
            done: what is waited for.
            deadline: time of `time.monotonic` in seconds.
        """
        self.exchange(0.0)
        while True:
            waiting = [member for member in self if not member.ended and not done(member)]
            remaining_s = deadline - time.monotonic()
            if not waiting or remaining_s <= 0:
                return waiting
            self.exchange(remaining_s)

    def exchange(self, timeout_s: float) -> None:
        """Send and read what can be sent and read, once; wait that long at most for the first of it."""
        poller = select.poll()
        by_descriptor = {member.sock.fileno(): member for member in self if not member.ended}
        for descriptor, member in by_descriptor.items():
            poller.register(descriptor, select.POLLIN | (select.POLLOUT if member.outgoing else 0))
        for descriptor, event in poller.poll(timeout_s * 1000):
            member = by_descriptor[descriptor]
            try:
                if event & select.POLLOUT:
                    _send(member)
                if event & ~select.POLLOUT:
                    self._read(member, to_the_end=bool(event & _GONE))
            except ConnectionError:
                self._read_rest(member)

    def _read(self, member: Member, *, to_the_end: bool = False) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                part = member.sock.recv(_CHUNK)
                if not part:
                    member.end(Status.LOST, "its process is gone, or has left")
                    return
                member.inbox += part
                self._take_messages(member)
                if member.ended or (len(part) < _CHUNK and not to_the_end):  # what comes later shows in the next poll
                    return

    def _read_rest(self, member: Member) -> None:
        """It is gone; what it said before counts."""
        with contextlib.suppress(ConnectionError):
            self._read(member, to_the_end=True)
        member.end(Status.LOST, "its process is gone, or has left")

    def _take_messages(self, member: Member) -> None:
        inbox = member.inbox
        while len(inbox) >= wire.HEADER.size:
            kind, version, length = wire.HEADER.unpack_from(inbox)
            end = wire.HEADER.size + length
            if len(inbox) < end:
                return
            words = bytes(inbox[wire.HEADER.size : end]).decode(errors="replace")
            del inbox[:end]
            self._take(member, kind, version, words)

    def _take(self, member: Member, kind: bytes, version: int, words: str) -> None:
        if kind == wire.JOINED:
            member.joined = True
            self._on_joined(member)
        elif kind == wire.REFUSED:
            member.end(Status.REFUSED, words)
        elif kind == wire.RECEIVED:
            member.received = version
        elif kind == wire.APPLIED:
            member.applied = version
            member.failure, member.failure_raised = None, False
        elif kind == wire.FAILED:
            member.failure, member.failure_raised = (version, words), False


def _send(member: Member) -> None:
    with contextlib.suppress(BlockingIOError):
        while member.outgoing:
            data = member.outgoing.popleft()
            try:
                rest = data[member.sock.send(data) :]
            except BaseException:
                member.outgoing.appendleft(data)
                raise
            if rest:
                member.outgoing.appendleft(rest)
