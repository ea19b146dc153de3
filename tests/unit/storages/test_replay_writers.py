"""Which rows stay, and which are gone once drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_rows import in_order, numbered, tensor_buffer

from rlruntime.errors import ConfigError
from rlruntime.spec.training.storages import (
    ConsumingSamplerConfig,
    MaxValueWriterConfig,
    SharedTensorStorageConfig,
)
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.mapped import SharedTensorStorage
from rlruntime.storages.samplers import ConsumingSampler
from rlruntime.storages.writers import ImmutableWriter, MaxValueWriter
from rlruntime.trainers.state_tree import load_state, save_state


def best(capacity: int, key: str = "value") -> ReplayBuffer:
    writer = MaxValueWriter(MaxValueWriterConfig(value_key=key))
    return tensor_buffer(capacity, sampler=in_order(), writer=writer)


def valued(values: list[float]) -> dict[str, np.ndarray]:
    """Return rows with these values, and a second column that must stay with them."""
    return {"value": np.array(values, np.float32), "double": 2 * np.array(values, np.float64)}


def held(buffer: ReplayBuffer) -> list[float]:
    buffer.sampler = in_order()
    batch = buffer.sample(len(buffer))
    assert batch["double"].tolist() == (2 * batch["value"]).tolist()
    return sorted(batch["value"].tolist())


def test_the_largest_values_stay_and_smaller_rows_are_left_out() -> None:
    buffer = best(3)
    assert buffer.extend(valued([5, 1, 3])).tolist() == [0, 2, 1]
    assert buffer.extend(valued([0, 4])).tolist() == [-1, 2]
    assert held(buffer) == [3, 4, 5]
    assert len(buffer) == 3


@settings(deadline=None)
@given(st.integers(1, 6), st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=9), min_size=1, max_size=5))
def test_what_stays_is_the_top_of_all_that_was_written(capacity: int, batches: list[list[float]]) -> None:
    buffer = best(capacity)
    for batch in batches:
        buffer.extend(valued(batch))
    everything = sorted(value for batch in batches for value in batch)
    assert held(buffer) == everything[-capacity:]


def test_a_checkpoint_keeps_the_ranking(tmp_path: Path) -> None:
    first, second = best(3), best(3)
    first.extend(valued([5, 1, 3, 2]))
    save_state(first.state_dict(), tmp_path)
    second.load_state_dict(load_state(tmp_path))
    for buffer in (first, second):
        buffer.extend(valued([2.5, 0]))
        assert held(buffer) == [2.5, 3, 5]


def test_values_that_have_no_rank_and_storages_of_several_processes_are_refused() -> None:
    with pytest.raises(ConfigError, match="valueKey: the rows have no such column"):
        best(3, key="other").extend(valued([1]))
    with pytest.raises(ConfigError, match="valueKey: a value that isn't a number has no rank"):
        best(3).extend(valued([1, float("nan")]))
    shared = SharedTensorStorage(SharedTensorStorageConfig(capacity=4))
    with pytest.raises(ConfigError, match="a MaxValue writer can't share its storage"):
        ReplayBuffer(shared, writer=MaxValueWriter())


def test_an_immutable_buffer_gives_what_was_loaded_and_takes_nothing() -> None:
    source = tensor_buffer(4, sampler=in_order())
    source.extend(numbered(0, 4))
    buffer = tensor_buffer(4, sampler=in_order(), writer=ImmutableWriter())
    buffer.load_state_dict(source.state_dict())
    with pytest.raises(ConfigError, match="this buffer takes no new rows"):
        buffer.extend(numbered(4, 5))
    assert buffer.sample(4)["action"].tolist() == [0, 1, 2, 3]


def consuming(capacity: int) -> ReplayBuffer:
    return tensor_buffer(capacity, sampler=ConsumingSampler(ConsumingSamplerConfig(), seed=0))


def test_consumed_rows_come_once_in_order_and_make_room() -> None:
    buffer = consuming(6)
    buffer.extend(numbered(0, 5))
    assert buffer.sample(3)["action"].tolist() == [0, 1, 2]
    assert len(buffer) == 2
    buffer.extend(numbered(5, 9))
    assert buffer.sample(6)["action"].tolist() == [3, 4, 5, 6, 7, 8]
    with pytest.raises(TooFewRowsError, match="the buffer holds 0 rows, a batch needs 1"):
        buffer.sample(1)


def test_consumption_continues_from_a_checkpoint() -> None:
    first, second = consuming(6), consuming(6)
    first.extend(numbered(0, 9))
    first.sample(2)
    second.load_state_dict(first.state_dict())
    assert second.sample(4)["action"].tolist() == [5, 6, 7, 8]
    assert second.num_written == 9


def test_two_consumers_of_a_shared_storage_never_get_the_same_row() -> None:
    config = SharedTensorStorageConfig(capacity=8)
    storage = SharedTensorStorage(config)
    one = ReplayBuffer(storage, ConsumingSampler(ConsumingSamplerConfig(), seed=0))
    other = ReplayBuffer(
        SharedTensorStorage.attach(config, storage.descriptor), ConsumingSampler(ConsumingSamplerConfig(), seed=0)
    )
    one.extend(numbered(0, 8))
    drawn = [buffer.sample(2)["action"].tolist() for buffer in (one, other, other, one)]
    assert drawn == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_consumed_rows_can_not_be_drawn_ahead() -> None:
    with pytest.raises(ConfigError, match=r"prefetch: rows that are consumed can't be drawn ahead"):
        tensor_buffer(4, sampler=ConsumingSampler(ConsumingSamplerConfig(), seed=0), prefetch=1)
