"""Weights in memory that publisher and receivers share: slots, each with a lock of the kernel's. Linux only.

The segment has no name (a memory file, handed on through each receiver's socket), so nothing can be left behind. Its
head says which version is the newest, and in which slot. A receiver takes that slot's lock shared and without waiting,
copies, and lets go; a slot that it can't lock has been overtaken, and it looks again. The publisher takes the lock of a
slot that isn't the newest, alone and without waiting, writes, lets go, and only then changes the head.

Locks are those of open file descriptions: each receiver opens the segment anew, so that threads of one process exclude
each other as processes do, and the kernel frees the lock of whoever dies. Taking and freeing them also orders what the
processors see of the memory. A publisher that dies while it writes leaves that slot without a version; the newest stays
whole.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlruntime import kernel_locks
from rlruntime.envs.shared_slot import open_shared_memory
from rlruntime.errors import ConfigError
from rlruntime.weights.manifest import Manifest
from rlruntime.weights.mapping import WeightMap
from rlruntime.weights.protocol import Weights, WeightSyncError
from rlruntime.weights.schemes import wire
from rlruntime.weights.schemes.members import Member
from rlruntime.weights.schemes.remote import RemotePublisher, RemoteReceiver
from rlruntime.weights.snapshot import Snapshot

SCHEME = "SharedMemory"
MAX_SLOTS = 64

_PAGE = 4096
_WORDS_PER_LINE = 8
_FIRST_PAUSE_S = 0.001
_LAST_PAUSE_S = 0.005


class SharedMemoryPublisher(RemotePublisher):
    """Publish into shared memory; see `RemotePublisher` for the arguments.

    Args:
        num_slots: versions that the segment holds, at least 2. A receiver that stops while it copies keeps one slot
            from use until it goes on or dies; once these are all but the newest, publishing fails at its deadline.

    Raises:
        ConfigError: the system isn't Linux, or the weights can't be published.
        WeightSyncError: there is not enough memory for the slots.
    """

    scheme = SCHEME

    def __init__(
        self,
        weights: Weights,
        *,
        num_slots: int = 3,
        timeout_s: float = 120.0,
        last_version: int = 0,
        weight_map: WeightMap | None = None,
    ) -> None:
        if sys.platform != "linux":
            raise ConfigError("weights in shared memory need Linux", remedy="use the pipe scheme")
        if not 2 <= num_slots <= MAX_SLOTS:
            raise ValueError(f"num_slots must be 2 to {MAX_SLOTS}, got {num_slots}")
        super().__init__(weights, timeout_s=timeout_s, last_version=last_version, weight_map=weight_map)
        self._memory_fd = open_shared_memory("rljob-weights")
        self._close_memory = weakref.finalize(self, os.close, self._memory_fd)
        try:
            size = _segment_size(self.manifest, num_slots)
            try:
                os.posix_fallocate(self._memory_fd, 0, size)
            except OSError as error:
                raise WeightSyncError(
                    f"no shared memory for {num_slots} slots of weights ({size} bytes): {error.strerror}"
                ) from None
            self._segment: _Segment | None = _Segment(self._memory_fd, self.manifest, num_slots)
        except BaseException:
            self._close_memory()
            raise

    def close(self) -> None:
        """See `Publisher.close`."""
        super().close()
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()
        self._close_memory()

    def _parameters(self) -> dict[str, int]:
        assert self._segment is not None
        return {"slots": len(self._segment.slots)}

    def _descriptors(self) -> Sequence[int]:
        return (self._memory_fd,)

    def _on_joined(self, member: Member) -> None:
        """It has mapped the newest version already."""

    def _offer(self, version: int, sources: Sequence[Tensor], deadline: float) -> None:
        segment = self._segment
        assert segment is not None
        newest = segment.newest
        slot = self._lock_free_slot(segment, newest.slot if newest.version else -1, deadline)
        try:
            segment.versions[slot] = 0
            segment.slots[slot].copy_from(sources)
            segment.versions[slot] = version
        finally:
            segment.unlock(slot)
        segment.newest = _Newest(version, slot)

    def _lock_free_slot(self, segment: _Segment, newest: int, deadline: float) -> int:
        pause_s = _FIRST_PAUSE_S
        while True:
            for slot in range(len(segment.slots)):
                if slot != newest and segment.try_lock(slot, kernel_locks.ALONE):
                    return slot
            if time.monotonic() >= deadline:
                behind = [m.name for m in self._members if m.joined and not m.ended and m.applied < self._version]
                names = ", ".join(behind) or "none of them is known to be behind"
                raise WeightSyncError(
                    f"no slot came free within {self._timeout_s:g} s: receivers hold all but the newest ({names}); "
                    "end those that are stopped, or give more slots"
                )
            self._members.exchange(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)


class SharedMemoryReceiver(RemoteReceiver):
    """Take weights from shared memory; see `RemoteReceiver`.

    Args:
        memory_fd: any descriptor of the segment; it stays the caller's.
        num_slots: slots in it.
    """

    def __init__(
        self,
        link: wire.Link,
        manifest: Manifest,
        targets: Weights,
        round_number: int,
        *,
        memory_fd: int,
        num_slots: int,
    ) -> None:
        super().__init__(link, manifest, targets, round_number)
        # Opened anew, for a descriptor that was handed on shares its locks with the one it came from.
        own_fd = os.open(f"/proc/self/fd/{memory_fd}", os.O_RDWR | os.O_CLOEXEC)
        self._close_memory = weakref.finalize(self, os.close, own_fd)
        try:
            self._segment: _Segment | None = _Segment(own_fd, manifest, num_slots)
        except BaseException:
            self._close_memory()
            raise

    def acquire(self, min_version: int, timeout_s: float) -> int:
        """See `Receiver.acquire`."""
        segment = self._segment
        if segment is None:
            raise WeightSyncError("the receiver is closed")
        needed = max(min_version, 1)
        deadline = time.monotonic() + timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            newest = segment.newest
            if newest.version >= needed:
                if newest.version == self._version:
                    return self._version
                taken = self._take(segment, newest)
                if taken is not None:
                    return taken
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise self._too_late(needed, newest.version, timeout_s)
            if newest.version < needed:
                if self._link.is_gone(min(pause_s, remaining_s)) and segment.newest.version < needed:
                    raise self._publisher_gone(needed, newest.version)
                pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def close(self) -> None:
        """See `Receiver.close`."""
        super().close()
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()
        self._close_memory()

    def _take(self, segment: _Segment, newest: _Newest) -> int | None:
        """Copy from that slot, or return None where it has been overtaken."""

        def copy(tensors: list[Tensor]) -> int | None:
            if not segment.try_lock(newest.slot, kernel_locks.SHARED):
                return None
            try:
                version = int(segment.versions[newest.slot])
                if version < newest.version:  # written to by a publisher that died
                    return None
                segment.slots[newest.slot].copy_to(tensors)
                return version
            finally:
                segment.unlock(newest.slot)

        return self._take_over(newest.version, copy)


@dataclass(frozen=True)
class _Newest:
    """What the head says; version 0 before the first."""

    version: int
    slot: int


class _Segment:
    """The mapped segment: a head, the slots' versions, the slots.

    Attributes:
        slots: of one version each.
        versions: int64, of the slots, each in a cache line of its own; 0 while a slot is written to.
    """

    def __init__(self, descriptor: int, manifest: Manifest, num_slots: int) -> None:
        size = _segment_size(manifest, num_slots)
        if os.fstat(descriptor).st_size < size:
            raise WeightSyncError(f"the shared memory has fewer bytes than the {size} of its slots")
        self._mapping = mmap.mmap(descriptor, size)
        memory = torch.from_numpy(np.frombuffer(self._mapping, np.uint8))
        stride = _slot_stride(manifest)
        head_bytes = size - num_slots * stride
        words = memory[:head_bytes].view(torch.int64).numpy()
        self._descriptor = descriptor
        self._head = words[:1]
        self.versions = words[_WORDS_PER_LINE::_WORDS_PER_LINE][:num_slots]
        self.slots = [
            Snapshot(manifest, memory[head_bytes + slot * stride : head_bytes + (slot + 1) * stride])
            for slot in range(num_slots)
        ]

    def close(self) -> None:
        """Unmap, whoever still holds this object; an error's traceback does."""
        self.slots.clear()
        self._head = self.versions = np.zeros(0, np.int64)
        self._mapping.close()

    @property
    def newest(self) -> _Newest:
        """Version and slot in one word, so that they are never read apart."""
        version, slot = divmod(int(self._head[0]), MAX_SLOTS)
        return _Newest(version, slot)

    @newest.setter
    def newest(self, newest: _Newest) -> None:
        self._head[0] = newest.version * MAX_SLOTS + newest.slot

    def try_lock(self, slot: int, kind: int) -> bool:
        """Take the lock of a slot without waiting: ``SHARED`` or ``ALONE``. Tell whether that worked."""
        return kernel_locks.try_lock(self._descriptor, kind, slot)

    def unlock(self, slot: int) -> None:
        """Free the lock."""
        kernel_locks.try_lock(self._descriptor, kernel_locks.NONE, slot)


def _slot_stride(manifest: Manifest) -> int:
    return -(-manifest.size // _PAGE) * _PAGE


def _segment_size(manifest: Manifest, num_slots: int) -> int:
    words = (1 + MAX_SLOTS) * _WORDS_PER_LINE
    head_bytes = -(-words * 8 // _PAGE) * _PAGE
    return head_bytes + num_slots * _slot_stride(manifest)
