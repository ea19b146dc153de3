"""The messages between a publisher and its receivers, over a socket pair. No pickle: headers, JSON, bytes, words.

A message is a kind (one byte), a version and a length, and that many bytes.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time

from rlruntime.errors import one_line, shorten

HELLO, PAYLOAD = b"h", b"p"
JOINED, REFUSED, RECEIVED, APPLIED, FAILED = b"j", b"x", b"r", b"a", b"f"

HEADER = struct.Struct("<cqQ")
_MAX_WORDS = 2000


class DeadlineExceededError(Exception):
    """The other end did not answer, or takes nothing, in time."""


def frame(kind: bytes, version: int, words: str = "") -> bytes:
    """Return a whole message."""
    body = shorten(one_line(words), _MAX_WORDS).encode() if kind != HELLO else words.encode()
    return HEADER.pack(kind, version, len(body)) + body


class Link:
    """A receiver's end of its connection. One thread may read while another sends.

    Args:
        sock: made by the publisher; closed with the link.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._sending = threading.Lock()

    def send(self, kind: bytes, version: int, words: str = "", *, timeout_s: float) -> None:
        """Send one message.

        Raises:
            DeadlineExceededError: the publisher takes nothing.
            OSError: the publisher is gone.
        """
        deadline = time.monotonic() + timeout_s
        data = memoryview(frame(kind, version, words))
        with self._sending:
            while data:
                try:
                    data = data[self._sock.send(data) :]
                except BlockingIOError:
                    self._await(select.POLLOUT, deadline)

    def read_hello(self, deadline: float) -> tuple[str, list[int]]:
        """Return the first message, and the descriptors that came with it, for the caller to close.

        Raises:
            DeadlineExceededError: it did not come in time.
            EOFError: the publisher is gone.
        """
        self._await(select.POLLIN, deadline)
        head, descriptors, _, _ = socket.recv_fds(self._sock, HEADER.size, 1)
        if not head:
            raise EOFError
        header = bytearray(head.ljust(HEADER.size, b"\0"))
        self._read_into(memoryview(header)[len(head) :], deadline)
        _, _, length = HEADER.unpack(header)
        body = bytearray(length)
        self._read_into(memoryview(body), deadline)
        return body.decode(), descriptors

    def read_payload(self, memory: memoryview) -> int:
        """Fill ``memory`` with the next version, however long it takes to come, and return its number.

        Raises:
            EOFError: the publisher is gone, or speaks of other sizes.
        """
        header = bytearray(HEADER.size)
        self._read_into(memoryview(header), None)
        kind, version, length = HEADER.unpack(header)
        if kind != PAYLOAD or length != len(memory):
            raise EOFError
        self._read_into(memory, None)
        return int(version)

    def is_gone(self, within_s: float) -> bool:
        """Wait that long at most; tell whether the publisher is gone. For schemes whose publisher sends nothing."""
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        return bool(poller.poll(max(within_s, 0.0) * 1000))

    def hang_up(self) -> None:
        """End the connection; a thread that reads wakes up. Never raises."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the socket; no other thread may use it any more. May be called twice; never raises."""
        self.hang_up()
        self._sock.close()

    def _read_into(self, memory: memoryview, deadline: float | None) -> None:
        while memory:
            try:
                count = self._sock.recv_into(memory)
            except BlockingIOError:
                self._await(select.POLLIN, deadline)
                continue
            except ConnectionError:
                count = 0
            if not count:
                raise EOFError
            memory = memory[count:]

    def _await(self, event: int, deadline: float | None) -> None:
        poller = select.poll()
        poller.register(self._sock, event)
        timeout_ms = None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
        if not poller.poll(timeout_ms):
            raise DeadlineExceededError
