"""Rows of recent policies alone, and whole groups of rows, whoever wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import replay_processes
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_rows import numbered, tensor_buffer

from rlruntime.errors import ConfigError
from rlruntime.spec.training.storages import (
    PromptGroupSamplerConfig,
    SharedTensorStorageConfig,
    StalenessBoundedSamplerConfig,
)
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.groups import PromptGroupSampler
from rlruntime.storages.mapped import SharedTensorStorage
from rlruntime.storages.staleness import StalenessBoundedSampler
from rlruntime.trainers.state_tree import load_state, save_state


def bounded(capacity: int, max_staleness: int) -> tuple[ReplayBuffer, StalenessBoundedSampler]:
    sampler = StalenessBoundedSampler(StalenessBoundedSamplerConfig(max_staleness=max_staleness), seed=3)
    return tensor_buffer(capacity, sampler=sampler), sampler


def of_versions(versions: list[int]) -> dict[str, np.ndarray]:
    return {"policy_version": np.array(versions, np.int64), "number": np.arange(len(versions))}


def drawn_versions(buffer: ReplayBuffer) -> set[int]:
    return set(buffer.sample(200)["policy_version"].tolist())


def test_rows_of_a_policy_too_far_behind_are_not_drawn_and_are_counted_once() -> None:
    buffer, sampler = bounded(10, max_staleness=1)
    buffer.extend(of_versions([0, 0, 1, 2, 1, 2]))
    sampler.current_version = 2
    assert drawn_versions(buffer) == {1, 2}
    assert sampler.num_left_out == 2
    sampler.current_version = 3
    assert drawn_versions(buffer) == {2}
    assert sampler.num_left_out == 4
    buffer.extend(of_versions([1, 3]))  # a slow worker comes late
    assert drawn_versions(buffer) == {2, 3}
    assert sampler.num_left_out == 5


def test_with_only_old_rows_the_batch_is_refused_with_what_is_at_hand() -> None:
    buffer, sampler = bounded(10, max_staleness=0)
    buffer.extend(of_versions([1, 2]))
    sampler.current_version = 3
    with pytest.raises(TooFewRowsError, match="none of the 2 rows at hand is at most 0 versions behind version 3"):
        buffer.sample(1)


@settings(deadline=None, max_examples=60)
@given(
    capacity=st.integers(1, 20),
    max_staleness=st.integers(0, 4),
    rounds=st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(-3, 1), max_size=25)), min_size=1, max_size=6),
)
def test_exactly_the_rows_within_the_bound_are_drawn_at_any_write_position(
    capacity: int, max_staleness: int, rounds: list[tuple[int, list[int]]]
) -> None:
    buffer, sampler = bounded(capacity, max_staleness)
    written: list[int] = []
    for step, behind in rounds:
        sampler.current_version += step
        versions = [sampler.current_version + difference for difference in behind]
        if versions:
            buffer.extend(of_versions(versions))
        written += versions
        young = {v for v in written[-capacity:] if v >= sampler.current_version - max_staleness}
        if young:
            assert drawn_versions(buffer) == young
        else:
            with pytest.raises(TooFewRowsError):
                buffer.sample(1)


def test_a_version_that_goes_back_brings_rows_back() -> None:
    buffer, sampler = bounded(10, max_staleness=1)
    buffer.extend(of_versions([0, 1, 2, 3]))
    sampler.current_version = 3
    assert drawn_versions(buffer) == {2, 3}
    sampler.current_version = 1
    assert drawn_versions(buffer) == {0, 1, 2, 3}


def test_the_bound_continues_from_a_checkpoint(tmp_path: Path) -> None:
    first, sampler = bounded(8, max_staleness=1)
    first.extend(of_versions([0, 0, 1, 1, 2, 1, 2, 0, 2, 2]))
    sampler.current_version = 2
    first.sample(3)
    first.extend(of_versions([1, 2, 0]))
    save_state(first.state_dict(), tmp_path)
    second, restored = bounded(8, max_staleness=1)
    second.load_state_dict(load_state(tmp_path))
    assert (restored.current_version, restored.num_left_out) == (2, sampler.num_left_out)
    for _ in range(3):
        assert first.sample(8).positions.tolist() == second.sample(8).positions.tolist()
        assert restored.num_left_out == sampler.num_left_out
        sampler.current_version += 1
        restored.current_version += 1
        for buffer in (first, second):
            buffer.extend(of_versions([sampler.current_version] * 2))


def test_a_batch_drawn_ahead_that_has_become_too_old_is_drawn_anew() -> None:
    sampler = StalenessBoundedSampler(StalenessBoundedSamplerConfig(max_staleness=1), seed=3)
    buffer = tensor_buffer(40, sampler=sampler, batch_size=16, prefetch=2)
    buffer.extend(of_versions([0, 1] * 10))
    sampler.current_version = 1
    assert set(buffer.sample()["policy_version"].tolist()) == {0, 1}
    sampler.current_version = 2
    for _ in range(4):
        assert set(buffer.sample()["policy_version"].tolist()) == {1}
    assert sampler.num_left_out == 10
    buffer.close()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (numbered(0, 3), "versionKey: the rows have no such column (got 'policy_version')"),
        ({"policy_version": np.zeros(3)}, "versionKey: the column 'policy_version' must hold integers (got 'float64')"),
        ({"policy_version": np.zeros((3, 2), np.int64)}, "versionKey: the column must hold one number a row"),
    ],
)
def test_rows_without_a_version_are_refused(rows: dict[str, Any], words: str) -> None:
    buffer, _ = bounded(10, max_staleness=1)
    buffer.extend(rows)
    with pytest.raises(ConfigError) as refused:
        buffer.sample(1)
    assert str(refused.value).startswith(words)


def grouping(group_size: int, seed: int = 5, **config: Any) -> PromptGroupSampler:
    return PromptGroupSampler(PromptGroupSamplerConfig(group_size=group_size, **config), seed=seed)


def of_groups(groups: list[int]) -> dict[str, np.ndarray]:
    return {"group": np.array(groups), "reward": np.arange(len(groups), dtype=np.float32)}


def test_a_group_is_drawn_once_when_its_last_member_is_there_whoever_wrote_the_others() -> None:
    config = SharedTensorStorageConfig(capacity=20)
    storage = SharedTensorStorage(config)
    learner = ReplayBuffer(storage, grouping(3))
    writers = [ReplayBuffer(SharedTensorStorage.attach(config, storage.descriptor)) for _ in range(3)]
    writers[0].extend(of_groups([7, 8]))
    writers[1].extend(of_groups([7, 8]))
    with pytest.raises(TooFewRowsError, match="0 groups of 3 rows are complete, a batch needs 1"):
        learner.sample(3)
    writers[2].extend(of_groups([8, 9, 7]))
    batch = learner.sample(6)
    assert batch["group"].tolist() == [[8, 8, 8], [7, 7, 7]]  # 8 was complete first
    assert batch["group"].shape == batch["reward"].shape == (2, 3)
    with pytest.raises(TooFewRowsError):
        learner.sample(3)


def test_groups_of_several_processes_become_complete() -> None:
    from multiprocessing import get_context

    config = SharedTensorStorageConfig(capacity=64)
    learner = ReplayBuffer(SharedTensorStorage(config), grouping(4))
    context = get_context("spawn")
    processes = [context.Process(target=replay_processes.write_groups, args=(learner, w)) for w in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    batch = learner.sample(40)
    assert sorted(batch["group"][:, 0].tolist()) == list(range(10))
    for group, members in zip(batch["group"], batch["writer"], strict=True):
        assert torch.all(group == group[0])
        assert sorted(members.tolist()) == [0, 1, 2, 3]


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 4),
    capacity=st.integers(4, 40),
    chunks=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    seed=st.integers(0, 2**31),
)
def test_every_whole_group_comes_once_and_none_that_lost_a_member(
    size: int, capacity: int, chunks: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    sampler = grouping(size)
    buffer = tensor_buffer(capacity, sampler=sampler)
    order = np.repeat(np.arange(30), size)
    # Members of groups that are under way at the same time come in any order.
    order = order[np.argsort(np.arange(len(order)) + rng.integers(0, 10, len(order)), kind="stable")]
    at, drawn = 0, []
    for chunk in chunks:
        rows = order[at : at + min(chunk, capacity)]
        at += len(rows)
        if len(rows):
            buffer.extend(of_groups(rows.tolist()))
        while True:
            try:
                batch = buffer.sample(size)
            except TooFewRowsError:
                break
            assert torch.all(batch["group"] == batch["group"][0, 0])
            assert batch.positions.min() >= at - capacity
            drawn.append(int(batch["group"][0, 0]))
    last_seen = [np.flatnonzero(order[:at] == group) for group in range(30)]
    assert len(set(drawn)) == len(drawn)
    complete = {group for group in range(30) if len(last_seen[group]) == size}
    assert set(drawn) <= complete
    if capacity >= len(order):
        assert set(drawn) == complete
        assert sampler.num_dropped == 0


def test_a_group_whose_member_was_written_over_is_dropped_whole() -> None:
    sampler = grouping(2)
    buffer = tensor_buffer(4, sampler=sampler)
    buffer.extend(of_groups([1, 2, 2, 3]))
    with pytest.raises(TooFewRowsError, match="1 groups of 2 rows are complete, a batch needs 2"):
        buffer.sample(4)
    buffer.extend(of_groups([3, 1]))  # over the first member of 1 and of 2
    assert buffer.sample(2)["group"].tolist() == [[3, 3]]
    assert sampler.num_dropped == 2
    with pytest.raises(TooFewRowsError):
        buffer.sample(2)


def test_more_rows_of_a_number_than_a_group_make_another_group() -> None:
    buffer = tensor_buffer(10, sampler=grouping(2))
    buffer.extend(of_groups([1, 1, 1, 1, 1]))
    assert buffer.sample(4).positions.tolist() == [0, 1, 2, 3]
    buffer.extend(of_groups([1]))
    assert buffer.sample(2).positions.tolist() == [4, 5]


def test_with_reuse_a_group_comes_again_each_as_likely_as_any_other() -> None:
    buffer = tensor_buffer(10, sampler=grouping(2, reuse=True))
    buffer.extend(of_groups([1, 2, 1, 2, 3, 4, 3]))
    counts = torch.bincount(buffer.sample(6000)["group"][:, 0])
    assert counts[4:].tolist() == []
    # 1,000 expected, standard deviation 26
    assert torch.all((counts[1:] - 1000).abs() < 5 * 26)


def test_groups_under_way_are_in_a_checkpoint(tmp_path: Path) -> None:
    first, second = (tensor_buffer(9, sampler=grouping(3)) for _ in range(2))
    first.extend(of_groups([1, 2, 1, 3, 1, 2]))
    assert first.sample(3)["group"].tolist() == [[1, 1, 1]]
    save_state(first.state_dict(), tmp_path)
    second.load_state_dict(load_state(tmp_path))
    for buffer in (first, second):
        buffer.extend(of_groups([3, 2, 1]))
        assert buffer.sample(3).positions.tolist() == [1, 5, 7]
        buffer.extend(of_groups([3]))
        assert buffer.sample(3)["group"].tolist() == [[3, 3, 3]]


def test_a_batch_that_is_no_whole_number_of_groups_is_refused() -> None:
    buffer = tensor_buffer(9, sampler=grouping(3))
    buffer.extend(of_groups([1, 1, 1]))
    with pytest.raises(
        ConfigError,
        match=r"batch_size: a batch must be a multiple of the 3 rows that come together \(got 4\); set it to 6",
    ):
        buffer.sample(4)
