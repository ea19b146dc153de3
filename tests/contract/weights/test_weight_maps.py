"""Weights under other names, seen from within the receiving process."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from weight_processes import Make, MemberProcess, make_models

from rlruntime.errors import ConfigError
from rlruntime.weights.mapping import Tensors, WeightMap
from rlruntime.weights.protocol import WeightSyncError


class Learner(nn.Module):
    """Names, shapes and a layout of its own: the decoder's weight lies transposed, the critic is in full precision."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.transposed = nn.Parameter(torch.arange(32.0).view(4, 8))
        self.offset = nn.Parameter(torch.full((8,), 0.5))
        self.value = nn.Linear(4, 8)
        self.unpublished = nn.Linear(2, 2)
        self.register_buffer("steps", torch.tensor(3))


def to_receiver(tensors: Tensors) -> Mapping[str, Tensor]:
    """Turn the weight, tie it as the receiver does, and give the critic its precision."""
    weight = tensors.pop("actor/weight").t()
    cast = {name: part.to(torch.bfloat16) for name, part in tensors.items() if name.startswith("critic/")}
    return {**tensors, **cast, "actor/encoder.weight": weight, "actor/decoder.weight": weight}


MAP = WeightMap(
    names={
        "learner/transposed": "actor/weight",
        "learner/offset": "actor/decoder.bias",
        "learner/steps": "actor/count",
    },
    prefixes={"learner/value.": "critic/"},
    function=to_receiver,
)


def test_a_receiver_with_other_names_gets_what_the_map_makes_of_each_version(make: Make) -> None:
    learner = Learner()
    publisher = make({"learner": learner}, weight_map=MAP)
    with MemberProcess(publisher, "a") as member:
        assert member.answer()["joined"] == 1
        publisher.wait_joined(30.0)
        for version in (1, 2):
            with torch.no_grad():
                learner.transposed.add_(1.0)
                learner.value.weight.fill_(version + 1 / 512)
                learner.value.bias.zero_()
                learner.steps.add_(1)
            publication = publisher.publish({"learner": learner})
            assert member.acquire(version)["version"] == publication.version == version
            seen = member.ask(do="show")
            assert seen["actor/encoder.weight"] == seen["actor/decoder.weight"]
            assert seen["actor/encoder.weight"] == learner.transposed.t().tolist()
            assert seen["actor/decoder.bias"] == [0.5] * 8
            assert seen["actor/count"] == 3 + version
            assert seen["critic/weight"] == [[float(version)] * 4] * 8  # bfloat16 has no room for the rest
            assert seen["critic/bias"] == [0.0] * 8


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        (
            WeightMap(names={"learner/offset": "actor/decoder.bias"}),
            "actor/count is absent in the manifest, int64[] here",
        ),
        (
            WeightMap(names={"learner/transposed": "actor/decoder.bias"}),
            "actor/decoder.bias is float32[4, 8] in the manifest, float32[8] here",
        ),
    ],
    ids=["missing", "shape"],
)
def test_a_map_that_does_not_fit_the_receiver_is_refused_before_anything_moves(
    weight_map: WeightMap, words: str, make: Make
) -> None:
    publisher = make({"learner": Learner()}, weight_map=weight_map)
    with MemberProcess(publisher, "a") as member:
        answer = member.answer()
        assert words in answer["error"]
        assert answer["extremes"] == [-1.0, -1.0]
        with pytest.raises(WeightSyncError, match="not those that are published"):
            publisher.wait_joined(30.0)


def test_a_map_whose_outcome_changes_is_refused_at_the_publication_and_receivers_keep_what_they_have(
    make: Make,
) -> None:
    learner, models = Learner(), make_models()
    publisher = make({"learner": learner}, weight_map=MAP)
    with MemberProcess(publisher, "a") as member:
        assert member.answer()["joined"] == 1
        publisher.wait_joined(30.0)
        publisher.publish({"learner": learner})
        assert member.acquire(1)["version"] == 1
        before = member.ask(do="show")
        learner.offset = nn.Parameter(torch.zeros(9))
        with pytest.raises(ConfigError, match=r"actor/decoder\.bias is float32\[8\] in the manifest, float32\[9\]"):
            publisher.publish({"learner": learner})
        assert publisher.version == 1
        assert member.ask(do="show") == before
    assert set(before) == {f"actor/{name}" for name in models["actor"].state_dict()} | {"critic/weight", "critic/bias"}
