"""Batches from several buffers, each with its share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replay_rows import in_order, numbered, tensor_buffer
from replay_trajectories import Experience

from rlruntime.errors import CheckpointError, ConfigError
from rlruntime.spec.training.storages import ListStorageConfig, PrioritizedSamplerConfig, SliceSamplerConfig
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.errors import TooFewRowsError
from rlruntime.storages.lists import ListStorage
from rlruntime.storages.mixture import ReplayMixture
from rlruntime.storages.prioritized import PrioritizedSampler
from rlruntime.storages.slices import SliceSampler
from rlruntime.trainers.state_tree import load_state, save_state


def prioritized(**config: Any) -> PrioritizedSampler:
    return PrioritizedSampler(PrioritizedSamplerConfig(**{"alpha": 1.0, "epsilon": 1e-12, **config}), seed=3)


def two(weights: dict[str, float] | None = None, **parts: Any) -> ReplayMixture:
    """Return a mixture of a prioritised buffer with rows 0 to 9 and a uniform one with rows 100 to 149."""
    own, shown = tensor_buffer(10, sampler=prioritized()), tensor_buffer(50)
    own.extend(numbered(0, 10))
    shown.extend(numbered(100, 150))
    return ReplayMixture({"own": own, "shown": shown}, weights, **parts)


def test_each_buffer_gives_its_share_and_a_column_says_whose_a_row_is() -> None:
    mixture = two({"own": 3, "shown": 1}, batch_size=8)
    batch = mixture.sample()
    assert batch["source"].tolist() == [0] * 6 + [1] * 2
    assert torch.equal(batch["action"] >= 100, batch["source"] == 1)
    assert torch.equal(batch["observation"][:, 0], batch["action"].float())
    assert mixture.names == ["own", "shown"]
    assert len(mixture) == 60
    assert batch.to_tensordict()["source"].tolist() == [0] * 6 + [1] * 2


def test_a_share_that_is_no_whole_number_is_met_on_average() -> None:
    mixture = two({"own": 1, "shown": 2}, batch_size=4)
    counts = [int((mixture.sample()["source"] == 0).sum()) for _ in range(3000)]
    assert set(counts) == {1, 2}
    # 4,000 expected; a third of the batches have 2, standard deviation 26
    assert abs(sum(counts) - 4000) < 5 * 26
    mixture.weights["own"] = 0.0
    assert mixture.sample()["source"].tolist() == [1] * 4


def test_priorities_go_back_to_the_buffer_that_a_row_is_from() -> None:
    mixture = two(batch_size=20)
    batch = mixture.sample()
    assert sorted(batch["action"][:10].tolist()) == list(range(10))
    assert batch.weight is not None
    assert batch.weight[10:].tolist() == [1.0] * 10
    mixture.update_priorities(batch.positions, torch.where(batch["action"] == 4, 91.0, 1.0))
    sampler = mixture.buffers["own"].sampler
    assert isinstance(sampler, PrioritizedSampler)
    expected = [0.01] * 4 + [0.91] + [0.01] * 5
    assert sampler.probabilities(mixture.buffers["own"].storage).tolist() == pytest.approx(expected)
    plain = ReplayMixture({"shown": mixture.buffers["shown"]})
    with pytest.raises(TypeError, match="no buffer of the mixture has priorities"):
        plain.update_priorities(batch.positions, np.ones(20))


def test_slices_of_several_buffers_come_together() -> None:
    buffers = {}
    for name, lengths in (("a", [5, 5]), ("b", [9])):
        sampler = SliceSampler(SliceSamplerConfig(slice_length=3), seed=1)
        buffers[name] = tensor_buffer(20, sampler=sampler)
        buffers[name].extend(Experience([lengths]).steps(9))
    batch = ReplayMixture(buffers, {"a": 2, "b": 1}).sample(9)
    assert batch["step"].shape == (3, 3)
    assert torch.equal(batch["step"], batch["step"][:, :1] + torch.arange(3))
    assert batch["source"].tolist() == [[0] * 3, [0] * 3, [1] * 3]


def test_a_buffer_without_its_share_of_rows_says_so() -> None:
    mixture = two(batch_size=4)
    mixture.buffers["shown"] = tensor_buffer(5)
    with pytest.raises(TooFewRowsError, match="the buffer is empty"):
        mixture.sample()


def test_a_checkpoint_continues_the_batches(tmp_path: Path) -> None:
    first, second = two({"own": 1, "shown": 2}, batch_size=7), two(batch_size=7)
    for _ in range(3):
        first.sample()
    save_state(first.state_dict(), tmp_path)
    second.load_state_dict(load_state(tmp_path))
    for _ in range(5):
        one, other = first.sample(), second.sample()
        assert torch.equal(one["action"], other["action"])
        assert torch.equal(one["source"], other["source"])
        for mixture in (first, second):
            mixture.update_priorities(one.positions, np.arange(7.0))
    with pytest.raises(CheckpointError, match=r"has the buffers \['own', 'shown'\], this mixture \['shown'\]"):
        ReplayMixture({"shown": first.buffers["shown"]}).load_state_dict(first.state_dict())


def test_buffers_that_can_not_be_mixed_are_refused() -> None:
    buffer = tensor_buffer(5, sampler=in_order())
    buffer.extend(numbered(0, 5))
    other = tensor_buffer(5)
    other.extend({**numbered(0, 5), "action": np.zeros(5)})
    fewer = tensor_buffer(5)
    fewer.extend({"action": np.zeros(5)})
    listed = ReplayBuffer(ListStorage(ListStorageConfig(capacity=2)))
    with pytest.raises(ConfigError, match="different kinds of 'action'"):
        ReplayMixture({"a": buffer, "b": other}).sample(4)
    with pytest.raises(ConfigError, match="held by some buffers of a mixture, and not by others"):
        ReplayMixture({"a": buffer, "b": fewer}).sample(4)
    with pytest.raises(ConfigError, match="b: a List storage has no columns to mix"):
        ReplayMixture({"a": buffer, "b": listed})
    with pytest.raises(ConfigError, match="b: a buffer of a mixture can't draw ahead"):
        ReplayMixture({"a": buffer, "b": tensor_buffer(5, prefetch=1)})
    with pytest.raises(ConfigError, match="weights: there must be a weight for each of a"):
        ReplayMixture({"a": buffer}, {"b": 1.0})
    with pytest.raises(ConfigError, match="weights: weights must be at least 0, and not all 0"):
        ReplayMixture({"a": buffer}, {"a": 0.0})
    sliced = tensor_buffer(5, sampler=SliceSampler(SliceSamplerConfig(slice_length=3), seed=1))
    with pytest.raises(ConfigError, match="must draw slices or groups of one length"):
        ReplayMixture({"a": buffer, "b": sliced})
    with pytest.raises(ConfigError, match="a mixture needs at least one buffer"):
        ReplayMixture({})
