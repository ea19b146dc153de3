"""Slices of trajectories whose rows lie between those of others, as asynchronous collectors leave them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rlruntime.spec.training.storages import SliceSamplerConfig, TensorStorageConfig
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.slices import SliceSampler
from rlruntime.storages.storage import TensorStorage


class Mixed:
    """A buffer of trajectories that go on in any order, and what it holds."""

    def __init__(self, capacity: int, length: int) -> None:
        config = SliceSamplerConfig(slice_length=length, trajectory_key="trajectory", mixed=True)
        self.buffer = ReplayBuffer(TensorStorage(TensorStorageConfig(capacity=capacity)), SliceSampler(config, seed=1))
        self.capacity, self.length = capacity, length
        self.rows: list[tuple[int, int]] = []
        self.steps: Counter[int] = Counter()

    def write(self, trajectories: list[int]) -> None:
        for number in trajectories:
            self.rows.append((number, self.steps[number]))
            self.steps[number] += 1
        new = np.array(self.rows[-len(trajectories) :])
        self.buffer.extend({"trajectory": new[:, 0], "step": new[:, 1]})

    def at_hand(self) -> set[tuple[int, int]]:
        held = set(self.rows[-self.capacity :])
        return {(n, s) for n, s in held if all((n, s + k) in held for k in range(self.length))}

    def drawn(self, num_slices: int) -> list[tuple[int, int]]:
        batch = self.buffer.sample(num_slices * self.length)
        assert batch["step"].shape == (num_slices, self.length)
        assert (batch["trajectory"] == batch["trajectory"][:, :1]).all()
        assert (batch["step"] == batch["step"][:, :1] + torch.arange(self.length)).all()
        return list(zip(batch["trajectory"][:, 0].tolist(), batch["step"][:, 0].tolist(), strict=True))


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=7), min_size=1, max_size=14), st.integers(1, 4))
def test_all_slices_at_hand_are_drawn_and_no_others_whatever_the_order_and_however_often_the_ring_went_round(
    batches: list[list[int]], length: int
) -> None:
    mixed = Mixed(12, length)
    for batch in batches:
        mixed.write(batch)
        expected = mixed.at_hand()
        if expected:
            assert set(mixed.drawn(20 * len(expected))) == expected
        else:
            with pytest.raises(TooFewRowsError, match="none of the"):
                mixed.drawn(1)


def test_every_slice_is_as_likely_as_any_other_also_where_those_of_a_slow_writer_are_gone() -> None:
    mixed = Mixed(24, 3)
    mixed.write([9, 0, 0, 0, 0, 9, *[1] * 12, 9, 9, *[2] * 9, 9])
    assert len(mixed.at_hand()) > 8
    drawn = Counter(mixed.drawn(30_000))
    share = np.array(list(drawn.values())) / 30_000 * len(mixed.at_hand())
    assert set(drawn) == mixed.at_hand()
    assert np.abs(share - 1).max() < 0.1  # six standard deviations


def test_a_checkpoint_continues_the_draws() -> None:
    mixed, again = Mixed(20, 2), Mixed(20, 2)
    rng = np.random.default_rng(0)
    for _ in range(9):
        mixed.write(rng.integers(0, 5, 6).tolist())
        mixed.drawn(4)
    again.buffer.load_state_dict(mixed.buffer.state_dict())
    for _ in range(6):
        assert again.drawn(8) == mixed.drawn(8)
        batch: Any = rng.integers(0, 5, 3).tolist()
        again.rows, again.steps = list(mixed.rows), Counter(mixed.steps)
        again.write(batch)
        mixed.write(batch)


def test_mixed_rows_need_a_number() -> None:
    with pytest.raises(ValidationError, match="mixed rows need a number of their trajectory"):
        SliceSamplerConfig(slice_length=2, mixed=True)
