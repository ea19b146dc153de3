"""Columns changed on their way into the buffer, and on their way out."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from replay_rows import in_order, numbered, tensor_buffer
from replay_trajectories import Experience
from torch import Tensor

from rlruntime.errors import ConfigError
from rlruntime.spec.training.storages import ListStorageConfig, NStepConfig, SliceSamplerConfig
from rlruntime.spec.training.transforms import ObservationNormConfig
from rlruntime.storages.buffer import ColumnTransform, ReplayBuffer
from rlruntime.storages.lists import ListStorage
from rlruntime.storages.n_step import NStep
from rlruntime.storages.slices import SliceSampler
from rlruntime.transforms.columns import ColumnTransforms
from rlruntime.transforms.normalization import ObservationNorm


class Shift:
    """Adds to a column, and counts its calls."""

    def __init__(self, name: str, by: float) -> None:
        self.name, self.by, self.num_calls = name, by, 0

    def __call__(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        self.num_calls += 1
        return {**columns, self.name: columns[self.name] + self.by}


def without(name: str) -> ColumnTransform:
    return lambda columns: {key: column for key, column in columns.items() if key != name}


def flattened(columns: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return observations as one number each: what is stored has another shape than what is written."""
    return {**columns, "observation": columns["observation"].sum(-1)}


def test_what_is_stored_is_what_the_transforms_of_writing_made_in_their_order() -> None:
    buffer = tensor_buffer(
        10, sampler=in_order(), write_transforms=[flattened, Shift("observation", 0.25), without("next.terminated")]
    )
    buffer.extend(numbered(0, 3))
    nested = {"action": np.array([3]), "observation": np.array([[3, 3.5]], np.float32), "next": {
        "reward": np.zeros(1, np.float32), "terminated": np.zeros(1, bool)}}  # fmt: skip
    buffer.extend(nested)
    assert buffer.add({key: column[0] for key, column in numbered(4, 5).items()}) == 4
    batch = buffer.sample(5)
    assert batch["observation"].tolist() == [0.75, 2.75, 4.75, 6.75, 8.75]
    assert batch.keys() == ["observation", "action", "next.reward"]


def test_arrays_that_can_not_be_written_are_taken_as_they_are() -> None:
    buffer = tensor_buffer(10, sampler=in_order(), write_transforms=[Shift("action", 1)])
    buffer.extend({**numbered(0, 3), "action": np.broadcast_to(np.int64(4), 3)})
    assert buffer.sample(3)["action"].tolist() == [5, 5, 5]


def test_what_is_read_is_what_the_transforms_of_reading_made_and_rows_stay_raw() -> None:
    buffer = tensor_buffer(10, sampler=in_order(), read_transforms=[Shift("observation", 10), without("action")])
    buffer.extend(numbered(0, 3))
    batch = buffer.sample(3)
    assert batch["observation"].tolist() == [[10, 10.5], [11, 11.5], [12, 12.5]]
    assert batch.keys() == ["observation", "next.reward", "next.terminated"]
    assert "action" not in batch
    with pytest.raises(KeyError):
        batch["action"]
    assert sorted(batch.to("meta")) == sorted(batch.keys())
    given = batch.to_tensordict()
    assert given["observation"][0].tolist() == [10, 10.5]
    assert given["next", "reward"].tolist() == [0, 1, 2]
    assert buffer.storage.column("observation")[:3].tolist() == [[0, 0.5], [1, 1.5], [2, 2.5]]


def test_transforms_of_reading_see_sums_over_steps_and_slices_in_their_shape() -> None:
    seen: dict[str, tuple[int, ...]] = {}

    def look(columns: dict[str, Tensor]) -> dict[str, Tensor]:
        seen.update({name: tuple(column.shape) for name, column in columns.items()})
        return columns

    buffer = tensor_buffer(
        20,
        sampler=SliceSampler(SliceSamplerConfig(slice_length=3), seed=1),
        n_step=NStep(NStepConfig(steps=2, gamma=0.5)),
        read_transforms=[look],
    )
    buffer.extend(Experience([[9]]).steps(9))
    batch = buffer.sample(6)
    assert seen["step"] == seen["discount"] == seen["next.reward"] == (2, 3)
    assert batch["num_steps"].shape == (2, 3)


def test_batches_drawn_ahead_are_transformed_when_they_are_given() -> None:
    shift = Shift("observation", 0)
    buffer = tensor_buffer(10, sampler=in_order(), batch_size=2, prefetch=2, read_transforms=[shift])
    buffer.extend(numbered(0, 6))
    assert buffer.sample()["observation"][:, 0].tolist() == [0, 1]
    assert shift.num_calls == 1
    shift.by = 100.0  # what a running normalisation has learned since counts
    assert buffer.sample()["observation"][:, 0].tolist() == [102, 103]
    buffer.close()


def test_a_checkpoint_holds_raw_rows_drawn_ahead(tmp_path: Path) -> None:
    from rlruntime.trainers.state_tree import load_state, save_state

    first, second = (
        tensor_buffer(10, sampler=in_order(), batch_size=2, prefetch=2, read_transforms=[Shift("observation", by)])
        for by in (10.0, 20.0)
    )
    first.extend(numbered(0, 6))
    first.sample()
    save_state(first.state_dict(), tmp_path)
    second.load_state_dict(load_state(tmp_path))
    assert second.sample()["observation"][:, 0].tolist() == [22, 23]
    first.close()
    second.close()


def test_a_transform_of_writing_that_gives_no_rows_sets_no_layout() -> None:
    """As one that sums over steps does before it has seen enough of them."""
    held: list[dict[str, Tensor]] = []

    def later(columns: dict[str, Tensor]) -> dict[str, Tensor]:
        held.append(columns)
        if len(held) == 1:
            return {"observation": torch.zeros(0, 7)}
        return held[-2]

    buffer = tensor_buffer(10, sampler=in_order(), write_transforms=[later])
    assert buffer.extend(numbered(0, 2)).tolist() == []
    assert buffer.extend(numbered(2, 4)).tolist() == [0, 1]
    assert buffer.sample(2)["action"].tolist() == [0, 1]


def test_transforms_that_change_the_number_of_rows_read_or_have_no_columns_are_refused() -> None:
    def first_only(columns: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: column[:1] for name, column in columns.items()}

    buffer = tensor_buffer(10, sampler=in_order(), read_transforms=[first_only])
    buffer.extend(numbered(0, 3))
    with pytest.raises(ValueError, match=r"the column 'observation' has the shape \[1, 2\] in \[3\] rows"):
        buffer.sample(3)
    with pytest.raises(ConfigError, match="transforms change columns, and a List storage has none"):
        ReplayBuffer(ListStorage(ListStorageConfig(capacity=3)), write_transforms=[first_only])


def test_transforms_of_the_policy_work_on_both_sides_of_a_buffer() -> None:
    space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    norm = ObservationNorm(ObservationNormConfig(clip=1.0), space)
    observation = torch.tensor([[0.0, 10.0], [4.0, 30.0]])
    buffer = tensor_buffer(10, sampler=in_order(), read_transforms=[ColumnTransforms([norm], "read")])
    buffer.extend({"observation": observation, "next.observation": observation + 1, "next.reward": torch.zeros(2)})
    learned = {"shift_0": torch.tensor([2.0, 20.0]), "factor_0": torch.tensor([0.25, 0.1])}
    norm.load_state_dict({**norm.state_dict(), **learned})
    batch = buffer.sample(2)
    assert batch["observation"].tolist() == [[-0.5, -1.0], [0.5, 1.0]]
    assert batch["next.observation"].tolist() == [[-0.25, pytest.approx(-0.9)], [0.75, 1.0]]
    assert buffer.storage.column("observation")[:2].tolist() == observation.tolist()
