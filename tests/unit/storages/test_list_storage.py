"""A buffer of objects."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from replay_rows import in_order

from rlruntime.errors import ConfigError
from rlruntime.spec.training.storages import (
    ListStorageConfig,
    NStepConfig,
    PrioritizedSamplerConfig,
    SliceSamplerConfig,
)
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.lists import ItemBatch, ListStorage
from rlruntime.storages.n_step import NStep
from rlruntime.storages.prioritized import PrioritizedSampler
from rlruntime.storages.samplers import Sampler
from rlruntime.storages.slices import SliceSampler
from rlruntime.trainers.state_tree import load_state, save_state


def objects(capacity: int, sampler: Sampler | None = None, *, prefetch: int = 0) -> ReplayBuffer:
    storage = ListStorage(ListStorageConfig(capacity=capacity))
    return ReplayBuffer(storage, sampler or in_order(), batch_size=2, prefetch=prefetch)


def items_of(buffer: ReplayBuffer, num_rows: int) -> list[object]:
    batch = buffer.sample(num_rows)
    assert isinstance(batch, ItemBatch)
    return batch.items


def test_objects_of_any_shape_come_out_and_the_newest_stay() -> None:
    buffer = objects(3)
    assert buffer.extend(["a", [1, 2], (3,)]).tolist() == [0, 1, 2]
    assert buffer.add({"b": 1}) == 3
    assert items_of(buffer, 3) == [[1, 2], (3,), {"b": 1}]
    assert buffer.extend([]).tolist() == []


def test_dicts_of_one_shape_are_stacked() -> None:
    buffer = objects(3)
    buffer.extend([{"x": torch.tensor([1.0, 2.0]), "n": 1}, {"x": torch.tensor([3.0, 4.0]), "n": 2}])
    batch = buffer.sample(2)
    assert batch["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert "x" in batch
    assert batch.to_tensordict()["n"].tolist() == [1, 2]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_objects_are_saved_and_loaded_with_priorities_and_batches_ahead(prefetch: int, tmp_path: Path) -> None:
    first, second = (
        objects(5, PrioritizedSampler(PrioritizedSamplerConfig(), seed=1), prefetch=prefetch) for _ in range(2)
    )
    first.extend([{"number": number, "text": "x" * number} for number in range(7)])
    batch = first.sample(2)
    first.update_priorities(batch.positions, np.array([3.0, 0.1]))
    save_state(first.state_dict(), tmp_path)
    second.load_state_dict(load_state(tmp_path))
    assert [items_of(first, 2) for _ in range(5)] == [items_of(second, 2) for _ in range(5)]
    first.close()
    second.close()


def test_what_a_list_can_not_do_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a List storage takes a list of rows \(got 'dict'\)"):
        objects(3).extend({"a": np.zeros(2)})
    sliced = objects(3, SliceSampler(SliceSamplerConfig(slice_length=1), seed=0))
    sliced.extend(["a"])
    with pytest.raises(ConfigError, match="a List storage has no columns"):
        sliced.sample(1)
    summed = ReplayBuffer(sliced.storage, in_order(), n_step=NStep(NStepConfig(steps=2, gamma=1.0)))
    with pytest.raises(ConfigError, match="a List storage has no columns"):
        summed.sample(1)
    with pytest.raises(ConfigError, match="can't travel to another process"):
        pickle.dumps(sliced)
    assert len(pickle.loads(pickle.dumps(objects(3)))) == 0
