"""Rewards over several steps, where rows of several trajectories are mixed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlruntime.errors import ConfigError
from rlruntime.spec.training.storages import NStepConfig, TensorStorageConfig
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.n_step import NStep
from rlruntime.storages.storage import TensorStorage


def mixed_buffer(capacity: int, steps: int) -> ReplayBuffer:
    n_step = NStep(NStepConfig(steps=steps, gamma=0.5, trajectory_key="trajectory"))
    return ReplayBuffer(TensorStorage(TensorStorageConfig(capacity=capacity)), n_step=n_step)


def rows_of(trajectory: list[int], step: list[int]) -> dict[str, np.ndarray]:
    return {
        "trajectory": np.array(trajectory),
        "step": np.array(step),
        "next.reward": np.array(step, np.float32),
        "next.step": np.array(step) + 1,
        "next.terminated": np.zeros(len(step), bool),
    }


def test_a_row_is_summed_along_its_own_trajectory_past_the_rows_of_others() -> None:
    buffer = mixed_buffer(16, steps=3)
    buffer.extend(rows_of([7, 9, 7], [0, 0, 1]))
    buffer.extend(rows_of([7, 9, 9], [2, 1, 2]))
    batch = buffer.sample(200)
    found = {
        (int(t), int(s)): (float(r), int(n), int(m))
        for t, s, r, n, m in zip(
            batch["trajectory"],
            batch["step"],
            batch["next.reward"],
            batch["next.step"],
            batch["num_steps"],
            strict=True,
        )
    }
    assert found == {
        (7, 0): (0 + 0.5 * 1 + 0.25 * 2, 3, 3),
        (7, 1): (1 + 0.5 * 2, 3, 2),
        (7, 2): (2, 3, 1),
        (9, 0): (0 + 0.5 * 1 + 0.25 * 2, 3, 3),
        (9, 1): (1 + 0.5 * 2, 3, 2),
        (9, 2): (2, 3, 1),
    }


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), min_size=1, max_size=12), st.integers(1, 4))
def test_sums_are_those_of_a_list_of_episodes_whatever_the_order_and_however_often_the_ring_went_round(
    batches: list[list[int]], steps: int
) -> None:
    buffer, capacity = mixed_buffer(7, steps), 7
    written: list[tuple[int, int]] = []
    lengths: dict[int, int] = {}
    for batch in batches:
        numbers = []
        for trajectory in batch:
            numbers.append(lengths.get(trajectory, 0))
            lengths[trajectory] = numbers[-1] + 1
        written += zip(batch, numbers, strict=True)
        buffer.extend(rows_of(batch, numbers))
        buffer.sample(1)
    held = written[-capacity:]
    sample = buffer.sample(60)
    for trajectory, step, reward, count in zip(
        sample["trajectory"].tolist(),
        sample["step"].tolist(),
        sample["next.reward"].tolist(),
        sample["num_steps"].tolist(),
        strict=True,
    ):
        there = [number for number in range(step, step + steps) if (trajectory, number) in held]
        assert count == len(there)
        assert reward == pytest.approx(sum(0.5**k * number for k, number in enumerate(there)))


def test_a_number_that_is_no_integer_is_refused() -> None:
    buffer = mixed_buffer(8, steps=2)
    rows = rows_of([1, 1], [0, 1])
    rows["trajectory"] = rows["trajectory"].astype(np.float32)
    buffer.extend(rows)
    with pytest.raises(ConfigError, match=r"trajectoryKey: the column 'trajectory' must hold integers"):
        buffer.sample(1)
