"""Weights through each receiver's socket: for systems without memory files, and where processes share no memory.

A thread of the receiver takes every version as it comes, also in the midst of a rollout, into one of two buffers, and
says that it has it; ``acquire`` writes the newest whole one into the models. ``publish`` returns when all have it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from torch import Tensor

from rlruntime.weights.manifest import Manifest
from rlruntime.weights.mapping import WeightMap
from rlruntime.weights.protocol import Status, Weights, WeightSyncError
from rlruntime.weights.schemes import wire
from rlruntime.weights.schemes.members import Member
from rlruntime.weights.schemes.remote import ACKNOWLEDGE_TIMEOUT_S, RemotePublisher, RemoteReceiver
from rlruntime.weights.snapshot import Snapshot

SCHEME = "Pipe"
_END_WAIT_S = 5.0


class PipePublisher(RemotePublisher):
    """Send to every receiver, to all at once; see `RemotePublisher` for the arguments.

    A member that doesn't take a version within ``timeout_s`` is given up: the rest of it could only come too late.
    """

    scheme = SCHEME

    def __init__(
        self,
        weights: Weights,
        *,
        timeout_s: float = 120.0,
        last_version: int = 0,
        weight_map: WeightMap | None = None,
    ) -> None:
        super().__init__(weights, timeout_s=timeout_s, last_version=last_version, weight_map=weight_map)
        self._snapshot = Snapshot.allocate(self.manifest)
        self._offered = 0

    def _parameters(self) -> dict[str, int]:
        return {}

    def _descriptors(self) -> Sequence[int]:
        return ()

    def _on_joined(self, member: Member) -> None:
        if self._offered:
            self._queue(member)

    def _offer(self, version: int, sources: Sequence[Tensor], deadline: float) -> None:
        if any(member.outgoing for member in self._members):
            self._snapshot = Snapshot.allocate(self.manifest)  # a new member is still being sent the last one
        self._offered = 0  # until it is written: a failure in between leaves nothing to send
        self._snapshot.copy_from(sources)
        self._offered = version
        for member in self._members:
            if member.joined and not member.ended:
                self._queue(member)
        for member in self._members.wait(lambda one: not one.joined or one.received >= version, deadline):
            member.end(Status.LOST, f"it did not take version {version} within {self._timeout_s:g} s and was given up")

    def _queue(self, member: Member) -> None:
        memory = self._snapshot.bytes
        member.outgoing.append(memoryview(wire.HEADER.pack(wire.PAYLOAD, self._offered, len(memory))))
        member.outgoing.append(memory)


class PipeReceiver(RemoteReceiver):
    """Take weights from the socket; see `RemoteReceiver`. Starts a thread, which ends with ``close``."""

    def __init__(self, link: wire.Link, manifest: Manifest, targets: Weights, round_number: int) -> None:
        super().__init__(link, manifest, targets, round_number)
        self._whole, self._incoming = Snapshot.allocate(manifest), Snapshot.allocate(manifest)
        self._changed = threading.Condition()
        self._newest, self._gone = 0, False
        self._closed = False
        self._thread = threading.Thread(target=self._receive, name="weights", daemon=True)
        self._thread.start()

    def acquire(self, min_version: int, timeout_s: float) -> int:
        """See `Receiver.acquire`."""
        if self._closed:
            raise WeightSyncError("the receiver is closed")
        needed = max(min_version, 1)
        with self._changed:
            self._changed.wait_for(lambda: self._newest >= needed or self._gone, timeout_s)
            newest = self._newest
            if newest < needed:
                raise self._publisher_gone(needed, newest) if self._gone else self._too_late(needed, newest, timeout_s)
            if newest == self._version:
                return newest

            def copy(tensors: list[Tensor]) -> int:
                self._whole.copy_to(tensors)
                return newest

            self._take_over(newest, copy)
            return newest

    def close(self) -> None:
        """See `Receiver.close`."""
        self._closed = True
        self._link.hang_up()
        self._thread.join(_END_WAIT_S)
        self._link.close()

    def _receive(self) -> None:
        try:
            while True:
                version = self._link.read_payload(self._incoming.bytes)
                with self._changed:
                    self._whole, self._incoming = self._incoming, self._whole
                    self._newest = version
                    self._changed.notify_all()
                self._link.send(wire.RECEIVED, version, timeout_s=ACKNOWLEDGE_TIMEOUT_S)
        except (EOFError, OSError, wire.DeadlineExceededError):
            with self._changed:
                self._gone = True
                self._changed.notify_all()
