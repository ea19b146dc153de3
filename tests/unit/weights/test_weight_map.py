"""What a weight map makes of weights, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlruntime.errors import ConfigError
from rlruntime.weights.mapping import WeightMap


def weights() -> dict[str, dict[str, Tensor]]:
    return {
        "policy": {"body.0.weight": torch.ones(2, 3), "body.0.bias": torch.ones(2), "head": torch.ones(4)},
        "critic": {"head": torch.zeros(1)},
    }


def names(weight_map: WeightMap) -> dict[str, list[str]]:
    return {model: list(tensors) for model, tensors in weight_map(weights()).items()}


def test_a_full_name_counts_before_a_prefix_and_a_longer_prefix_before_a_shorter_one() -> None:
    rules = WeightMap(
        names={"policy/body.0.bias": "acts/offset"},
        prefixes={"policy/": "acts/net.", "policy/body.": "acts/trunk.", "critic/": None},
    )
    assert names(rules) == {"acts": ["trunk.0.weight", "offset", "net.head"]}


def test_what_no_rule_names_is_left_out_or_keeps_its_name() -> None:
    rename: dict[str, str | None] = {"policy/head": "policy/top"}
    assert names(WeightMap(names=rename)) == {"policy": ["top"]}
    kept = names(WeightMap(names={**rename, "critic/head": None}, others="Keep"))
    assert kept == {"policy": ["body.0.weight", "body.0.bias", "top"]}


def test_tensors_are_the_live_ones_unless_a_function_makes_others() -> None:
    module = nn.Linear(2, 3)
    mapped = WeightMap(prefixes={"m/": "n/"})({"m": module})
    assert mapped["n"]["weight"].data_ptr() == module.weight.data_ptr()
    halves = WeightMap(
        prefixes={"m/": "n/"},
        function=lambda tensors: {"n/both": torch.cat([tensors["n/weight"], tensors["n/bias"].unsqueeze(1)], 1) / 2},
    )({"m": module})
    assert halves["n"].keys() == {"both"}
    assert not halves["n"]["both"].requires_grad
    expected = torch.cat([module.weight, module.bias.unsqueeze(1)], 1) / 2
    assert torch.equal(halves["n"]["both"], expected)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (
            {"names": {"policy/tail": "policy/top"}},
            r"a rule of the weight map fits none .* \(got 'policy/tail'",
        ),
        ({"prefixes": {"body.": "x/"}}, r"fits none of the weights \(got 'body\.'"),
        (
            {"prefixes": {"policy/": "m/", "critic/": "m/"}},
            "policy/head and critic/head would both be published as m/head",
        ),
        ({"names": {"policy/head": "head"}}, r"a published tensor's name is <model>/<name> \(got 'head'"),
    ],
)
def test_a_map_that_cannot_be_meant_is_refused_in_one_line(rules: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        WeightMap(**rules)(weights())
