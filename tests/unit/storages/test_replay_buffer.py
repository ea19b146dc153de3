"""The buffer: what goes in comes out, in any amount, at any write position, from a checkpoint, and ahead of time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_rows import in_order, numbered, tensor_buffer

from rlruntime.errors import CheckpointError, ConfigError
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.storages import (
    ReplayBufferConfig,
    TensorStorageConfig,
    UniformSamplerConfig,
    WithoutReplacementSamplerConfig,
)
from rlruntime.storages.batch import Batch
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.samplers import UniformSampler, WithoutReplacementSampler
from rlruntime.storages.storage import TensorStorage
from rlruntime.trainers.state_tree import load_state, save_state


def shuffled(seed: int = 3) -> WithoutReplacementSampler:
    return WithoutReplacementSampler(WithoutReplacementSamplerConfig(), seed=seed)


def assert_rows(batch: Batch, numbers: list[int]) -> None:
    """Every column must say the same row numbers."""
    expected = torch.tensor(numbers)
    assert torch.equal(batch["action"], expected)
    assert torch.equal(batch["observation"], torch.stack([expected, expected + 0.5], -1).float())
    assert torch.equal(batch["next.reward"], expected.float())
    assert torch.equal(batch["next.terminated"], expected % 7 == 6)


def test_rows_come_out_as_they_went_in() -> None:
    buffer = tensor_buffer(10, sampler=in_order())
    assert buffer.extend(numbered(0, 4)).tolist() == [0, 1, 2, 3]
    assert len(buffer) == 4
    batch = buffer.sample(4)
    assert_rows(batch, [0, 1, 2, 3])
    assert batch.positions.tolist() == [0, 1, 2, 3]
    assert batch["observation"].dtype == torch.float32
    assert batch["next.terminated"].dtype == torch.bool


@settings(deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(0, 25), min_size=1, max_size=8))
def test_the_newest_rows_stay_at_any_write_position(capacity: int, sizes: list[int]) -> None:
    buffer = tensor_buffer(capacity, sampler=in_order())
    written = 0
    for size in sizes:
        positions = buffer.extend(numbered(written, written + size))
        assert positions.tolist() == list(range(written, written + size))
        written += size
        assert len(buffer) == min(written, capacity)
        assert buffer.num_written == written
        if written:
            buffer.sampler = in_order()
            assert_rows(buffer.sample(capacity), list(range(max(0, written - capacity), written)))


def test_an_empty_batch_sets_no_layout() -> None:
    buffer = tensor_buffer(4, sampler=in_order())
    assert buffer.extend({"other": np.zeros((0, 3))}).tolist() == []
    assert len(buffer) == 0
    buffer.extend(numbered(0, 2))
    assert_rows(buffer.sample(2), [0, 1])


def test_tensordicts_and_nested_dicts_are_the_same_rows() -> None:
    from tensordict import TensorDict

    buffer = tensor_buffer(10, sampler=in_order())
    flat = {name: torch.from_numpy(column) for name, column in numbered(0, 2).items()}
    buffer.extend(TensorDict(flat, [2]).unflatten_keys("."))
    buffer.extend(
        {
            "next": {"reward": flat["next.reward"] + 2, "terminated": flat["next.terminated"]},
            "action": flat["action"] + 2,
            "observation": flat["observation"] + 2,
        }
    )
    batch = buffer.sample(4)
    assert_rows(batch, [0, 1, 2, 3])
    given_back = batch.to_tensordict()
    assert given_back.batch_size == torch.Size([4])
    assert given_back["next", "reward"].tolist() == [0, 1, 2, 3]
    assert given_back["position"].tolist() == [0, 1, 2, 3]


def test_a_rollout_of_parallel_environments_must_be_flattened_by_whoever_knows_its_order() -> None:
    from tensordict import TensorDict

    with pytest.raises(ConfigError, match=r"exactly one batch dimension \(got \[5, 2\]\); reshape a rollout"):
        tensor_buffer(10).extend(TensorDict({"a": torch.zeros(5, 2)}, [5, 2]))


def test_single_rows_are_added_without_a_dimension_of_rows() -> None:
    from tensordict import TensorDict

    buffer = tensor_buffer(4, sampler=in_order())
    assert buffer.add({"a": torch.tensor([1, 2]), "next": {"reward": np.float32(3)}}) == 0
    assert buffer.add(TensorDict({"a": torch.tensor([4, 5]), "next": {"reward": torch.tensor(6.0)}}, [])) == 1
    batch = buffer.sample(2)
    assert batch["a"].tolist() == [[1, 2], [4, 5]]
    assert batch["next.reward"].tolist() == [3.0, 6.0]


def test_a_batch_shares_no_memory_with_the_buffer_nor_with_the_next_batch() -> None:
    buffer = tensor_buffer(2, sampler=in_order())
    source = numbered(0, 2)
    buffer.extend(source)
    source["action"][:] = 99
    first, second = buffer.sample(2), buffer.sample(2)
    second["action"][:] = 77
    buffer.extend(numbered(2, 4))
    assert_rows(first, [0, 1])


def test_a_refused_batch_leaves_the_buffer_as_it_was() -> None:
    buffer = tensor_buffer(4, sampler=in_order())
    buffer.extend(numbered(0, 2))
    with pytest.raises(ConfigError):
        buffer.extend({**numbered(2, 4), "action": np.zeros((2, 3), np.int64)})
    assert_rows(buffer.sample(4), [0, 1])


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_empty_buffer_says_so(prefetch: int) -> None:
    buffer = tensor_buffer(4, batch_size=2, prefetch=prefetch)
    with pytest.raises(TooFewRowsError, match="the buffer is empty"):
        buffer.sample()
    buffer.extend(numbered(0, 1))
    assert_rows(buffer.sample(), [0, 0])
    buffer.close()


def test_columns_move_to_a_device_as_one_copy() -> None:
    buffer = tensor_buffer(4, sampler=in_order())
    buffer.extend(numbered(0, 3))
    columns = buffer.sample(3).to("meta")
    assert {name: (list(column.shape), column.dtype) for name, column in columns.items()} == {
        "observation": ([3, 2], torch.float32),
        "action": ([3], torch.int64),
        "next.reward": ([3], torch.float32),
        "next.terminated": ([3], torch.bool),
    }
    assert buffer.sample(3).to("cpu")["action"].tolist() == [0, 1, 2]


def test_a_buffer_is_built_from_its_config() -> None:
    config = ReplayBufferConfig(
        storage=Component(type="Tensor", config={"capacity": 8}),
        sampler=Component(type="WithoutReplacement", config={"dropLast": True}),
        batch_size=3,
    )
    buffer = ReplayBuffer.from_config(config, seed=1)
    buffer.extend(numbered(0, 8))
    assert len(buffer.sample()) == 3
    bad = config.model_copy(update={"sampler": Component(type="Unifrom")})
    with pytest.raises(ConfigError, match=r"replay\.sampler\.type: there is no sampler of this name.*did you mean"):
        ReplayBuffer.from_config(bad, seed=1)


_SLICES = {"type": "Slice", "config": {"sliceLength": 7}}


@pytest.mark.parametrize(
    ("section", "line"),
    [
        (
            {"sampler": _SLICES, "batchSize": 64},
            "spec.training.replay.batchSize: a batch must be a multiple of the 7 rows that come together (got 64); "
            "set it to 70",
        ),
        (
            {"sampler": {"type": "Consuming"}, "prefetch": 2},
            "spec.training.replay.prefetch: rows that are consumed can't be drawn ahead: they would be lost with this "
            "process (got 2); set it to 0",
        ),
        (
            {"nStep": {"steps": 3, "gamma": 0.9}, "writer": {"type": "MaxValue"}},
            "spec.training.replay.writer: NStep can't follow MaxValueWriter; use a RoundRobin writer",
        ),
        (
            {"sampler": _SLICES, "batchSize": 7, "hindsight": {"rewardFunction": "math:fsum"}},
            "spec.training.replay.hindsight: rows that come together would get different goals; "
            "use a sampler of single rows",
        ),
        (
            {"nStep": {"steps": 3, "gamma": 0.9}, "hindsight": {"rewardFunction": "math:fsum"}},
            "spec.training.replay.hindsight: rewards of another goal can't be summed over steps that pursued the old "
            "one; leave out nStep",
        ),
        (
            {"storage": {"type": "SharedTensor"}, "writer": {"type": "MaxValue"}},
            "spec.training.replay.writer: a MaxValue writer can't share its storage; use a storage that isn't shared",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused_by_the_field_of_the_manifest_before_any_row(
    section: dict[str, Any], line: str
) -> None:
    config = ReplayBufferConfig.model_validate(section)
    with pytest.raises(ConfigError) as refused:
        ReplayBuffer.from_config(config, seed=1, field="spec.training.replay")
    assert str(refused.value) == line


@pytest.mark.parametrize("storage", ["Tensor", "SharedTensor", "MemoryMapped"])
@pytest.mark.parametrize("sampler", ["Uniform", "WithoutReplacement", "Prioritized", "Slice", "Consuming"])
def test_every_sampler_draws_from_every_storage_of_arrays(storage: str, sampler: str) -> None:
    # Each row is one of trajectory 0, told by a number: several processes may write.
    slices = {"sliceLength": 2, "trajectoryKey": "trajectory"}
    config = ReplayBufferConfig(
        storage=Component(type=storage, config={"capacity": 12}),
        sampler=Component(type=sampler, config=slices if sampler == "Slice" else {}),
        batch_size=4,
    )
    buffer = ReplayBuffer.from_config(config, seed=1)
    for first in (0, 5, 10, 15):
        buffer.extend({**numbered(first, first + 5), "trajectory": np.zeros(5, np.int64)})
        batch = buffer.sample()
        numbers = batch["action"].reshape(-1)
        assert len(numbers) in ((1, 4) if sampler == "WithoutReplacement" else (4,))
        assert numbers.tolist() == batch.positions.tolist()
        assert torch.equal(batch["next.reward"].reshape(-1), numbers.float())
    buffer.storage.close()


MakeBuffer = Callable[[], ReplayBuffer]


def uniform_buffer() -> ReplayBuffer:
    return tensor_buffer(50, sampler=UniformSampler(UniformSamplerConfig(), seed=5), batch_size=8)


def passes_buffer() -> ReplayBuffer:
    return tensor_buffer(50, sampler=shuffled(), batch_size=8)


def ahead_buffer() -> ReplayBuffer:
    return tensor_buffer(50, sampler=shuffled(), batch_size=8, prefetch=3)


def positions_of(buffer: ReplayBuffer, num_batches: int) -> list[list[int]]:
    return [buffer.sample()["action"].tolist() for _ in range(num_batches)]


@pytest.mark.parametrize("make", [uniform_buffer, passes_buffer, ahead_buffer])
def test_a_buffer_from_a_checkpoint_gives_the_batches_that_the_first_would_have_given(
    make: MakeBuffer, tmp_path: Path
) -> None:
    first = make()
    first.extend(numbered(0, 63))
    positions_of(first, 3)
    first.extend(numbered(63, 80))
    save_state(first.state_dict(), tmp_path)
    second = make()
    second.load_state_dict(load_state(tmp_path))
    for buffer in (first, second):
        assert len(buffer) == 50
    for step in range(3):
        assert positions_of(first, 4) == positions_of(second, 4)
        for buffer in (first, second):
            buffer.extend(numbered(80 + 20 * step, 100 + 20 * step))
    states = (buffer.state_dict()["storage"] for buffer in (first, second))
    one, other = (b"".join(piece.tobytes() for piece in state["rows"]) for state in states)
    assert one == other
    first.close()
    second.close()


@pytest.mark.parametrize("make", [uniform_buffer, ahead_buffer])
def test_a_loaded_buffer_shares_nothing_with_its_source(make: MakeBuffer) -> None:
    first, second = make(), make()
    first.extend(numbered(0, 20))
    positions_of(first, 1)
    state = first.state_dict()
    second.load_state_dict(state)
    expected = positions_of(first, 5)
    for piece in state["storage"]["rows"]:
        piece[:] = 0
    for item in state["ahead"]:
        item["rows"][:] = 0
    first.extend(numbered(100, 150))
    assert positions_of(second, 5) == expected
    first.close()
    second.close()


def test_an_empty_buffer_is_saved_and_loaded_too() -> None:
    first, second = uniform_buffer(), uniform_buffer()
    second.load_state_dict(first.state_dict())
    for buffer in (first, second):
        buffer.extend(numbered(0, 9))
    assert positions_of(first, 2) == positions_of(second, 2)


def test_a_checkpoint_loads_into_another_capacity_where_its_rows_fit() -> None:
    first = tensor_buffer(6, sampler=in_order())
    first.extend(numbered(0, 10))
    second = tensor_buffer(9, sampler=in_order())
    second.load_state_dict(first.state_dict())
    second.extend(numbered(10, 12))
    second.sampler = in_order()
    assert_rows(second.sample(9), [4, 5, 6, 7, 8, 9, 10, 11])
    third = tensor_buffer(5, sampler=in_order())
    with pytest.raises(CheckpointError, match="the checkpoint holds 6 rows, the buffer takes 5"):
        third.load_state_dict(first.state_dict())


def test_a_checkpoint_of_other_parts_or_columns_is_refused_and_changes_nothing() -> None:
    first = uniform_buffer()
    first.extend(numbered(0, 9))
    state = first.state_dict()
    other = passes_buffer()
    with pytest.raises(CheckpointError, match="has the sampler UniformSampler, this one has WithoutReplacement"):
        other.load_state_dict(state)
    wider = tensor_buffer(50, sampler=UniformSampler(UniformSamplerConfig(), seed=5))
    wider.extend({"a": np.zeros((3, 4))})
    with pytest.raises(CheckpointError, match="other columns"):
        wider.load_state_dict(state)
    assert len(wider) == 3
    with pytest.raises(CheckpointError, match="unknown format"):
        wider.load_state_dict({**state, "format": 99})


class SlowStorage(TensorStorage):
    """Copies rows only when it is let."""

    def __init__(self, capacity: int) -> None:
        super().__init__(TensorStorageConfig(capacity=capacity))
        self.may_copy, self.num_copies = threading.Event(), 0

    def gather(self, positions: np.ndarray) -> np.ndarray:
        assert self.may_copy.wait(30)
        self.num_copies += 1
        return super().gather(positions)


def test_batches_ahead_are_copied_while_the_learner_does_other_things() -> None:
    storage = SlowStorage(10)
    storage.may_copy.set()
    buffer = ReplayBuffer(storage, in_order(), batch_size=2, prefetch=2)
    buffer.extend(numbered(0, 10))
    assert_rows(buffer.sample(), [0, 1])
    buffer._ahead.finish_copies()
    assert storage.num_copies == 3
    storage.may_copy.clear()
    assert_rows(buffer.sample(), [2, 3])  # the one that is copied now isn't waited for
    assert_rows(buffer.sample(), [4, 5])
    storage.may_copy.set()
    assert_rows(buffer.sample(), [6, 7])
    buffer.close()


def test_batches_drawn_ahead_hold_the_rows_of_their_time_however_slow_the_copy() -> None:
    def run(delay: Callable[[SlowStorage], Any]) -> list[list[int]]:
        storage = SlowStorage(6)
        buffer = ReplayBuffer(storage, shuffled(), batch_size=3, prefetch=2)
        batches = []
        for step in range(8):
            storage.may_copy.set()
            buffer.extend(numbered(4 * step, 4 * step + 4))
            delay(storage)
            batches.append(buffer.sample()["action"].tolist())
        buffer.close()
        return batches

    def let_later(storage: SlowStorage) -> None:
        storage.may_copy.clear()
        timer = threading.Timer(0.02, storage.may_copy.set)
        timer.start()

    assert run(lambda storage: None) == run(let_later)


def test_with_batches_ahead_a_pass_still_holds_every_row_once() -> None:
    buffer = tensor_buffer(10, sampler=shuffled(), batch_size=4, prefetch=3)
    buffer.extend(numbered(0, 10))
    for _ in range(3):
        batches = positions_of(buffer, 3)
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert sorted(row for batch in batches for row in batch) == list(range(10))
    with pytest.raises(ConfigError, match="the next batch of 4 rows is drawn already"):
        buffer.sample(5)
    buffer.close()


def test_threads_that_write_and_read_at_once_see_whole_rows_and_lose_none() -> None:
    buffer = tensor_buffer(64, batch_size=32)
    buffer.extend(numbered(0, 16))
    torn: list[list[int]] = []

    def write() -> None:
        for _ in range(300):
            buffer.extend(numbered(0, 16))

    def read() -> None:
        for _ in range(300):
            batch = buffer.sample()
            if not torch.equal(batch["action"].float(), batch["next.reward"]):
                torn.append(batch["action"].tolist())

    threads = [threading.Thread(target=target) for target in (write, write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torn == []
    assert buffer.num_written == 16 + 2 * 300 * 16
