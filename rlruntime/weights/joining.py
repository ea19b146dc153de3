"""How a process becomes a receiver: by the connection that its publisher made, whatever the scheme."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import Any

from rlruntime.errors import ConfigError
from rlruntime.weights.manifest import Manifest, describe
from rlruntime.weights.protocol import Weights, WeightSyncError
from rlruntime.weights.schemes import pipe, shared_memory, wire
from rlruntime.weights.schemes.remote import ACKNOWLEDGE_TIMEOUT_S, RemoteReceiver


def join(sock: socket.socket, targets: Weights, *, timeout_s: float = 120.0) -> RemoteReceiver:
    """Agree with the publisher on the manifest, and return the receiver that its scheme asks for.

    Args:
        sock: what ``RemotePublisher.invite`` returned, in the process that acts; it is closed with the receiver.
        targets: models to write into, of the same names, shapes, dtypes and ties as those published.
        timeout_s: seconds that the publisher's first message may take.

    Raises:
        ConfigError: the targets are others than what is published; the publisher is told why.
        WeightSyncError: the publisher is gone or silent.
    """
    link = wire.Link(sock)
    descriptors: list[int] = []
    try:
        try:
            text, descriptors = link.read_hello(time.monotonic() + timeout_s)
        except wire.DeadlineExceededError:
            raise WeightSyncError(f"the publisher said nothing within {timeout_s:g} s") from None
        except (EOFError, OSError):
            raise WeightSyncError("the publisher is gone") from None
        receiver = _agree(link, json.loads(text), descriptors, targets)
        with contextlib.suppress(OSError):  # it is gone, as the first acquisition will find
            link.send(wire.JOINED, 0, timeout_s=ACKNOWLEDGE_TIMEOUT_S)
        return receiver
    except BaseException:
        link.close()
        raise
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _agree(link: wire.Link, hello: dict[str, Any], descriptors: list[int], targets: Weights) -> RemoteReceiver:
    try:
        manifest = Manifest.from_json(hello["manifest"])
        difference = manifest.difference(describe(targets))
        if difference:
            raise ConfigError(
                f"this receiver's weights are not those that are published: {difference}",
                remedy="build it from the same network",
            )
        if hello["scheme"] == pipe.SCHEME:
            return pipe.PipeReceiver(link, manifest, targets, hello["round"])
        if hello["scheme"] == shared_memory.SCHEME:
            return shared_memory.SharedMemoryReceiver(
                link, manifest, targets, hello["round"], memory_fd=descriptors[0], num_slots=hello["slots"]
            )
        raise ConfigError("unknown scheme of weights", value=hello["scheme"], remedy="use one version of rljob")
    except Exception as error:
        with contextlib.suppress(OSError, wire.DeadlineExceededError):
            link.send(wire.REFUSED, 0, f"{type(error).__name__}: {error}", timeout_s=ACKNOWLEDGE_TIMEOUT_S)
        raise
