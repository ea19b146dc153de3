"""Slices never cross a trajectory, and rewards are summed within one, wherever the writer stands."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_rows import in_order, tensor_buffer
from replay_trajectories import Experience, held_slices

from rlruntime.errors import ConfigError
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.storages import (
    NStepConfig,
    ReplayBufferConfig,
    SharedTensorStorageConfig,
    SliceSamplerConfig,
)
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.mapped import SharedTensorStorage
from rlruntime.storages.n_step import NStep
from rlruntime.storages.slices import SliceSampler
from rlruntime.trainers.state_tree import load_state, save_state


def slices(capacity: int, length: int, **config: Any) -> ReplayBuffer:
    return tensor_buffer(capacity, sampler=SliceSampler(SliceSamplerConfig(slice_length=length, **config), seed=1))


def drawn(buffer: ReplayBuffer, num_slices: int, length: int) -> list[tuple[int, int]]:
    """Return trajectory and first step of slices, each of which must be successive rows of one trajectory."""
    batch = buffer.sample(num_slices * length)
    trajectory, step = batch["trajectory"], batch["step"]
    assert trajectory.shape == (num_slices, length)
    assert torch.all(trajectory == trajectory[:, :1])
    assert torch.equal(step, step[:, :1] + torch.arange(length))
    return list(zip(trajectory[:, 0].tolist(), step[:, 0].tolist(), strict=True))


BY_NUMBER = {"trajectory_key": "trajectory"}


@settings(deadline=None, max_examples=60)
@given(
    num_envs=st.integers(1, 3),
    by_number=st.booleans(),
    length=st.integers(1, 4),
    steps_held=st.integers(1, 12),
    chunks=st.lists(st.integers(1, 16), min_size=1, max_size=6),
    seed=st.integers(0, 2**31),
)
def test_all_slices_at_hand_are_drawn_and_no_others_at_any_write_position(
    num_envs: int, by_number: bool, length: int, steps_held: int, chunks: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    experience = Experience([list(rng.integers(1, 9, 100)) for _ in range(num_envs)])
    config = BY_NUMBER if by_number else {}
    buffer = slices(steps_held * num_envs, length, num_envs=num_envs, **config)
    written: list[list[tuple[int, int]]] = [[] for _ in range(num_envs)]
    for chunk in chunks:
        rows = experience.steps(chunk)
        buffer.extend(rows)
        for at, row in enumerate(zip(rows["trajectory"].tolist(), rows["step"].tolist(), strict=True)):
            written[at % num_envs].append(row)
        expected = set().union(*(held_slices(env_rows[-steps_held:], length) for env_rows in written))
        if expected:
            assert set(drawn(buffer, 40 * len(expected), length)) == expected
        else:
            with pytest.raises(TooFewRowsError):
                buffer.sample(length)


def test_every_slice_is_as_likely_as_any_other() -> None:
    buffer = slices(100, 3)
    buffer.extend(Experience([[10, 2, 4]]).steps(16))
    counts = Counter(drawn(buffer, 10_000, 3))
    assert sorted(counts) == [(0, step) for step in range(8)] + [(2, 0), (2, 1)]
    # 1,000 expected, standard deviation 30
    assert all(abs(count - 1000) < 5 * 30 for count in counts.values())


def test_rows_of_environments_that_take_turns_are_refused_with_advice_and_sliced_when_told() -> None:
    rows = Experience([[20], [20]]).steps(10)
    buffer = slices(100, 3, **BY_NUMBER)
    buffer.extend(rows)
    with pytest.raises(TooFewRowsError, match="take turns need numEnvs"):
        buffer.sample(3)
    buffer = slices(100, 3, num_envs=2, **BY_NUMBER)
    buffer.extend(rows)
    assert {trajectory for trajectory, _ in drawn(buffer, 50, 3)} == {0, 100}


def test_a_trajectory_goes_on_from_one_write_to_the_next() -> None:
    experience = Experience([[9]])
    buffer = slices(100, 5)
    for _ in range(5):
        buffer.extend(experience.steps(1))
    assert drawn(buffer, 1, 5) == [(0, 0)]


@pytest.mark.parametrize(
    ("config", "capacity", "words"),
    [
        ({"trajectory_key": "id"}, 8, "trajectoryKey: the rows have no such column (got 'id')"),
        ({"trajectory_key": "next.reward"}, 8, "trajectoryKey: the column 'next.reward' must hold integers"),
        ({"end_keys": ("next.done",)}, 8, "endKeys: the rows have no such column (got 'next.done')"),
        ({"num_envs": 3}, 8, "numEnvs: a capacity of 8 rows can't hold whole steps of 3"),
        ({"num_envs": 4}, 8, "numEnvs: 6 rows are no whole number of steps of 4"),
    ],
)
def test_columns_that_do_not_tell_trajectories_apart_are_refused(
    config: dict[str, Any], capacity: int, words: str
) -> None:
    buffer = slices(capacity, 2, **config)
    buffer.extend(Experience([[9]]).steps(6))
    with pytest.raises(ConfigError) as refused:
        buffer.sample(2)
    assert str(refused.value).startswith(words)


def test_rows_of_several_processes_need_a_number_of_their_trajectory() -> None:
    storage = SharedTensorStorage(SharedTensorStorageConfig(capacity=8))
    buffer = ReplayBuffer(storage, SliceSampler(SliceSamplerConfig(slice_length=2), seed=1))
    buffer.extend(Experience([[9]]).steps(6))
    with pytest.raises(ConfigError, match="trajectoryKey: rows that several processes write need a number"):
        buffer.sample(2)


def test_a_batch_that_is_no_whole_number_of_slices_is_refused() -> None:
    buffer = slices(10, 3)
    buffer.extend(Experience([[9]]).steps(6))
    with pytest.raises(
        ConfigError,
        match=r"batch_size: a batch must be a multiple of the 3 rows that come together \(got 8\); set it to 9",
    ):
        buffer.sample(8)


@pytest.mark.parametrize("by_number", [False, True])
def test_a_draw_of_slices_looks_at_no_more_memory_however_many_rows_there_are(by_number: bool) -> None:
    def most_bytes(num_rows: int) -> int:
        buffer = slices(num_rows, 4, **(BY_NUMBER if by_number else {}))
        buffer.extend(Experience([[50] * (num_rows // 50)]).steps(num_rows))
        drawn(buffer, 8, 4)
        buffer.extend(Experience([[5]]).steps(5))
        drawn(buffer, 8, 4)
        tracemalloc.start()
        buffer.sample(32)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    few, many = most_bytes(1_000), most_bytes(200_000)
    assert many < 1.2 * few


def test_a_checkpoint_continues_the_draws(tmp_path: Path) -> None:
    experience = Experience([[4, 3, 8, 9, 2, 30]])
    first, second = slices(12, 3), slices(12, 3)
    first.extend(experience.steps(17))
    drawn(first, 4, 3)
    save_state(first.state_dict(), tmp_path)
    second.load_state_dict(load_state(tmp_path))
    for _ in range(3):
        assert drawn(first, 8, 3) == drawn(second, 8, 3)
        rows = experience.steps(5)
        for buffer in (first, second):
            buffer.extend(rows)


def test_slices_come_as_a_tensordict_of_slices_by_steps() -> None:
    buffer = slices(10, 3)
    buffer.extend(Experience([[9]]).steps(6))
    batch = buffer.sample(6).to_tensordict()
    assert batch.batch_size == torch.Size([2, 3])
    assert batch["next", "reward"].shape == (2, 3)


def n_step_buffer(capacity: int = 20, **config: Any) -> ReplayBuffer:
    return tensor_buffer(
        capacity, sampler=in_order(), n_step=NStep(NStepConfig(**{"steps": 3, "gamma": 0.5, **config}))
    )


def test_rewards_are_summed_within_the_trajectory_and_the_outcome_is_that_of_the_last_step() -> None:
    buffer = n_step_buffer()
    buffer.extend(Experience([[4, 9]]).steps(6))
    batch = buffer.sample(6)
    assert batch["num_steps"].tolist() == [3, 3, 2, 1, 2, 1]
    assert batch["next.reward"].tolist() == [0 + 0.5 + 0.5, 1 + 1 + 0.75, 2 + 1.5, 3, 10 + 5.5, 11]
    assert batch["discount"].tolist() == [0.125, 0.125, 0.25, 0.5, 0.25, 0.5]
    assert batch["next.step"].tolist() == [3, 4, 4, 4, 2, 2]
    assert batch["next.terminated"].tolist() == [False, True, True, True, False, False]
    assert batch["step"].tolist() == [0, 1, 2, 3, 0, 1]
    assert buffer.storage.column("next.reward")[:6].tolist() == [0, 1, 2, 3, 10, 11]


def test_a_truncated_trajectory_ends_the_sum_without_being_called_terminated() -> None:
    buffer = n_step_buffer(gamma=1.0)
    buffer.extend(Experience([[1, 2, 3]]).steps(5))
    batch = buffer.sample(5)
    assert batch["num_steps"].tolist() == [1, 2, 1, 2, 1]
    assert batch["next.terminated"].tolist() == [True, False, False, False, False]
    assert batch["next.truncated"].tolist() == [False, True, True, False, False]


@settings(deadline=None, max_examples=60)
@given(
    num_envs=st.integers(1, 3),
    steps=st.integers(1, 5),
    steps_held=st.integers(1, 10),
    chunks=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    seed=st.integers(0, 2**31),
)
def test_sums_agree_with_a_walk_along_the_trajectory(
    num_envs: int, steps: int, steps_held: int, chunks: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    experience = Experience([list(rng.integers(1, 7, 80)) for _ in range(num_envs)])
    buffer = n_step_buffer(steps_held * num_envs, steps=steps, gamma=0.9, num_envs=num_envs)
    written: list[tuple[int, int, float, bool]] = []
    for chunk in chunks:
        rows = experience.steps(chunk)
        buffer.extend(rows)
        ended = rows["next.terminated"] | rows["next.truncated"]
        values = (rows[name].tolist() for name in ("trajectory", "step", "next.reward"))
        written += list(zip(*values, ended.tolist(), strict=True))
        batch = buffer.sample(len(buffer))
        for at, position in enumerate(batch.positions.tolist()):
            total, count = 0.0, 0
            while count < steps and position + count * num_envs < len(written):
                _, _, reward, is_last = written[position + count * num_envs]
                total += 0.9**count * reward
                count += 1
                if is_last:
                    break
            if position >= len(written) - len(buffer):
                assert batch["num_steps"][at] == count
                assert batch["next.reward"][at].item() == pytest.approx(total, rel=1e-5)
                assert batch["next.step"][at] == written[position][1] + count
        buffer.sampler = n_step_buffer(1).sampler


def test_rows_that_another_process_wrote_after_the_draw_are_not_summed() -> None:
    config = SharedTensorStorageConfig(capacity=8)
    storage = SharedTensorStorage(config)
    ours = ReplayBuffer(storage)
    theirs = ReplayBuffer(SharedTensorStorage.attach(config, storage.descriptor))
    experience = Experience([[4, 4, 1, 5]])
    n_step = NStep(NStepConfig(steps=3, gamma=0.5, trajectory_key="trajectory"))
    ours.extend(experience.steps(6))
    n_step.follow(storage)
    theirs.extend(experience.steps(2))
    positions = np.array([4, 5])
    rows = storage.gather(positions)
    assert n_step.apply(storage, positions, rows)["num_steps"].tolist() == [2, 1]
    assert rows["next.reward"].tolist() == [10.0 + 5.5, 11.0]


def test_batches_drawn_ahead_keep_their_sums_over_a_checkpoint(tmp_path: Path) -> None:
    config = ReplayBufferConfig.model_validate(
        {
            "storage": {"type": "Tensor", "config": {"capacity": 12}},
            "batchSize": 4,
            "prefetch": 2,
            "nStep": {"steps": 3, "gamma": 0.5},
        }
    )
    assert config.sampler == Component(type="Uniform")
    experience = Experience([[4, 3, 8, 9, 2, 30]])
    first, second = (ReplayBuffer.from_config(config, seed=3) for _ in range(2))
    first.extend(experience.steps(17))
    first.sample()
    first.extend(experience.steps(5))
    save_state(first.state_dict(), tmp_path)
    second.load_state_dict(load_state(tmp_path))
    for _ in range(6):
        one, other = first.sample(), second.sample()
        for name in one:
            assert torch.equal(one[name], other[name])
    first.close()
    second.close()
