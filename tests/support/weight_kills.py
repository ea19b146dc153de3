"""A program that kills receivers of weights at random moments, and says as JSON what the publisher and a survivor saw.

Arguments: the scheme's publisher as ``module:Class``, how many to kill, a seed. Receivers are forked, for a fresh
interpreter would take seconds to import torch; each opens the scheme's memory for itself, as any receiver does.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable

import torch
from weight_processes import extremes, fill, make_models

from rlruntime.weights.joining import join
from rlruntime.weights.protocol import WeightSyncError

SIZE = 1 << 15
LAST = 200.0
TIMEOUT_S = 60.0


def main(publisher_name: str, kills: int, seed: int) -> None:
    """Kill, and print the JSON."""
    torch.set_num_threads(1)
    module, _, name = publisher_name.partition(":")
    models = make_models(SIZE)
    publisher = getattr(importlib.import_module(module), name)(models, timeout_s=TIMEOUT_S)
    moments = random.Random(seed)
    read_end, write_end = os.pipe()
    survivor = _fork(publisher.invite("survivor"), lambda sock: _survive(sock, write_end))
    os.close(write_end)
    lost = 0
    for _ in range(kills):
        victim = _fork(publisher.invite("victim"), _follow)
        if moments.random() < 0.8:  # else it may die before it has joined
            publisher.wait_joined(TIMEOUT_S)
        until = time.monotonic() + moments.uniform(0.0, 0.03)
        while time.monotonic() < until:
            publisher.publish(fill(models, 1 + publisher.version % 100))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        try:
            publisher.publish(fill(models, 1 + publisher.version % 100))
        except WeightSyncError as error:
            lost += list(error.outcomes) == ["victim"]
    publisher.remove("victim")
    publication = publisher.publish(fill(models, int(LAST)))
    applied = {name: outcome.version for name, outcome in publication.wait_applied(TIMEOUT_S).items()}
    seen = json.loads(os.read(read_end, 10_000))
    publisher.close()
    os.waitpid(survivor, 0)
    print(json.dumps({"lost": lost, "applied_last": applied == {"survivor": publication.version}, **seen}))


def _fork(sock: socket.socket, act: Callable[[socket.socket], None]) -> int:
    with sock:
        pid = os.fork()
        if pid == 0:
            try:
                act(sock)
            finally:
                os._exit(0)
    return pid


def _follow(sock: socket.socket) -> None:
    receiver = join(sock, make_models(SIZE))
    while True:
        receiver.acquire(receiver.version + 1, TIMEOUT_S)


def _survive(sock: socket.socket, write_end: int) -> None:
    models = make_models(SIZE)
    receiver = join(sock, models)
    mixtures, reads = 0, 0
    low = high = 0.0
    while (low, high) != (LAST, LAST):
        receiver.acquire(receiver.version + 1, TIMEOUT_S)
        low, high = extremes(models)
        mixtures, reads = mixtures + (low != high), reads + 1
    os.write(write_end, json.dumps({"mixtures": mixtures, "read_some": reads > 10}).encode())
    receiver.acquire(receiver.version + 1, TIMEOUT_S)  # a member until the publisher is closed


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
