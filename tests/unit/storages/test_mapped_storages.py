"""Storages that are mapped: one process, many, and some that die; nothing is left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import replay_processes
import replay_soak
from replay_rows import in_order, numbered

from rlruntime.errors import ConfigError, StorageError
from rlruntime.spec.training.storages import (
    MemoryMappedStorageConfig,
    SharedTensorStorageConfig,
    TensorStorageConfig,
    UniformSamplerConfig,
)
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.mapped import MappedStorage, MemoryMappedStorage, SharedTensorStorage
from rlruntime.storages.samplers import UniformSampler
from rlruntime.storages.storage import TensorStorage

SOAK_SECONDS = float(os.environ.get("RLJOB_SOAK_SECONDS", "2"))
LIMIT_S = 280 + 2 * SOAK_SECONDS
pytestmark = pytest.mark.timeout(20 + LIMIT_S)  # hundreds of processes are started, on a machine that may be busy
ROOT = Path(__file__).resolve().parents[3]
BOTH = pytest.mark.parametrize("storage", ["SharedTensor", "MemoryMapped"])


def leftovers() -> set[str]:
    """Return what lies in shared memory and in the folder for temporary files."""
    folders = ("/dev/shm", tempfile.gettempdir())
    return {f"{folder}/{name}" for folder in folders for name in os.listdir(folder) if "replay" in name}


def run_program(program: str, *arguments: str) -> dict[str, Any]:
    """Return what a program said that was run in a process of its own, and see that nothing stays behind."""
    before = leftovers()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": folder}
        command = [sys.executable, program, *arguments]
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        assert os.listdir(folder) == []
    assert leftovers() == before
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def run_cases(storage: str, *cases: str) -> dict[str, Any]:
    """Run cases of `replay_processes` one after the other; a start costs more than most of them."""
    return run_program(replay_processes.__file__, storage, *cases)


def test_a_writer_that_is_killed_before_any_line_neither_hangs_nor_tears() -> None:
    seen = run_cases("SharedTensor", "allocator_killed_everywhere", "writer_killed_everywhere")
    first, later = seen["allocator_killed_everywhere"], seen["writer_killed_everywhere"]
    assert first == {"kills": first["kills"], "torn": 0, "wrong": [], "survived": [0, 1, 2, 3, 4]}
    assert first["kills"] > 60
    # Of a full ring it costs at most the rows that were written over.
    assert later == {"kills": later["kills"], "torn": 0, "wrong": [], "fewest": 5}
    assert later["kills"] > 30


@BOTH
def test_allocators_writers_and_readers_that_are_killed_at_random_moments_stop_no_other(storage: str) -> None:
    whole = {"torn": 0, "failed": 0}
    assert run_cases(storage, "allocator_killed_at_random", "writer_and_reader_killed_at_random") == {
        "allocator_killed_at_random": whole,
        "writer_and_reader_killed_at_random": whole,
    }


@BOTH
def test_four_writers_and_four_readers_or_consumers_see_no_torn_row_and_lose_none(storage: str) -> None:
    assert run_cases(storage, "many_writers_and_readers", "consumers_share") == {
        "many_writers_and_readers": {"failed": 0, "torn": 0, "lost": [], "rows": 6400, "written": 6400},
        "consumers_share": {"failed": 0, "rows": 3200, "different": 3200, "left": 0},
    }


@pytest.mark.parametrize("storages", [("Tensor", "List"), ("SharedTensor", "MemoryMapped")])
def test_rows_that_are_written_and_read_at_once_for_a_while_are_whole_and_counted(storages: tuple[str, str]) -> None:
    # RLJOB_SOAK_SECONDS=60 does it for a minute each.
    for seen in run_program(replay_soak.__file__, str(SOAK_SECONDS), *storages).values():
        assert (seen["torn"], seen["lost"]) == (0, 0)
        assert seen["counted"] == seen["written"] > 0
        assert seen["seen"] > 0


def test_a_lock_ends_with_its_holder_although_a_child_of_it_lives_on() -> None:
    expected = list(range(2, 10))
    assert run_cases("SharedTensor", "holder_killed") == {"holder_killed": {"reading": expected, "writing": expected}}


def make_storage(kind: str, capacity: int = 6) -> MappedStorage:
    if kind == "SharedTensor":
        return SharedTensorStorage(SharedTensorStorageConfig(capacity=capacity))
    return MemoryMappedStorage(MemoryMappedStorageConfig(capacity=capacity, shared=kind == "MemoryMapped shared"))


KINDS = pytest.mark.parametrize("kind", ["SharedTensor", "MemoryMapped", "MemoryMapped shared"])


@KINDS
def test_rows_wrap_around_and_a_checkpoint_moves_between_kinds_of_storage(kind: str) -> None:
    buffer = ReplayBuffer(make_storage(kind), in_order())
    buffer.extend(numbered(0, 10))
    assert buffer.sample(6)["action"].tolist() == [4, 5, 6, 7, 8, 9]
    plain = ReplayBuffer(TensorStorage(TensorStorageConfig(capacity=6)), in_order())
    plain.load_state_dict(buffer.state_dict())
    back = ReplayBuffer(make_storage(kind), in_order())
    back.load_state_dict(plain.state_dict())
    for each in (plain, back):
        each.extend(numbered(10, 12))
        each.sampler = in_order()
        assert each.sample(6)["action"].tolist() == [6, 7, 8, 9, 10, 11]
    back.storage.close()
    back.storage.close()


@KINDS
def test_nothing_is_left_when_the_storage_is_dropped(kind: str) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    before = leftovers()
    for _ in range(5):
        buffer = ReplayBuffer(make_storage(kind), in_order())
        buffer.extend(numbered(0, 4))
        assert leftovers() == before
        del buffer
    assert len(os.listdir("/proc/self/fd")) == descriptors


def num_mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


@KINDS
def test_batches_that_are_kept_and_buffers_that_are_dropped_hold_no_mappings(kind: str) -> None:
    buffer = ReplayBuffer(make_storage(kind, 64), in_order(), batch_size=16)
    buffer.extend(numbered(0, 64))
    buffer.sample()
    before = num_mappings()
    kept = [buffer.sample() for _ in range(1000)]
    for _ in range(50):
        dropped = ReplayBuffer(make_storage(kind), in_order())
        dropped.extend(numbered(0, 4))
        dropped.snapshot()
    assert num_mappings() < before + 20
    assert len(kept) == 1000


def test_a_folder_that_can_not_be_written_and_a_disk_without_room_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"a file for replay rows can't be made in .*nowhere: No such file"):
        MemoryMappedStorage(MemoryMappedStorageConfig(capacity=4, folder=str(tmp_path / "nowhere")))
    storage = MemoryMappedStorage(MemoryMappedStorageConfig(capacity=1 << 50, folder=str(tmp_path)))
    with pytest.raises(StorageError, match=r"there is no room for \d+ bytes of replay rows"):
        ReplayBuffer(storage).extend(numbered(0, 1))


def test_a_second_buffer_over_the_same_file_sees_the_rows_of_the_first() -> None:
    config = SharedTensorStorageConfig(capacity=6)
    first = ReplayBuffer(SharedTensorStorage(config), in_order())
    assert isinstance(first.storage, SharedTensorStorage)
    second = ReplayBuffer(SharedTensorStorage.attach(config, first.storage.descriptor), in_order())
    with pytest.raises(TooFewRowsError, match="the buffer holds 0 rows"):
        second.sample(2)
    first.extend(numbered(0, 4))
    assert second.sample(4)["action"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match=r"lack action, next\.reward"):
        second.extend({"observation": np.zeros((1, 2), np.float32)})
    other = ReplayBuffer(
        SharedTensorStorage.attach(SharedTensorStorageConfig(capacity=7), first.storage.descriptor), in_order()
    )
    with pytest.raises(ConfigError, match="capacity: the storage has another capacity where it was made"):
        len(other)


def test_waiting_for_rows_ends_at_its_deadline() -> None:
    storage = make_storage("SharedTensor")
    with pytest.raises(TooFewRowsError, match=r"the buffer holds 0 rows after 0.05 s, not 2"):
        storage.wait_for_rows(2, timeout_s=0.05)
    ReplayBuffer(storage).extend(numbered(0, 2))
    storage.wait_for_rows(2, timeout_s=0.05)


def _write_and_draw(buffer: ReplayBuffer, first: int, answer: Connection) -> None:
    buffer.extend(numbered(first, first + 3))
    storage = buffer.storage
    assert isinstance(storage, MappedStorage)
    storage.wait_for_rows(6, 60)
    answer.send(buffer.sample(20).positions.tolist())


@BOTH
def test_processes_that_get_an_uninitialised_buffer_write_to_one_and_draw_differently(storage: str) -> None:
    buffer = replay_processes.make_buffer(storage, 6)
    context = multiprocessing.get_context("spawn")
    started = []
    for number in range(2):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_write_and_draw, args=(buffer, 3 * number, theirs))
        process.start()
        theirs.close()
        started.append((process, ours))
    draws = []
    for process, ours in started:
        draws.append(ours.recv())
        process.join(60)
        assert process.exitcode == 0
    with buffer.storage.reading():
        assert sorted(buffer.storage.column("action").tolist()) == [0, 1, 2, 3, 4, 5]
    draws.append(buffer.sample(20).positions.tolist())
    assert len({tuple(draw) for draw in draws}) == 3


def test_rows_that_are_not_shared_do_not_travel() -> None:
    import pickle

    for storage in (make_storage("MemoryMapped"), TensorStorage(TensorStorageConfig(capacity=6))):
        buffer = ReplayBuffer(storage, UniformSampler(UniformSamplerConfig(), seed=0))
        arrived = pickle.loads(pickle.dumps(buffer))
        arrived.extend(numbered(0, 2))
        assert (len(arrived), len(buffer)) == (2, 0)
        buffer.extend(numbered(0, 2))
        with pytest.raises(ConfigError, match="can't travel to another process"):
            pickle.dumps(buffer)


def test_batches_drawn_ahead_whose_rows_another_wrote_over_are_drawn_anew() -> None:
    config = SharedTensorStorageConfig(capacity=8)
    storage = SharedTensorStorage(config)
    reader = ReplayBuffer(storage, in_order(), batch_size=4, prefetch=1)
    writer = ReplayBuffer(SharedTensorStorage.attach(config, storage.descriptor))
    writer.extend(numbered(0, 8))
    assert reader.sample()["action"].tolist() == [0, 1, 2, 3]
    reader._ahead.finish_copies()
    writer.extend(numbered(8, 16))
    assert reader.sample()["action"].tolist() == [4, 5, 6, 7]  # copied in time
    reader._ahead.finish_copies()
    assert reader.sample()["action"].tolist() == [8, 9, 10, 11]
    reader.close()
