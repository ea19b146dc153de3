"""Slices in exact passes, and in proportion to their priority."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_rows import tensor_buffer
from replay_trajectories import Experience, held_slices

from rlruntime.spec.training.storages import PrioritizedSliceSamplerConfig, SliceWithoutReplacementSamplerConfig
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.prioritized_slices import PrioritizedSliceSampler
from rlruntime.storages.slices import SliceWithoutReplacementSampler
from rlruntime.trainers.state_tree import load_state, save_state


def passes(capacity: int, length: int, **config: Any) -> ReplayBuffer:
    sampler = SliceWithoutReplacementSampler(
        SliceWithoutReplacementSamplerConfig(slice_length=length, **config), seed=2
    )
    return tensor_buffer(capacity, sampler=sampler)


def one_pass(buffer: ReplayBuffer, num_slices: int) -> list[tuple[int, int]]:
    """Return trajectory and first step of the slices of a whole pass."""
    sampler = buffer.sampler
    assert isinstance(sampler, SliceWithoutReplacementSampler)
    ended, found = sampler.num_passes, list[tuple[int, int]]()
    while sampler.num_passes == ended:
        batch = buffer.sample(num_slices * sampler.rows_together)
        step = batch["step"]
        assert torch.equal(step, step[:, :1] + torch.arange(sampler.rows_together))
        assert torch.all(batch["trajectory"] == batch["trajectory"][:, :1])
        found += zip(batch["trajectory"][:, 0].tolist(), step[:, 0].tolist(), strict=True)
    return found


def test_a_pass_cuts_every_trajectory_into_slices_that_share_no_row() -> None:
    buffer = passes(40, 3)
    buffer.extend(Experience([[7, 2, 3, 9]]).steps(17))
    expected = [(0, 0), (0, 3), (2, 0), (3, 0)]
    first, second = one_pass(buffer, 3), one_pass(buffer, 3)
    assert sorted(first) == sorted(second) == expected
    assert first != second


def test_with_stride_one_a_pass_holds_every_slice() -> None:
    buffer = passes(40, 3, stride=1, shuffle=False)
    buffer.extend(Experience([[5, 2, 4]]).steps(11))
    assert one_pass(buffer, 2) == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]


def test_what_does_not_fill_a_batch_comes_shorter_or_is_left_out() -> None:
    rows = Experience([[9]]).steps(9)
    buffer = passes(40, 3, shuffle=False)
    buffer.extend(rows)
    assert [buffer.sample(6)["step"].shape for _ in range(2)] == [(2, 3), (1, 3)]
    buffer = passes(40, 3, shuffle=False, drop_last=True)
    buffer.extend(rows)
    assert [buffer.sample(6)["step"][0, 0].item() for _ in range(3)] == [0, 0, 0]
    with pytest.raises(TooFewRowsError, match="the buffer holds 3 slices, a batch needs 4"):
        buffer.sample(12)


def test_slices_written_in_a_pass_come_in_the_next_and_those_that_lost_rows_do_not_come() -> None:
    experience = Experience([[30]])
    buffer = passes(9, 3, shuffle=False)
    buffer.extend(experience.steps(9))
    assert buffer.sample(3)["step"].tolist() == [[0, 1, 2]]
    buffer.extend(experience.steps(4))  # over 0 to 3
    assert buffer.sample(6)["step"].tolist() == [[6, 7, 8]]
    assert one_pass(buffer, 4) == [(0, 6), (0, 9)]


@settings(deadline=None, max_examples=60)
@given(
    num_envs=st.integers(1, 3),
    length=st.integers(1, 4),
    steps_held=st.integers(1, 12),
    chunks=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    seed=st.integers(0, 2**31),
)
def test_a_pass_with_stride_one_is_all_slices_at_hand_at_any_write_position(
    num_envs: int, length: int, steps_held: int, chunks: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    experience = Experience([list(rng.integers(1, 9, 100)) for _ in range(num_envs)])
    buffer = passes(steps_held * num_envs, length, stride=1, num_envs=num_envs)
    written: list[list[tuple[int, int]]] = [[] for _ in range(num_envs)]
    for chunk in chunks:
        rows = experience.steps(chunk)
        buffer.extend(rows)
        for at, row in enumerate(zip(rows["trajectory"].tolist(), rows["step"].tolist(), strict=True)):
            written[at % num_envs].append(row)
        expected = set().union(*(held_slices(env_rows[-steps_held:], length) for env_rows in written))
        if expected:
            found = one_pass(buffer, 3)
            assert set(found) == expected
            assert len(found) == len(expected)
        else:
            with pytest.raises(TooFewRowsError):
                buffer.sample(length)


def test_a_checkpoint_continues_the_pass_and_the_way_trajectories_are_cut(tmp_path: Path) -> None:
    experience = Experience([[25, 40], [3, 50]])
    first, second = passes(24, 3, num_envs=2), passes(24, 3, num_envs=2)
    first.extend(experience.steps(11))
    first.sample(3)
    first.extend(experience.steps(9))  # the first rows of both trajectories are gone
    first.sample(3)
    first.extend(experience.steps(2))
    save_state(first.state_dict(), tmp_path)
    second.load_state_dict(load_state(tmp_path))
    for _ in range(12):
        assert first.sample(6).positions.tolist() == second.sample(6).positions.tolist()
        rows = experience.steps(1)
        for buffer in (first, second):
            buffer.extend(rows)


def prioritized(capacity: int, length: int, **config: Any) -> tuple[ReplayBuffer, PrioritizedSliceSampler]:
    merged = {"slice_length": length, "epsilon": 1e-12, "alpha": 1.0, **config}
    sampler = PrioritizedSliceSampler(PrioritizedSliceSamplerConfig(**merged), seed=2)
    return tensor_buffer(capacity, sampler=sampler), sampler


def counts(buffer: ReplayBuffer, num_slices: int, length: int) -> Counter[tuple[int, int]]:
    """Return how often each slice, by trajectory and first step, was drawn."""
    batch = buffer.sample(num_slices * length)
    assert torch.equal(batch["step"], batch["step"][:, :1] + torch.arange(length))
    assert torch.all(batch["trajectory"] == batch["trajectory"][:, :1])
    return Counter(zip(batch["trajectory"][:, 0].tolist(), batch["step"][:, 0].tolist(), strict=True))


def test_slices_are_drawn_in_proportion_and_weighed_by_the_closed_form() -> None:
    buffer, sampler = prioritized(20, 2, beta=0.5)
    buffer.extend(Experience([[3, 1, 2]]).steps(6))
    assert set(counts(buffer, 30, 2)) == {(0, 0), (0, 1), (2, 0)}
    positions = np.array([0, 1, 1, 2, 4, 5])
    buffer.update_priorities(positions, np.array([1.0, 4.0, 5.0]))
    assert sampler.probabilities(buffer.storage).round(6).tolist() == [0, 0.1, 0.4, 0, 0, 0.5]
    seen = counts(buffer, 1000, 2)
    # One slice from each of 1,000 equal shares: exact up to the shares that a border cuts.
    assert all(abs(seen[key] - n) <= 1 for key, n in {(0, 0): 100, (0, 1): 400, (2, 0): 500}.items())
    batch = buffer.sample(2 * 50)
    assert batch.weight is not None
    expected = {0: 1.0, 1: 0.5, 4: (1 / 5) ** 0.5}
    for first, weights in zip(batch.positions.reshape(-1, 2)[:, 0], batch.weight.view(-1, 2), strict=True):
        assert weights.tolist() == pytest.approx([expected[int(first)]] * 2)


def test_priorities_of_rows_become_one_of_the_slice_by_the_largest_and_the_mean() -> None:
    buffer, sampler = prioritized(20, 2, max_share=0.9)
    buffer.extend(Experience([[3]]).steps(3))
    # 0.9 * 3 + 0.1 * 2 = 2.9, and 0.9 * 1 + 0.1 * 1 = 1
    buffer.update_priorities(np.array([[0, 1], [1, 2]]), torch.tensor([[1.0, 3.0], [1.0, 1.0]]))
    assert sampler.probabilities(buffer.storage).tolist() == pytest.approx([0, 2.9 / 3.9, 1 / 3.9])
    with pytest.raises(ValueError, match="finite and at least 0"):
        buffer.update_priorities(np.array([0, 1]), np.array([-1.0, 3.0]))


def test_rows_that_end_no_slice_get_no_priority() -> None:
    buffer, sampler = prioritized(20, 2)
    buffer.extend(Experience([[3, 1, 2]]).steps(6))
    buffer.update_priorities(np.array([2, 3, 4, 5]), np.array([9.0, 2.0]))  # row 3 is a trajectory of its own
    assert sampler.probabilities(buffer.storage).tolist() == pytest.approx([0, 0.25, 0.25, 0, 0, 0.5])


def test_a_slice_that_lost_a_row_is_not_drawn_although_its_last_row_is_there() -> None:
    experience = Experience([[30]])
    buffer, _ = prioritized(6, 3)
    buffer.extend(experience.steps(6))
    buffer.update_priorities(np.array([1, 2, 3]), np.array([0.5]))
    buffer.extend(experience.steps(2))  # over 0 and 1
    buffer.update_priorities(np.array([1, 2, 3]), np.array([1000.0]))  # too late
    assert set(counts(buffer, 50, 3)) == {(0, 2), (0, 3), (0, 4), (0, 5)}


@settings(deadline=None, max_examples=60)
@given(
    num_envs=st.integers(1, 3),
    length=st.integers(1, 4),
    steps_held=st.integers(1, 12),
    chunks=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    seed=st.integers(0, 2**31),
)
def test_every_slice_at_hand_has_mass_and_no_other_at_any_write_position(
    num_envs: int, length: int, steps_held: int, chunks: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    experience = Experience([list(rng.integers(1, 9, 200)) for _ in range(num_envs)])
    buffer, sampler = prioritized(steps_held * num_envs, length, num_envs=num_envs)
    written: list[list[tuple[int, int]]] = [[] for _ in range(num_envs)]
    for chunk in chunks:
        rows = experience.steps(chunk)
        buffer.extend(rows)
        for at, row in enumerate(zip(rows["trajectory"].tolist(), rows["step"].tolist(), strict=True)):
            written[at % num_envs].append(row)
        expected = set().union(*(held_slices(env_rows[-steps_held:], length) for env_rows in written))
        try:
            drawn = buffer.sample(4 * length)
        except TooFewRowsError:
            assert not expected
            continue
        assert np.count_nonzero(sampler.probabilities(buffer.storage)) == len(expected)
        found = zip(drawn["trajectory"][:, 0].tolist(), drawn["step"][:, 0].tolist(), strict=True)
        assert set(found) <= expected
        buffer.update_priorities(drawn.positions, rng.random(4))
        assert np.count_nonzero(sampler.probabilities(buffer.storage)) == len(expected)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_priorities_of_slices_continue_from_a_checkpoint(prefetch: int, tmp_path: Path) -> None:
    def make() -> ReplayBuffer:
        sampler = PrioritizedSliceSampler(PrioritizedSliceSamplerConfig(slice_length=3), seed=2)
        return tensor_buffer(12, sampler=sampler, batch_size=6, prefetch=prefetch)

    experience = Experience([[4, 3, 8, 9, 2, 30]])
    first, second = make(), make()
    first.extend(experience.steps(17))
    first.update_priorities(first.sample().positions, np.array([0.1, 3.0]))
    first.extend(experience.steps(4))
    save_state(first.state_dict(), tmp_path)
    second.load_state_dict(load_state(tmp_path))
    for step in range(5):
        one, other = first.sample(), second.sample()
        assert one.positions.tolist() == other.positions.tolist()
        rows = experience.steps(3)
        for buffer in (first, second):
            buffer.update_priorities(one.positions, np.array([1.0, 0.2 * step]))
            buffer.extend(rows)
    first.close()
    second.close()


def test_a_loaded_buffer_takes_priorities_before_any_row_is_written(tmp_path: Path) -> None:
    first, sampler = prioritized(12, 3)
    first.extend(Experience([[4, 3, 8]]).steps(12))
    first.update_priorities(first.sample(6).positions, np.array([0.1, 3.0]))
    save_state(first.state_dict(), tmp_path)
    second, other = prioritized(12, 3)
    second.load_state_dict(load_state(tmp_path))
    for _ in range(3):
        one = first.sample(6)
        assert second.sample(6).positions.tolist() == one.positions.tolist()
        for buffer in (first, second):
            buffer.update_priorities(one.positions, np.array([7.0, 0.2]))
        chances = [part.probabilities(buffer.storage) for part, buffer in ((sampler, first), (other, second))]
        assert chances[0].tolist() == chances[1].tolist()
