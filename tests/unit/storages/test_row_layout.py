"""How columns become packed rows, and which columns can't."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlruntime.errors import CheckpointError, ConfigError
from rlruntime.storages.layout import RowLayout, flat_columns, plan_layout


def test_larger_elements_come_first_and_a_row_is_a_whole_number_of_words() -> None:
    layout, num_rows = plan_layout(
        {
            "flag": np.zeros(3, np.bool_),
            "observation": np.zeros((3, 5), np.float32),
            "count": np.zeros((3, 2), np.int64),
        }
    )
    assert num_rows == 3
    assert [(field.name, field.offset) for field in layout.fields] == [("flag", 36), ("observation", 16), ("count", 0)]
    assert layout.row_bytes == 40
    assert RowLayout.from_json(layout.to_json()) == layout


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["bool", "uint8", "float16", "float32", "int64"]), st.integers(0, 5))))
def test_every_element_is_aligned_and_no_two_columns_overlap(columns: list[tuple[str, int]]) -> None:
    rows = {f"c{number}": np.zeros((1, size), dtype) for number, (dtype, size) in enumerate(columns)}
    if not rows:
        return
    layout, _ = plan_layout(rows)
    taken: list[int] = []
    for field in layout.fields:
        assert field.offset % field.numpy_dtype.itemsize == 0
        taken += range(field.offset, field.offset + field.shape[0] * field.numpy_dtype.itemsize)
    assert len(taken) == len(set(taken))
    assert layout.row_bytes % 8 == 0
    assert max(taken, default=-1) < layout.row_bytes


def test_nested_rows_and_a_tensordict_get_dotted_names() -> None:
    from tensordict import TensorDict

    nested = {"action": np.zeros(2), "next": {"reward": np.ones(2), "observation": {"image": np.zeros((2, 4))}}}
    assert list(flat_columns(nested)) == ["action", "next.reward", "next.observation.image"]
    batch = TensorDict({"next": TensorDict({"reward": torch.ones(2)}, [2])}, [2])
    assert list(flat_columns(batch)) == ["next.reward"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({}, "rows without any key can't be stored"),
        ({"a": 3.0}, "'a' must be an array or a tensor with one entry a row (got 3.0); "),
        ({"a": np.zeros(())}, "'a' must be an array or a tensor with one entry a row"),
        ({"a": np.array(["x"])}, "a column can't hold values of the type str32 (got 'a'); "),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, "a column can't hold values of the type complex64"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, "'a' has 2 rows and 'b' has 3"),
        ({1: np.zeros(2)}, "a column's key must be a string (got 1)"),
        ({"a": {"b": np.zeros(2)}, "a.b": np.zeros(2)}, "two columns have the same name (got 'a.b')"),
    ],
)
def test_what_is_no_column_is_refused_in_one_line(rows: dict[Any, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_layout(rows)
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"a": np.zeros((1, 2), np.float32)}, "these rows lack b compared with those that the buffer holds"),
        (
            {"a": np.zeros((1, 2), np.float32), "c": np.zeros(1)},
            "these rows lack b and add c compared with those that the buffer holds",
        ),
        (
            {"a": np.zeros((1, 3), np.float32), "b": np.zeros(1, np.int64)},
            "a row's 'a' has the shape [2] in this buffer (got [3])",
        ),
        (
            {"a": np.zeros((1, 2), np.float32), "b": np.zeros(1, np.float32)},
            "a row's 'b' is int64 in this buffer (got 'float32')",
        ),
        (
            {"a": np.zeros((1, 2), np.float32), "b": torch.zeros(1)},
            "a row's 'b' is int64 in this buffer (got 'float32')",
        ),
    ],
)
def test_rows_that_differ_from_the_first_are_refused(rows: dict[str, Any], words: str) -> None:
    layout, _ = plan_layout({"a": np.zeros((1, 2), np.float32), "b": np.zeros(1, np.int64)})
    with pytest.raises(ConfigError) as refused:
        layout.matched(rows)
    assert str(refused.value).startswith(words)


def test_a_float64_array_becomes_the_float32_of_the_column_and_bits_of_bfloat16_stay() -> None:
    layout, _ = plan_layout({"a": np.zeros(1, np.float32), "b": torch.zeros(1, dtype=torch.bfloat16)})
    half = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    columns, num_rows = layout.matched({"a": np.array([0.5, 2.0]), "b": half})
    assert num_rows == 2
    np.testing.assert_array_equal(columns[0].astype(np.float32), [0.5, 2.0])
    assert torch.equal(layout.by_name["b"].as_tensor(columns[1]), half)
    columns, _ = layout.matched({"a": np.zeros(1), "b": torch.tensor([0.25])})
    assert torch.equal(layout.by_name["b"].as_tensor(columns[1]), torch.tensor([0.25], dtype=torch.bfloat16))


def test_a_layout_that_can_not_have_been_written_is_refused() -> None:
    layout, _ = plan_layout({"a": np.zeros((1, 2), np.float32)})
    for document in ({}, {**layout.to_json(), "rowBytes": 16}, {"rowBytes": 8, "fields": [["a", [2], "object", 0]]}):
        with pytest.raises(CheckpointError):
            RowLayout.from_json(document)
