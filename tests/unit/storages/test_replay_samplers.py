"""Which rows uniform draws and passes give."""

from __future__ import annotations

import numpy as np
import pytest
from replay_rows import numbered, tensor_buffer

from rlruntime.spec.training.storages import UniformSamplerConfig, WithoutReplacementSamplerConfig
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.samplers import UniformSampler, WithoutReplacementSampler


def test_uniform_draws_take_every_row_as_often_within_chance() -> None:
    buffer = tensor_buffer(10, sampler=UniformSampler(UniformSamplerConfig(), seed=2))
    buffer.extend(numbered(0, 17))
    counts = np.bincount(buffer.sample(20_000)["action"].numpy(), minlength=17)
    assert counts[:7].tolist() == [0] * 7
    # 2,000 expected, standard deviation 42
    assert np.all(np.abs(counts[7:] - 2000) < 5 * 42)


def test_two_seeds_draw_differently_and_one_seed_alike() -> None:
    def draws(seed: int) -> list[int]:
        buffer = tensor_buffer(100, sampler=UniformSampler(UniformSamplerConfig(), seed=seed))
        buffer.extend(numbered(0, 100))
        drawn: list[int] = buffer.sample(20)["action"].tolist()
        return drawn

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


def passes(*, shuffle: bool = True, drop_last: bool = False) -> WithoutReplacementSampler:
    return WithoutReplacementSampler(WithoutReplacementSamplerConfig(shuffle=shuffle, drop_last=drop_last), seed=4)


def test_a_pass_holds_every_row_once_and_ends_with_what_is_left() -> None:
    sampler = passes()
    buffer = tensor_buffer(11, sampler=sampler)
    buffer.extend(numbered(0, 11))
    orders = []
    for number in range(1, 4):
        batches = [buffer.sample(4)["action"].tolist() for _ in range(3)]
        assert [len(batch) for batch in batches] == [4, 4, 3]
        orders.append([row for batch in batches for row in batch])
        assert sorted(orders[-1]) == list(range(11))
        assert sampler.num_passes == number
    assert orders[0] != orders[1]


def test_with_drop_last_every_batch_is_full() -> None:
    sampler = passes(shuffle=False, drop_last=True)
    buffer = tensor_buffer(11, sampler=sampler)
    buffer.extend(numbered(0, 11))
    assert [buffer.sample(4)["action"].tolist() for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    assert sampler.num_passes == 1
    with pytest.raises(TooFewRowsError, match="the buffer holds 11 rows, a batch needs 12"):
        buffer.sample(12)


def test_rows_written_in_a_pass_come_in_the_next_and_those_written_over_do_not_come() -> None:
    sampler = passes(shuffle=False)
    buffer = tensor_buffer(6, sampler=sampler)
    buffer.extend(numbered(0, 6))
    assert buffer.sample(2)["action"].tolist() == [0, 1]
    buffer.extend(numbered(6, 9))  # over 0, 1, 2
    assert buffer.sample(2)["action"].tolist() == [3, 4]
    assert buffer.sample(2)["action"].tolist() == [5]
    assert sampler.num_passes == 1
    assert buffer.sample(6)["action"].tolist() == [3, 4, 5, 6, 7, 8]
    assert sampler.num_passes == 2


def test_a_pass_whose_rows_are_all_written_over_gives_way_to_the_next() -> None:
    sampler = passes(shuffle=False)
    buffer = tensor_buffer(3, sampler=sampler)
    buffer.extend(numbered(0, 3))
    buffer.sample(2)
    buffer.extend(numbered(3, 6))
    assert buffer.sample(2)["action"].tolist() == [3, 4]
    assert sampler.num_passes == 1


def test_a_sampler_without_priorities_refuses_them() -> None:
    buffer = tensor_buffer(3)
    buffer.extend(numbered(0, 3))
    with pytest.raises(TypeError, match="UniformSampler has no priorities"):
        buffer.update_priorities(np.array([0]), np.array([1.0]))
