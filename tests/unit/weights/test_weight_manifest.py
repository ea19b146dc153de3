"""What a manifest says of weights, and what a snapshot keeps of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from rlruntime.errors import ConfigError
from rlruntime.policies.flat import FlatParameters
from rlruntime.weights.manifest import Binding, Manifest, ModuleState, TensorEntry, describe
from rlruntime.weights.protocol import Weights
from rlruntime.weights.snapshot import Snapshot


def two_models() -> dict[str, dict[str, torch.Tensor]]:
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    return {
        "actor": {"weight": weight, "head": weight, "count": torch.tensor(7)},
        "critic": {"shared": weight, "bias": torch.ones(33, dtype=torch.bfloat16), "none": torch.zeros(0, 4)},
    }


def test_a_manifest_lists_names_shapes_dtypes_ties_and_places() -> None:
    manifest = describe(two_models())
    assert manifest == Manifest(
        (
            TensorEntry("actor/count", (), "int64", "", 0),
            TensorEntry("actor/head", (2, 3), "float32", "", 64),
            TensorEntry("actor/weight", (2, 3), "float32", "actor/head", 64),
            TensorEntry("critic/bias", (33,), "bfloat16", "", 128),
            TensorEntry("critic/none", (0, 4), "float32", "", 256),
            TensorEntry("critic/shared", (2, 3), "float32", "actor/head", 64),
        ),
        256,
    )
    assert [entry.name for entry in manifest.stored] == ["actor/count", "actor/head", "critic/bias", "critic/none"]
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_a_module_counts_with_parameters_persistent_buffers_and_tied_names() -> None:
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2), nn.Linear(2, 2, bias=False))
    module[2].weight = module[0].weight
    module.register_buffer("scratch", torch.zeros(1), persistent=False)
    kinds = {entry.name: entry.kind for entry in describe({"net": module}).entries}
    assert kinds == {
        "net/0.weight": "float32[2, 2]",
        "net/1.weight": "float32[2]",
        "net/1.bias": "float32[2]",
        "net/1.running_mean": "float32[2]",
        "net/1.running_var": "float32[2]",
        "net/1.num_batches_tracked": "int64[]",
        "net/2.weight": "float32[2, 2] tied to net/0.weight",
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": torch.zeros(3), "b": torch.zeros(2)}, "m/a is float32[2] in the manifest, float32[3] here"),
        (
            {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(2)},
            "m/a is float32[2] in the manifest, float64[2] here",
        ),
        ({"a": torch.zeros(2)}, "m/b is float32[2] in the manifest, absent here"),
        (
            {"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.zeros(1)},
            "m/c is absent in the manifest, float32[1] here",
        ),
    ],
    ids=["shape", "dtype", "missing", "additional"],
)
def test_the_first_difference_is_named(change: dict[str, torch.Tensor], words: str) -> None:
    manifest = describe({"m": {"a": torch.zeros(2), "b": torch.zeros(2)}})
    assert manifest.difference(describe({"m": change})) == words
    with pytest.raises(ConfigError, match="the weights are not those agreed on: "):
        manifest.bind({"m": change})


def test_a_tie_that_came_or_went_is_a_difference() -> None:
    one = torch.zeros(2)
    tied, untied = describe({"m": {"a": one, "b": one}}), describe({"m": {"a": one, "b": torch.zeros(2)}})
    assert tied.difference(untied) == "m/b is float32[2] tied to m/a in the manifest, float32[2] here"
    assert untied.difference(tied) == "m/b is float32[2] in the manifest, float32[2] tied to m/a here"
    assert tied.difference(tied) == ""


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({}, "there are no weights to publish"),
        (
            {"m": {"a": torch.zeros(2, device="meta")}},
            "only dense tensors with memory can be published, and m/a is none",
        ),
        ({"m": {"a": "text"}}, "m/a is none (got 'str')"),
    ],
    ids=["none", "meta", "no tensor"],
)
def test_what_cannot_be_published_is_refused(weights: Weights, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        describe(weights)
    assert words in str(caught.value)


def test_a_snapshot_keeps_every_dtype_and_shape_whatever_becomes_of_the_source() -> None:
    source, target = two_models(), two_models()
    manifest = describe(source)
    snapshot = Snapshot.allocate(manifest)
    snapshot.copy_from(manifest.bind(source))
    for tensor in manifest.bind(source):
        tensor.zero_()
    for tensor in manifest.bind(target):
        tensor.fill_(9)
    snapshot.copy_to(manifest.bind(target))
    assert target["actor"]["weight"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert target["critic"]["shared"] is target["actor"]["weight"]
    assert target["actor"]["count"].item() == 7
    assert target["critic"]["bias"].tolist() == [1.0] * 33
    assert len(snapshot.bytes) == 256


def test_a_transposed_source_arrives_in_its_own_order() -> None:
    source, target = {"m": {"a": torch.arange(6.0).reshape(2, 3).T}}, {"m": {"a": torch.zeros(3, 2)}}
    manifest = describe(source)
    snapshot = Snapshot.allocate(manifest)
    snapshot.copy_from(manifest.bind(source))
    snapshot.copy_to(manifest.bind(target))
    assert target["m"]["a"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_parameters_that_are_made_flat_afterwards_are_still_found() -> None:
    source, target = nn.Linear(2, 2), nn.Linear(2, 2)
    manifest = describe({"m": source})
    flat = FlatParameters(target)
    snapshot = Snapshot.allocate(manifest)
    with torch.no_grad():
        source.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        source.bias.copy_(torch.tensor([5.0, 6.0]))
    snapshot.copy_from(manifest.bind({"m": source}))
    snapshot.copy_to(manifest.bind({"m": target}))
    assert flat.data.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_the_order_in_which_a_model_holds_its_tensors_does_not_count() -> None:
    one, other = torch.zeros(2), torch.zeros(3, dtype=torch.float64)
    manifest = describe({"m": {"a": one, "b": other}, "n": {"a": one}})
    assert manifest == describe({"n": {"a": one}, "m": {"b": other, "a": one}})
    bound = manifest.bind({"n": {"a": one}, "m": {"b": other, "a": one}})
    assert [tensor.data_ptr() for tensor in bound] == [one.data_ptr(), other.data_ptr()]


def test_a_binding_finds_a_tensor_that_took_the_place_of_another() -> None:
    weights = {"m": {"a": torch.zeros(2), "b": torch.zeros(3)}}
    binding = Binding(describe(weights))
    first = binding.tensors(weights)
    assert binding.tensors(weights) is first
    weights["m"]["a"] = torch.ones(2)
    assert [tensor.tolist() for tensor in binding.tensors(weights)] == [[1.0, 1.0], [0.0, 0.0, 0.0]]


def test_a_binding_follows_a_tensor_whose_memory_moved() -> None:
    module = nn.Linear(2, 1, bias=False)
    binding = Binding(describe({"m": module}))
    binding.tensors({"m": module})
    module.weight.data = torch.tensor([[3.0, 4.0]])
    assert [tensor.tolist() for tensor in binding.tensors({"m": module})] == [[[3.0, 4.0]]]


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "shape of the same memory": lambda held: setattr(held["a"], "data", held["a"].data.view(4)),
    "memory, tied to another": lambda held: setattr(held["a"], "data", held["b"].data),
    "type": lambda held: setattr(held["a"], "data", held["a"].data.view(torch.int32)),
    "name": lambda held: held.update(c=held.pop("b")),
    "fewer": lambda held: held.pop("b"),
    "more": lambda held: held.update(c=torch.zeros(1)),
    "no tensor": lambda held: held.update(b="text"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_binding_refuses_what_changed_since_it_looked_and_takes_what_is_as_agreed(
    change: Callable[[dict[str, Any]], object],
) -> None:
    held = {"a": torch.zeros(2, 2), "b": torch.zeros(2, 2)}
    binding = Binding(describe({"m": held}))
    binding.tensors({"m": held})
    change(held)
    for _ in range(2):
        with pytest.raises(ConfigError):
            binding.tensors({"m": held})
    same = {"a": torch.ones(2, 2), "b": torch.zeros(2, 2)}
    assert [float(tensor.sum()) for tensor in binding.tensors({"m": same})] == [4.0, 0.0]


@pytest.mark.parametrize("nothing", [{}, {"m": {}}, {"m": nn.ReLU()}], ids=["no model", "no tensor", "no parameter"])
def test_a_binding_refuses_weights_without_a_tensor_from_the_first_time_on(nothing: Weights) -> None:
    binding = Binding(describe({"m": {"a": torch.zeros(2)}}))
    for _ in range(2):
        with pytest.raises(ConfigError, match="there are no weights to publish"):
            binding.tensors(nothing)


def network() -> nn.Sequential:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    module[1].register_buffer("of_copies", torch.zeros(5))
    return module


def test_the_state_of_a_module_is_its_live_tensors_without_those_left_out() -> None:
    module = network()
    state = ModuleState(module, leave_out=["1.of_copies"])
    tensors = state.tensors()
    assert sorted(tensors) == [
        "0.bias",
        "0.weight",
        "1.bias",
        "1.num_batches_tracked",
        "1.running_mean",
        "1.running_var",
        "1.weight",
    ]
    assert tensors["0.weight"] is module[0].weight
    assert state.tensors() is tensors


MODULE_CHANGES: dict[str, tuple[Callable[[nn.Sequential], object], str]] = {
    "parameter replaced": (lambda m: setattr(m[0], "bias", nn.Parameter(torch.full((2,), 7.0))), "0.bias"),
    "buffer replaced": (lambda m: setattr(m[1], "running_mean", torch.full((2,), 7.0)), "1.running_mean"),
    "part replaced": (lambda m: m.__setitem__(0, nn.Linear(2, 2).apply(_fill)), "0.weight"),
    "part added": (lambda m: m.append(nn.Linear(1, 1).apply(_fill)), "2.weight"),
    "parameter added": (lambda m: m[0].register_parameter("gain", nn.Parameter(torch.full((2,), 7.0))), "0.gain"),
}


@pytest.mark.parametrize(("change", "name"), MODULE_CHANGES.values(), ids=MODULE_CHANGES.keys())
def test_a_change_of_a_module_is_in_its_state_at_once(change: Callable[[nn.Sequential], object], name: str) -> None:
    module = network()
    state = ModuleState(module)
    state.tensors()
    change(module)
    assert state.tensors()[name].flatten()[0].item() == 7.0
    assert set(state.tensors()) == set(module.state_dict())


class SaysItself(nn.Linear):
    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}extra"] = torch.full((1,), float(self.weight.detach()[0, 0]))


def test_a_module_that_says_what_its_state_is_is_asked_every_time() -> None:
    part = SaysItself(1, 1)
    state = ModuleState(nn.Sequential(part))
    for value in (1.0, 2.0):
        nn.init.constant_(part.weight, value)
        assert state.tensors()["0.extra"].item() == value


def test_a_hook_of_a_modules_state_runs_every_time_once_there_is_one() -> None:
    mean = torch.zeros(2)
    module = nn.BatchNorm1d(2)
    module.running_mean = mean
    state = ModuleState(module)
    state.tensors()
    module.register_state_dict_pre_hook(lambda *_: mean.add_(1.0))  # type: ignore[no-untyped-call]
    assert [state.tensors()["running_mean"][0].item() for _ in range(2)] == [1.0, 2.0]


def test_a_modules_state_is_a_mapping_of_what_is_there_now() -> None:
    module = nn.Linear(2, 1)
    state = ModuleState(module, leave_out=["bias"])
    assert (list(state), len(state)) == (["weight"], 1)
    module.weight = nn.Parameter(torch.tensor([[1.0, 2.0]]))
    assert state["weight"].tolist() == [[1.0, 2.0]]


def test_a_part_of_a_module_that_is_gone_is_gone_from_its_state() -> None:
    module = network()
    state = ModuleState(module)
    assert "1.of_copies" in state.tensors()
    del module[1]
    assert set(state.tensors()) == {"0.weight", "0.bias"}


def _fill(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.constant_(parameter, 7.0)
