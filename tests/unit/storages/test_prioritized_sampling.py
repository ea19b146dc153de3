"""Prioritised sampling: the closed form, what new and gone rows weigh, and the tree beneath."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_rows import numbered, tensor_buffer

from rlruntime.errors import ConfigError
from rlruntime.spec.training.storages import PrioritizedSamplerConfig, TensorStorageConfig
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.prioritized import PrioritizedSampler
from rlruntime.storages.storage import TensorStorage
from rlruntime.storages.sum_tree import SumTree
from rlruntime.storages.writers import RoundRobinWriter
from rlruntime.trainers.state_tree import load_state, save_state


def prioritized(capacity: int = 4, *, prefetch: int = 0, **config: Any) -> tuple[ReplayBuffer, PrioritizedSampler]:
    sampler = PrioritizedSampler(PrioritizedSamplerConfig(**{"epsilon": 1e-12, **config}), seed=1)
    return tensor_buffer(capacity, sampler=sampler, batch_size=4, prefetch=prefetch), sampler


def probabilities(buffer: ReplayBuffer) -> list[float]:
    assert isinstance(buffer.sampler, PrioritizedSampler)
    return [round(float(p), 6) for p in buffer.sampler.probabilities(buffer.storage)]


def test_probabilities_are_the_closed_form_with_alpha_applied_once() -> None:
    buffer, _ = prioritized(alpha=0.5)
    buffer.extend(numbered(0, 4))
    buffer.update_priorities(np.arange(4), np.array([1.0, 4.0, 9.0, 16.0]))
    assert probabilities(buffer) == [0.1, 0.2, 0.3, 0.4]
    counts = np.bincount(buffer.sample(1000)["action"].numpy())
    # One row from each of 1,000 equal shares: exact up to the shares that a border cuts.
    assert np.all(np.abs(counts - [100, 200, 300, 400]) <= 1)


def test_weights_are_the_closed_form_over_the_largest_of_any_row() -> None:
    buffer, sampler = prioritized(alpha=1.0, beta=0.5)
    buffer.extend(numbered(0, 4))
    buffer.update_priorities(np.arange(4), np.array([1.0, 4.0, 16.0, 16.0]))
    batch = buffer.sample(64)
    assert batch.weight is not None
    expected = torch.tensor([1.0, 0.5, 0.25, 0.25])[batch["action"]]
    assert torch.allclose(batch.weight, expected, atol=1e-6)
    assert torch.equal(batch.to_tensordict()["weight"], batch.weight)
    sampler.beta = 1.0
    batch = buffer.sample(64)
    assert batch.weight is not None
    assert torch.allclose(batch.weight, torch.tensor([1.0, 0.25, 1 / 16, 1 / 16])[batch["action"]], atol=1e-6)


def test_beta_goes_to_its_final_value_as_training_goes_on_and_stays_without_one() -> None:
    _, moving = prioritized(beta=0.4, final_beta=1.0)
    _, staying = prioritized(beta=0.4)
    seen = []
    for progress in (0.0, 0.5, 1.0, 1.2):
        for sampler in (moving, staying):
            sampler.schedule(progress)
        seen.append((round(moving.beta, 6), staying.beta))
    assert seen == [(0.4, 0.4), (0.7, 0.4), (1.0, 0.4), (1.0, 0.4)]


def test_with_alpha_zero_every_row_is_alike() -> None:
    buffer, _ = prioritized(alpha=0.0)
    buffer.extend(numbered(0, 4))
    buffer.update_priorities(np.arange(4), np.array([0.0, 4.0, 9.0, 16.0]))
    assert probabilities(buffer) == [0.25] * 4


def test_a_new_row_weighs_as_much_as_the_heaviest_at_hand_and_no_more() -> None:
    buffer, _ = prioritized(capacity=8, alpha=0.5)
    buffer.extend(numbered(0, 2))
    buffer.update_priorities(np.array([0, 1]), np.array([1.0, 16.0]))
    buffer.extend(numbered(2, 3))
    assert probabilities(buffer) == [round(1 / 9, 6), round(4 / 9, 6), round(4 / 9, 6)]
    buffer.update_priorities(np.array([1, 2]), np.array([0.25, 0.25]))  # the heaviest is 1 from now on
    buffer.extend(numbered(3, 4))
    assert probabilities(buffer) == [round(x / 3, 6) for x in (1, 0.5, 0.5, 1)]


def test_first_priorities_far_below_one_count_from_the_start() -> None:
    buffer, _ = prioritized(alpha=1.0)
    buffer.extend(numbered(0, 2))
    assert probabilities(buffer) == [0.5, 0.5]
    buffer.update_priorities(np.array([0, 1]), np.array([0.001, 0.003]))
    buffer.extend(numbered(2, 3))
    assert probabilities(buffer) == [round(x / 7, 6) for x in (1, 3, 3)]


def test_a_priority_for_a_row_that_was_written_over_is_left_out() -> None:
    buffer, _ = prioritized(alpha=1.0)
    buffer.extend(numbered(0, 4))
    batch = buffer.sample(4)
    buffer.extend(numbered(4, 6))  # over 0 and 1
    buffer.update_priorities(np.array([0, 1, 2, 3]), torch.tensor([7.0, 7.0, 3.0, 1.0]))
    assert probabilities(buffer) == [0.5, round(1 / 6, 6), round(1 / 6, 6), round(1 / 6, 6)]
    assert len(batch) == 4


@settings(deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(0, 2**31))
def test_every_row_at_hand_has_mass_and_no_other_at_any_write_position(
    capacity: int, sizes: list[int], seed: int
) -> None:
    buffer, sampler = prioritized(capacity=capacity)
    rng = np.random.default_rng(seed)
    written = 0
    for size in sizes:
        buffer.extend(numbered(written, written + size))
        written += size
        batch = buffer.sample(16)
        held = range(max(0, written - capacity), written)
        assert set(batch.positions.tolist()) <= set(held)
        assert batch["action"].tolist() == batch.positions.tolist()
        buffer.update_priorities(batch.positions, rng.random(16))
        mass = sampler.probabilities(buffer.storage)
        assert len(mass) == len(held)
        assert np.all(mass > 0)
        assert sampler._tree is not None
        assert np.count_nonzero(sampler._tree.leaves) == len(held)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_priority_that_is_no_weight_is_refused_and_changes_nothing(bad: float) -> None:
    buffer, _ = prioritized(alpha=1.0)
    buffer.extend(numbered(0, 2))
    with pytest.raises(ValueError, match="finite and at least 0"):
        buffer.update_priorities(np.array([0, 1]), np.array([1.0, bad]))
    with pytest.raises(ValueError, match="2 rows need as many priorities, got 1"):
        buffer.update_priorities(np.array([0, 1]), np.array([1.0]))
    assert probabilities(buffer) == [0.5, 0.5]


def test_an_empty_buffer_says_so() -> None:
    buffer, _ = prioritized()
    with pytest.raises(TooFewRowsError, match="the buffer is empty"):
        buffer.sample()


def test_a_writer_without_order_is_refused() -> None:
    class Anywhere(RoundRobinWriter):
        keeps_order = False

    sampler = PrioritizedSampler(PrioritizedSamplerConfig(), seed=1)
    with pytest.raises(ConfigError, match="PrioritizedSampler can't follow Anywhere; use a RoundRobin writer"):
        tensor_buffer(4, sampler=sampler, writer=Anywhere())


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("num_rows", [0, 3, 30, 75])
def test_a_checkpoint_holds_priorities_empty_partly_filled_and_full(
    prefetch: int, num_rows: int, tmp_path: Path
) -> None:
    first, _ = prioritized(capacity=30, prefetch=prefetch, beta=0.7)
    if num_rows:
        first.extend(numbered(0, num_rows))
        for _ in range(5):
            batch = first.sample()
            first.update_priorities(batch.positions, batch["action"].double() / 10)
        first.extend(numbered(num_rows, num_rows + 2))  # not seen by the sampler when it is saved
    save_state(first.state_dict(), tmp_path)
    second, _ = prioritized(capacity=30, prefetch=prefetch)
    second.load_state_dict(load_state(tmp_path))
    for buffer in (first, second):
        buffer.extend(numbered(100, 104))
    assert probabilities(first) == probabilities(second)
    for _ in range(6):
        one, other = first.sample(), second.sample()
        assert one.positions.tolist() == other.positions.tolist()
        assert one.weight is not None
        assert other.weight is not None
        assert torch.equal(one.weight, other.weight)
        for buffer in (first, second):
            buffer.update_priorities(one.positions, one["action"].double())
    first.close()
    second.close()


def test_a_new_sampler_over_a_storage_that_was_loaded_draws_all_of_its_rows() -> None:
    first, _ = prioritized(capacity=6)
    first.extend(numbered(0, 9))
    loaded = TensorStorage(TensorStorageConfig(capacity=6))
    loaded.load_state_dict(first.state_dict()["storage"])
    buffer = ReplayBuffer(loaded, PrioritizedSampler(PrioritizedSamplerConfig(), seed=1))
    assert sorted(buffer.sample(6)["action"].tolist()) == [3, 4, 5, 6, 7, 8]
    buffer.update_priorities(np.array([4]), np.array([100.0]))
    buffer.extend(numbered(9, 10))
    assert 4 in buffer.sample(6)["action"].tolist()


def test_a_loaded_tree_takes_another_capacity() -> None:
    first, _ = prioritized(capacity=6, alpha=1.0)
    first.extend(numbered(0, 9))
    first.update_priorities(np.arange(3, 9), np.arange(1.0, 7.0))
    second, _ = prioritized(capacity=11, alpha=1.0)
    second.load_state_dict(first.state_dict())
    assert probabilities(second) == [round(x / 21, 6) for x in range(1, 7)]


@pytest.mark.parametrize("size", [1, 15, 16, 17, 5000, 70_001])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_the_tree_agrees_with_plain_sums(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree, plain = SumTree(size), np.zeros(size)
    for _ in range(3):
        slots = rng.integers(0, size, 50)
        values = rng.random(50) * rng.integers(0, 2, 50)
        tree.put(slots, values)
        for slot, value in zip(slots, values, strict=True):
            plain[slot] = value
        first, last = np.sort(rng.integers(0, size + 1, 2))
        value = float(rng.integers(0, 3))
        tree.fill(int(first), int(last), value)
        plain[first:last] = value
    assert np.array_equal(tree.leaves, plain)
    assert tree.total == pytest.approx(plain.sum())
    assert tree.largest == plain.max()
    assert tree.smallest == (plain[plain > 0].min() if np.any(plain) else np.inf)
    if np.any(plain):
        heights = np.append(rng.random(20) * tree.total, [0.0, np.nextafter(tree.total, 0), tree.total])
        found, mass = tree.find(heights)
        assert np.array_equal(mass, plain[found])
        edges = np.cumsum(plain)
        assert np.all(plain[found] > 0)
        assert np.all(heights <= edges[found] + 1e-9 * tree.total)
        assert np.all(heights >= edges[found] - plain[found] - 1e-9 * tree.total)


def test_many_updates_leave_no_rounding_behind() -> None:
    tree = SumTree(40_000)
    rng = np.random.default_rng(0)
    for _ in range(200):
        tree.put(rng.integers(0, 40_000, 64), rng.random(64) * 10.0 ** rng.integers(-8, 8))
    tree.fill(0, 40_000, 0.0)
    assert tree.total == 0.0
