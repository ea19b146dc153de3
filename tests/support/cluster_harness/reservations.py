"""Ports and numbers that no other cluster on this machine takes.

A reservation is an abstract Unix socket: only one process can bind its name, the kernel frees it with the process, and
no file is left. Ports lie below the range that the kernel hands out for outgoing connections, so none of these takes
one.
"""

from __future__ import annotations

import random
import socket

from cluster_harness.errors import ClusterError

_FIRST_PORT, _LAST_PORT = 20_000, 29_999
_NUMBERS = 200


class Reservations:
    """Holds what one cluster has taken; ``close`` gives all of it back."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []
        self._random = random.SystemRandom()

    def port(self) -> int:
        """Return a TCP port of 127.0.0.1 that is free, and is left to us by every other cluster.

        Raises:
            ClusterError: a thousand ports are taken.
        """
        for _ in range(1000):
            port = self._random.randint(_FIRST_PORT, _LAST_PORT)
            if self._hold(f"port-{port}") and _is_free(port):
                return port
        raise ClusterError(f"no free TCP port between {_FIRST_PORT} and {_LAST_PORT}")

    def number(self, kind: str) -> int:
        """Return the lowest number from 0 of this kind that no other cluster has.

        Raises:
            ClusterError: all are taken.
        """
        for number in range(_NUMBERS):
            if self._hold(f"{kind}-{number}"):
                return number
        raise ClusterError(f"all {_NUMBERS} numbers of the kind {kind} are taken")

    def close(self) -> None:
        """Give everything back."""
        while self._held:
            self._held.pop().close()

    def _hold(self, name: str) -> bool:
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            holder.bind(f"\0rljob-cluster-{name}")
        except OSError:
            holder.close()
            return False
        self._held.append(holder)
        return True


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
