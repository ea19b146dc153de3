"""Four writers and four readers at once on rows that show when they are torn. Run as a program, it says what was seen
as JSON, by storage.

usage: python replay_soak.py SECONDS STORAGE...
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from replay_processes import checked_rows, num_torn

from rlruntime.registry import build
from rlruntime.spec.training.component import Component
from rlruntime.storages import buffer as _buffer
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.lists import ItemBatch
from rlruntime.storages.storage import ArrayStorage

CAPACITY, NUM_WRITERS = 2000, 4
CONFIGS: dict[str, dict[str, Any]] = {"MemoryMapped": {"shared": True}}
SAMPLERS = ("Uniform", "Prioritized", "WithoutReplacement", "Uniform")  # the last one draws ahead


def make_storage(kind: str) -> ArrayStorage:
    """Return an uninitialised storage."""
    component = Component(type=kind, config={"capacity": CAPACITY, **CONFIGS.get(kind, {})})
    storage = build("storage", component, field="storage")
    assert isinstance(storage, ArrayStorage)
    return storage


def write(storage: ArrayStorage, writer: int, until: float) -> dict[str, int]:
    """Write batches of different sizes until then; row ``k`` of a writer has the number ``4 k + writer``."""
    buffer, rng, written = _buffer.ReplayBuffer(storage), np.random.default_rng(writer), 0
    while time.monotonic() < until:
        count = int(rng.integers(1, 65))
        rows = checked_rows(NUM_WRITERS * np.arange(written, written + count) + writer)
        as_objects = [{name: column[at] for name, column in rows.items()} for at in range(count)]
        positions = buffer.extend(as_objects if type(storage).__name__ == "ListStorage" else rows)
        assert np.array_equal(positions, positions[0] + np.arange(count))
        written += count
    return {"written": written}


def read(storage: ArrayStorage, reader: int, until: float) -> dict[str, int]:
    """Draw batches until then, each reader with another sampler, and count rows that are torn."""
    sampler = build("sampler", Component(type=SAMPLERS[reader]), reader, field="sampler")
    buffer = _buffer.ReplayBuffer(storage, sampler, batch_size=32, prefetch=2 * (reader == len(SAMPLERS) - 1))
    seen = torn = 0
    while time.monotonic() < until:
        try:
            batch = buffer.sample()
        except TooFewRowsError:
            continue
        seen += len(batch)
        if isinstance(batch, ItemBatch):
            torn += sum(bool((item["body"] != item["number"]).any()) for item in batch.items)
        else:
            torn += num_torn(batch["number"], batch["body"])
        if sampler.has_priorities:
            buffer.update_priorities(batch.positions, np.ones(len(batch)))
    buffer.close()
    return {"seen": seen, "torn": torn}


Work = Callable[[ArrayStorage, int, float], dict[str, int]]


def _tell(work: Work, storage: ArrayStorage, number: int, until: float, answer: Connection) -> None:
    torch.set_num_threads(1)
    answer.send(work(storage, number, until))
    answer.close()


def in_processes(storage: ArrayStorage, until: float) -> list[dict[str, int]]:
    """Let all of them work, each in a process of its own."""
    context, started = multiprocessing.get_context("fork"), []
    for work in (write, read):
        for number in range(4):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_tell, args=(work, storage, number, until, theirs))
            process.start()
            theirs.close()
            started.append((process, ours))
    answers = [ours.recv() for _, ours in started]
    for process, _ in started:
        process.join(30)
        assert process.exitcode == 0
    return answers


def in_threads(storage: ArrayStorage, until: float) -> list[dict[str, int]]:
    """Let all of them work, each in a thread of its own."""
    answers: list[dict[str, int]] = []

    def tell(work: Work, number: int) -> None:
        answers.append(work(storage, number, until))

    threads = [threading.Thread(target=tell, args=(work, number)) for work in (write, read) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == len(threads)
    return answers


def rows_lost(storage: ArrayStorage) -> int:
    """Return how many rows are missing among those at hand: each writer's must be its last ones, without a gap."""
    with storage.reading():
        rows = storage.gather(np.arange(*storage.window))
    numbers = np.array([item["number"] for item in rows]) if rows.dtype.hasobject else rows["number"]
    lost = min(CAPACITY, storage.window.end) - len(set(numbers.tolist()))
    for writer in range(NUM_WRITERS):
        own = numbers[numbers % NUM_WRITERS == writer] // NUM_WRITERS
        lost += int(np.count_nonzero(np.diff(own) != 1))
    return lost


def soak(kind: str, seconds: float) -> dict[str, int]:
    """Return what was seen of one storage: processes work where it is shared, threads where it isn't."""
    storage = make_storage(kind)
    until = time.monotonic() + seconds
    answers = (in_processes if storage.is_shared else in_threads)(storage, until)
    total = {key: sum(answer.get(key, 0) for answer in answers) for key in ("written", "seen", "torn")}
    return {**total, "counted": storage.window.end, "lost": rows_lost(storage)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({kind: soak(kind, float(sys.argv[1])) for kind in sys.argv[2:]}))
