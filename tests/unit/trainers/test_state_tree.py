from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load_file

from rlruntime.trainers.state_tree import load_state, save_state, snapshot_tree


def assert_same(left: Any, right: Any) -> None:
    """Same types, same structure, same bits, same order of keys."""
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert (
            left.contiguous().view(torch.uint8).equal(right.contiguous().view(torch.uint8))
            if left.dim()
            else (left.reshape(1).view(torch.uint8).equal(right.reshape(1).view(torch.uint8)))
        )
    elif isinstance(left, (np.ndarray, np.generic)):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.tobytes() == right.tobytes()
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for mine, theirs in zip(left, right, strict=True):
            assert_same(mine, theirs)
    elif isinstance(left, float):
        assert struct.pack(">d", left) == struct.pack(">d", right)
    else:
        assert left == right


def round_trip(tree: Any, folder: Path) -> Any:
    save_state(tree, folder)
    return load_state(folder)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
        torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn,
    ],
)  # fmt: skip
def test_tensor_of_every_dtype_comes_back_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.tensor([0.0, 1.0, 3.0, 100.0]).to(dtype)
    tree = {"vector": values, "scalar": values[1].clone(), "empty": values[:0].clone(), "grid": values.reshape(2, 2, 1)}
    assert_same(round_trip(tree, tmp_path), tree)


def test_views_shared_memory_and_parameters_are_saved_by_their_values(tmp_path: Path) -> None:
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    weight = torch.nn.Parameter(base)
    tree = {"whole": weight, "transposed": base.T, "column": base[:, 1], "expanded": base[0].expand(2, 4)}
    loaded = round_trip(tree, tmp_path)
    assert loaded["transposed"].equal(base.T)
    assert loaded["column"].tolist() == [1.0, 5.0, 9.0]
    assert loaded["expanded"].tolist() == [[0.0, 1.0, 2.0, 3.0]] * 2
    assert not loaded["whole"].requires_grad
    loaded["whole"].zero_()
    assert loaded["column"].tolist() == [1.0, 5.0, 9.0]


@pytest.mark.parametrize(
    "number",
    [
        0.1,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        math.inf,
        -math.inf,
        math.nan,
        struct.unpack(">d", b"\x7f\xf8abcdef")[0],
    ],
)
def test_float_comes_back_bit_for_bit(number: float, tmp_path: Path) -> None:
    assert_same(round_trip({"x": number}, tmp_path), {"x": number})


def test_plain_values_containers_and_odd_keys_come_back_equal(tmp_path: Path) -> None:
    tree: dict[str, Any] = {
        "none": None, "true": True, "int": 2**200, "negative": -(2**70), "text": "ü\n\"'", "empty": {}, "list": [],
        "tuple": (1, (), [2.5]), "bytes": b"\x00\xff", "no bytes": b"",
        "a.b": torch.ones(1), "a": {"b": torch.zeros(1)},
        "optimizer": {0: {"step": torch.tensor(3.0)}, 1: {}}, "both": {1: torch.ones(2), "1": torch.zeros(2)},
        "$tensor": "not a tag", "__metadata__": torch.ones(1), "": torch.full((1,), 7),
    }  # fmt: skip
    assert_same(round_trip(tree, tmp_path), tree)


def test_tree_that_is_one_leaf_comes_back(tmp_path: Path) -> None:
    assert_same(round_trip(torch.arange(3), tmp_path), torch.arange(3))


def test_numpy_arrays_and_scalars_come_back_as_such(tmp_path: Path) -> None:
    tree = {
        "float": np.arange(6.0).reshape(2, 3)[:, ::-1],
        "zero_d": np.array(3, np.int16),
        "scalar": np.float32(1.5),
        "flag": np.bool_(True),
        "text": np.array(["ab", "c"]),
        "time": np.array(["2020-01-01"], "datetime64[D]"),
        "big_endian": np.array([1, 2], ">i4"),
        "complex": np.array([1 + 2j]),
        "empty": np.zeros((0, 3), np.uint8),
    }
    assert_same(round_trip(tree, tmp_path), snapshot_tree(tree))


ARRAYS = hnp.arrays(
    hnp.integer_dtypes() | hnp.floating_dtypes(sizes=(16, 32, 64)), hnp.array_shapes(min_dims=0, max_side=3)
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=9)


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        SCALARS | ARRAYS,
        lambda node: (
            st.lists(node, max_size=4) | st.dictionaries(st.text(max_size=4) | st.integers(), node, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_any_tree_comes_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    assert_same(round_trip(tree, tmp_path_factory.mktemp("tree")), tree)


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_numpy_generator_continues_from_its_saved_state(kind: Any, tmp_path: Path) -> None:
    generator = np.random.Generator(kind(5))
    generator.random(3)
    state = round_trip(generator.bit_generator.state, tmp_path)
    expected = generator.random(4).tolist()
    other = np.random.Generator(kind(0))
    other.bit_generator.state = state
    assert other.random(4).tolist() == expected


def test_torch_generator_and_optimizer_continue_from_their_saved_state(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = round_trip({"generator": generator.get_state(), "optimizer": optimizer.state_dict()}, tmp_path)
    expected = torch.rand(4, generator=generator)
    other = torch.Generator()
    other.set_state(state["generator"])
    assert torch.rand(4, generator=other).equal(expected)
    fresh = torch.optim.Adam(model.parameters(), lr=0.5)
    fresh.load_state_dict(state["optimizer"])
    assert_same(fresh.state_dict(), optimizer.state_dict())


def test_snapshot_does_not_change_with_what_it_was_taken_of() -> None:
    tensor, array = torch.zeros(2, requires_grad=True), np.zeros(2)
    live = {"tensor": tensor, "list": [array, {"n": 1}]}
    snapshot = snapshot_tree(live)
    with torch.no_grad():
        tensor.add_(1)
    array += 1
    live["list"][1]["n"] = 2  # type: ignore[index]
    assert_same(snapshot, {"tensor": torch.zeros(2), "list": [np.zeros(2), {"n": 1}]})


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"a": {"b": [object()]}}, "object"),
        ({"a": {1.5: 2}}, "a key must be a string or an integer"),
        ({"a": np.array([None])}, "NumPy array of objects"),
        ({"a": torch.zeros(2, 2).to_sparse()}, "torch.sparse_coo"),
        ({"a": {1, 2}}, "set"),
    ],
)
def test_leaf_that_a_checkpoint_cannot_hold_is_named_with_its_place(tree: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=words) as caught:
        save_state(tree, tmp_path)
    assert str(caught.value).startswith("a")


def test_tensor_file_is_plain_safetensors(tmp_path: Path) -> None:
    save_state({"policy": {"weight": torch.ones(2, 2), "bias": torch.zeros(2, dtype=torch.bfloat16)}}, tmp_path)
    tensors = load_file(tmp_path / "tensors.safetensors")
    assert sorted(tensors) == ["policy.bias", "policy.weight"]
    assert tensors["policy.weight"].tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_opaque_bytes_can_be_left_out(tmp_path: Path) -> None:
    save_state({"environments": [b"one", b"two"], "frames": 3}, tmp_path)
    assert (tmp_path / "environments.bin").read_bytes() == b"onetwo"
    assert load_state(tmp_path, with_bytes=False) == {"environments": [None, None], "frames": 3}
