"""Copies of a buffer's state: whole ones, ones that follow it, and none at all."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_rows import in_order, numbered, tensor_buffer

from rlruntime.spec.training.storages import (
    ConsumingSamplerConfig,
    MaxValueWriterConfig,
    MemoryMappedStorageConfig,
    SharedTensorStorageConfig,
    TensorStorageConfig,
)
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.mapped import MemoryMappedStorage, SharedTensorStorage
from rlruntime.storages.samplers import ConsumingSampler
from rlruntime.storages.storage import ArrayStorage, TensorStorage
from rlruntime.storages.writers import MaxValueWriter
from rlruntime.trainers.state_tree import load_state, save_state

STORAGES: dict[str, Callable[[int], ArrayStorage]] = {
    "Tensor": lambda capacity: TensorStorage(TensorStorageConfig(capacity=capacity)),
    "SharedTensor": lambda capacity: SharedTensorStorage(SharedTensorStorageConfig(capacity=capacity)),
    "MemoryMapped": lambda capacity: MemoryMappedStorage(MemoryMappedStorageConfig(capacity=capacity)),
}


def rows_of(state: dict[str, Any]) -> bytes:
    """Return the rows of a state, oldest first."""
    return b"".join(piece.tobytes() for piece in state["storage"]["rows"])


@pytest.mark.parametrize("kind", STORAGES)
@settings(deadline=None, max_examples=30)
@given(capacity=st.integers(1, 9), sizes=st.lists(st.integers(0, 25), min_size=1, max_size=8))
def test_a_snapshot_that_follows_is_what_a_whole_copy_is_at_any_write_position(
    kind: str, capacity: int, sizes: list[int]
) -> None:
    buffer = ReplayBuffer(STORAGES[kind](capacity), in_order())
    written = 0
    for number, size in enumerate(sizes):
        buffer.extend(numbered(written, written + size))
        written += size
        if number % 3 != 1:  # several writes in between
            snapshot, whole = buffer.snapshot(), buffer.state_dict()
            assert rows_of(snapshot) == rows_of(whole)
            assert snapshot["storage"].keys() == whole["storage"].keys()
            assert {k: v for k, v in snapshot["storage"].items() if k != "rows"} == {
                k: v for k, v in whole["storage"].items() if k != "rows"
            }


def test_a_snapshot_costs_the_rows_written_since_the_last_one() -> None:
    buffer = tensor_buffer(50_000, sampler=in_order())
    buffer.extend(numbered(0, 50_000))
    row_bytes = buffer.snapshot()["storage"]["rows"][0].shape[1]
    buffer.extend(numbered(0, 100))
    tracemalloc.start()
    buffer.snapshot()
    _, followed = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    buffer.state_dict()
    _, copied = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert followed < 5_000 * row_bytes
    assert 50_000 * row_bytes <= copied < 1.2 * 50_000 * row_bytes  # once, and no positions beside


def test_a_snapshot_follows_rows_that_are_loaded_consumed_and_replaced(tmp_path: Path) -> None:
    source = tensor_buffer(6, sampler=in_order())
    source.extend(numbered(50, 56))
    loaded = tensor_buffer(6, sampler=in_order())
    loaded.extend(numbered(0, 6))
    loaded.snapshot()
    loaded.load_state_dict(source.state_dict())  # the same positions, other rows
    assert rows_of(loaded.snapshot()) == rows_of(source.state_dict())

    consumed = tensor_buffer(6, sampler=ConsumingSampler(ConsumingSamplerConfig(), seed=0))
    consumed.extend(numbered(0, 5))
    consumed.snapshot()
    consumed.sample(3)
    consumed.extend(numbered(5, 8))
    assert rows_of(consumed.snapshot()) == rows_of(consumed.state_dict())

    best = tensor_buffer(3, writer=MaxValueWriter(MaxValueWriterConfig()))
    best.extend(numbered(0, 3))
    best.snapshot()
    best.extend(numbered(10, 12))
    assert rows_of(best.snapshot()) == rows_of(best.state_dict())


def test_a_snapshot_sees_what_another_process_loaded() -> None:
    config = SharedTensorStorageConfig(capacity=6)
    storage = SharedTensorStorage(config)
    ours = ReplayBuffer(storage, in_order())
    theirs = ReplayBuffer(SharedTensorStorage.attach(config, storage.descriptor), in_order())
    ours.extend(numbered(0, 6))
    ours.snapshot()
    source = tensor_buffer(6, sampler=in_order())
    source.extend(numbered(50, 56))
    theirs.load_state_dict(source.state_dict())
    assert rows_of(ours.snapshot()) == rows_of(source.state_dict())


def test_a_snapshot_keeps_the_rows_of_its_time() -> None:
    buffer = tensor_buffer(6, sampler=in_order())
    buffer.extend(numbered(0, 6))
    snapshot, whole = buffer.snapshot(), buffer.state_dict()
    buffer.extend(numbered(6, 10))
    assert rows_of(snapshot) == rows_of(whole)
    other = tensor_buffer(6, sampler=in_order())
    other.load_state_dict(snapshot)
    assert other.sample(6)["action"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", STORAGES)
def test_a_state_without_a_copy_is_written_from_the_rows_themselves(kind: str, tmp_path: Path) -> None:
    buffer = ReplayBuffer(STORAGES[kind](7), in_order())
    buffer.extend(numbered(0, 10))
    state = buffer.state_dict(copy=False)
    pieces = state["storage"]["rows"]
    assert [len(piece) for piece in pieces] == [4, 3]
    assert all(np.shares_memory(piece, buffer.storage.column("action")) for piece in pieces)
    save_state(state, tmp_path)
    other = tensor_buffer(9, sampler=in_order())
    other.load_state_dict(load_state(tmp_path))
    assert other.sample(7)["action"].tolist() == [3, 4, 5, 6, 7, 8, 9]
