"""What the process pool and its workers say to each other over a socket pair.

A message is one byte, and for the kinds that carry a value its pickle, preceded by its length. Steps and their answers
are single bytes. Both ends are processes of one job, started by each other; nothing else can write to the socket.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
import time
from typing import Any

STEP, RESET, SNAPSHOT, RESTORE, PREPARE, BUILD, QUIT = b"s", b"r", b"c", b"w", b"p", b"b", b"q"
DONE, VALUE, ERROR = b"d", b"v", b"e"

_WITH_VALUE = (RESET, RESTORE, PREPARE, BUILD, VALUE, ERROR)
_HEADER = struct.Struct("<Q")
_CHUNK = 1 << 20


class DeadlineExceededError(Exception):
    """The other end did not answer in time."""


def send(sock: socket.socket, kind: bytes, value: Any = None, *, deadline: float | None = None) -> None:
    """Send one message.

    Args:
        sock: non-blocking where a deadline is given.
        kind: one byte.
        value: pickled for the kinds that carry one.
        deadline: time of `time.monotonic` in seconds.

    Raises:
        DeadlineExceededError: the other end takes nothing.
        OSError: the other end is gone.
    """
    if kind not in _WITH_VALUE:
        data = memoryview(kind)
    else:
        payload = pickle.dumps(value, protocol=5)
        data = memoryview(kind + _HEADER.pack(len(payload)) + payload)
    while data:
        try:
            data = data[sock.send(data) :]
        except BlockingIOError:
            _wait(sock, select.POLLOUT, deadline)


def receive(sock: socket.socket, *, deadline: float | None = None) -> tuple[bytes, Any]:
    """Receive one message: its kind and its value.

    Raises:
        DeadlineExceededError: nothing, or only a part, came in time.
        EOFError: the other end is gone.
    """
    kind = read(sock, 1, deadline)
    if kind not in _WITH_VALUE:
        return kind, None
    (length,) = _HEADER.unpack(read(sock, _HEADER.size, deadline))
    return kind, pickle.loads(read(sock, length, deadline))


def skip_to_end(sock: socket.socket, deadline: float) -> None:
    """Read until the other end closes, whatever it says.

    Raises:
        DeadlineExceededError: it has not closed in time.
    """
    while True:
        try:
            if not sock.recv(_CHUNK):
                return
        except BlockingIOError:
            _wait(sock, select.POLLIN, deadline)
        except ConnectionError:
            return


def read(sock: socket.socket, size: int, deadline: float | None = None) -> bytes:
    """Return exactly so many bytes; see `receive` for the errors."""
    parts: list[bytes] = []
    while size:
        try:
            part = sock.recv(min(size, _CHUNK))
        except BlockingIOError:
            _wait(sock, select.POLLIN, deadline)
            continue
        except ConnectionError:
            part = b""
        if not part:
            raise EOFError("the other process is gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _wait(sock: socket.socket, event: int, deadline: float | None) -> None:
    poller = select.poll()
    poller.register(sock, event)
    timeout_ms = None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
    if not poller.poll(timeout_ms):
        raise DeadlineExceededError
