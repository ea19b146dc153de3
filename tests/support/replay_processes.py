"""Processes that share a replay buffer, some of which are killed. Run as a program, it says what was seen as JSON, one
entry a case.

usage: python replay_processes.py STORAGE CASE...
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import torch

from rlruntime.spec.training.storages import (
    ConsumingSamplerConfig,
    MemoryMappedStorageConfig,
    SharedTensorStorageConfig,
    UniformSamplerConfig,
)
from rlruntime.storages import mapped
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.samplers import ConsumingSampler, UniformSampler

WIDTH = 200
LIMIT_S = 60
STORAGES_FOLDER = os.path.dirname(mapped.__file__)
KILLED_IN = ("mapped.py", "locks.py", "storage.py", "writers.py")


def make_buffer(storage: str, capacity: int, seed: int = 0) -> ReplayBuffer:
    """Return an uninitialised buffer."""
    made: mapped.MappedStorage
    if storage == "SharedTensor":
        made = mapped.SharedTensorStorage(SharedTensorStorageConfig(capacity=capacity))
    else:
        made = mapped.MemoryMappedStorage(MemoryMappedStorageConfig(capacity=capacity, shared=True))
    return ReplayBuffer(made, UniformSampler(UniformSamplerConfig(), seed=seed), batch_size=64)


def checked_rows(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Return wide rows that hold a number many times, so that half a row is seen."""
    return {"number": numbers.astype(np.int64), "body": np.repeat(numbers[:, None], WIDTH, 1).astype(np.float64)}


def num_torn(numbers: torch.Tensor, bodies: torch.Tensor) -> int:
    """Return how many rows don't hold one number alone."""
    return int((bodies != numbers[:, None]).any(1).sum())


def rows_at_hand(buffer: ReplayBuffer) -> tuple[list[int], int]:
    """Return the numbers of all rows, oldest first, and how many rows are torn."""
    storage = buffer.storage
    with storage.reading():
        if storage.layout is None:
            return [], 0
        rows = storage.gather(np.arange(*storage.window))
    return rows["number"].tolist(), num_torn(torch.tensor(rows["number"]), torch.tensor(rows["body"]))


def start(work: Callable[[], None]) -> int:
    """Run ``work`` in a process of its own; return its id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.alarm(LIMIT_S)  # one that waits longer for another has failed
        work()
        status = 0
    finally:
        os._exit(status)


def how_it_ended(pid: int) -> int:
    """Return the exit code of a process, negative for a signal, once it has ended."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid: int) -> None:
    """Kill a process as it stands, and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    assert how_it_ended(pid) == -signal.SIGKILL


def killed_at_line(count: int, work: Callable[[], None]) -> Callable[[], None]:
    """Return ``work`` that is killed before it runs the ``count``-th line of what writes and locks."""

    def traced() -> None:
        left = count

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal left
            folder, file = os.path.split(frame.f_code.co_filename)
            if folder != STORAGES_FOLDER or file not in KILLED_IN:
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        work()

    return traced


def extend(buffer: ReplayBuffer, numbers: np.ndarray) -> Callable[[], None]:
    """Return work that writes rows."""

    def work() -> None:
        buffer.extend(checked_rows(numbers))

    return work


def allocator_killed_everywhere(storage: str) -> dict[str, Any]:
    """Kill the first process with rows before every line that it runs, and look on with another."""
    torn, wrong, line = 0, [], 0
    while True:
        buffer = make_buffer(storage, 8)
        ended = how_it_ended(start(killed_at_line(line, extend(buffer, np.arange(5)))))
        survived, bad = rows_at_hand(buffer)
        torn += bad
        buffer.extend(checked_rows(np.arange(100, 106)))
        numbers, bad = rows_at_hand(buffer)
        torn += bad
        if survived not in ([], [0, 1, 2, 3, 4]) or numbers != (survived + list(range(100, 106)))[-8:]:
            wrong.append([line, survived, numbers])
        if ended == 0:
            return {"kills": line, "torn": torn, "wrong": wrong, "survived": survived}
        assert ended == -signal.SIGKILL
        line += 1


def writer_killed_everywhere(storage: str) -> dict[str, Any]:
    """Kill a writer to a full ring before every line that it runs."""
    torn, wrong, line, fewest = 0, [], 0, 8
    buffer = make_buffer(storage, 8)
    buffer.extend(checked_rows(np.arange(8)))
    written = 8
    while True:
        before, _ = rows_at_hand(buffer)
        fresh = list(range(written, written + 3))
        written += 3
        ended = how_it_ended(start(killed_at_line(line, extend(buffer, np.array(fresh)))))
        numbers, bad = rows_at_hand(buffer)
        torn += bad
        fewest = min(fewest, len(numbers))
        if numbers not in (before, before[3:], before[3:] + fresh, (before + fresh)[-8:]):
            wrong.append([line, before, numbers])
        buffer.extend(checked_rows(np.arange(written, written + 8)))
        written += 8
        if ended == 0:
            return {"kills": line, "torn": torn, "wrong": wrong, "fewest": fewest}
        line += 1


def allocator_killed_at_random(storage: str) -> dict[str, Any]:
    """Kill the first process with rows at 50 random moments while two others wait to read and to write."""
    chance = random.Random(0)
    torn, failed = 0, 0
    for _ in range(50):
        buffer = make_buffer(storage, 256)
        first = start(lambda buffer=buffer: write_rows(buffer))  # type: ignore[misc]
        time.sleep(chance.uniform(0, 0.01))
        others = go_on(buffer)
        time.sleep(chance.uniform(0, 0.005))
        kill(first)
        failed += sum(how_it_ended(pid) != 0 for pid in others)
        torn += rows_at_hand(buffer)[1]
    return {"torn": torn, "failed": failed}


def writer_and_reader_killed_at_random(storage: str) -> dict[str, Any]:
    """Kill a writer and a reader at 12 random moments each while two others read and write on."""
    chance = random.Random(1)
    torn, failed = 0, 0
    buffer = make_buffer(storage, 256)
    buffer.extend(checked_rows(np.arange(64)))
    for _ in range(12):
        victims = [start(lambda: write_rows(buffer)), start(lambda: read_rows(buffer))]
        others = go_on(buffer)
        for pid in chance.sample(victims, 2):
            time.sleep(chance.uniform(0, 0.01))
            kill(pid)
        failed += sum(how_it_ended(pid) != 0 for pid in others)
        torn += rows_at_hand(buffer)[1]
    return {"torn": torn, "failed": failed}


def write_rows(buffer: ReplayBuffer, times: int | None = None) -> None:
    """Write 64 rows, so many times or for ever."""
    for _ in itertools.repeat(None) if times is None else range(times):
        buffer.extend(checked_rows(np.arange(64)))


def read_rows(buffer: ReplayBuffer, times: int | None = None) -> None:
    """Read batches, so many or for ever, and see that no row is torn."""
    assert isinstance(buffer.storage, mapped.MappedStorage)
    buffer.storage.wait_for_rows(64, LIMIT_S)
    for _ in itertools.repeat(None) if times is None else range(times):
        batch = buffer.sample()
        assert num_torn(batch["number"], batch["body"]) == 0


def go_on(buffer: ReplayBuffer) -> list[int]:
    """Let two processes do their work, one that reads and one that writes."""
    return [start(lambda: read_rows(buffer, 10)), start(lambda: write_rows(buffer, 10))]


def write_groups(buffer: ReplayBuffer, writer: int) -> None:
    """Write one member of each of ten groups."""
    for group in range(10):
        buffer.extend({"group": np.array([group]), "writer": np.array([writer])})


def consumers_share(storage: str) -> dict[str, Any]:
    """Let four processes write and four consume, each batch told through a pipe once it is there."""
    num_batches, num_rows = 50, 16
    total = 4 * num_batches * num_rows
    buffer = make_buffer(storage, total)
    buffer.sampler = ConsumingSampler(ConsumingSamplerConfig(), seed=0)
    ours, theirs = os.pipe()

    def write(writer: int) -> None:
        for batch in range(num_batches):
            first = (writer * num_batches + batch) * num_rows
            buffer.extend(checked_rows(np.arange(first, first + num_rows)))

    def consume() -> None:
        while buffer.num_written < total or len(buffer):
            try:
                batch = buffer.sample(8)
            except TooFewRowsError:
                continue
            assert num_torn(batch["number"], batch["body"]) == 0
            os.write(theirs, batch["number"].numpy().tobytes())  # short enough to be written as a whole

    pids = [start(consume) for _ in range(4)] + [start(lambda w=writer: write(w)) for writer in range(4)]  # type: ignore[misc]
    os.close(theirs)
    with os.fdopen(ours, "rb") as told:
        numbers = np.frombuffer(told.read(), np.int64)
    failed = sum(how_it_ended(pid) != 0 for pid in pids)
    return {"failed": failed, "rows": len(numbers), "different": len(set(numbers.tolist())), "left": len(buffer)}


def many_writers_and_readers(storage: str) -> dict[str, Any]:
    """Let four processes write and four read at once, from an uninitialised buffer on."""
    num_batches, num_rows = 100, 16
    total = 4 * num_batches * num_rows
    buffer = make_buffer(storage, total)

    def write(writer: int) -> None:
        for batch in range(num_batches):
            first = (writer * num_batches + batch) * num_rows
            buffer.extend(checked_rows(np.arange(first, first + num_rows)))

    def read() -> None:
        while len(buffer) < total:
            try:
                batch = buffer.sample()
            except TooFewRowsError:
                continue
            assert num_torn(batch["number"], batch["body"]) == 0

    pids = [start(read) for _ in range(4)] + [start(lambda w=writer: write(w)) for writer in range(4)]  # type: ignore[misc]
    failed = sum(how_it_ended(pid) != 0 for pid in pids)
    numbers, torn = rows_at_hand(buffer)
    lost = sorted(set(range(total)) - set(numbers))
    return {"failed": failed, "torn": torn, "lost": lost, "rows": len(numbers), "written": buffer.num_written}


def holder_killed(storage: str) -> dict[str, Any]:
    """Kill a process in the middle of a read or a write that it would never end, with a child of it alive."""
    outcome = {}
    for side in ("reading", "writing"):
        buffer = make_buffer(storage, 8)
        buffer.extend(checked_rows(np.arange(8)))
        ours, theirs = os.pipe()

        def hold(buffer: ReplayBuffer = buffer, side: str = side, told: int = theirs) -> None:
            with getattr(buffer.storage, side)():
                child = start(lambda: time.sleep(LIMIT_S))
                os.write(told, child.to_bytes(4, "little"))
                time.sleep(60)

        pid = start(hold)
        child = int.from_bytes(os.read(ours, 4), "little")
        kill(pid)
        buffer.extend(checked_rows(np.arange(8, 10)))
        outcome[side] = rows_at_hand(buffer)[0]
        os.kill(child, signal.SIGKILL)
    return outcome


CASES = {
    case.__name__: case
    for case in (
        allocator_killed_everywhere,
        writer_killed_everywhere,
        allocator_killed_at_random,
        writer_and_reader_killed_at_random,
        consumers_share,
        many_writers_and_readers,
        holder_killed,
    )
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({case: CASES[case](sys.argv[1]) for case in sys.argv[2:]}))
