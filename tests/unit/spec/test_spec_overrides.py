"""`-o path=value`: paths, indexes, and values typed by the schema."""

from __future__ import annotations

from typing import Any

import pytest

from rlruntime.errors import ConfigError
from rlruntime.spec.overrides import apply_overrides


def _document() -> dict[str, Any]:
    return {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "job"},
        "spec": {"training": {"algorithm": "PPO", "totalFrames": 1000, "env": {"id": "CartPole-v1"}}},
    }


def _at(document: Any, *path: str | int) -> Any:
    for part in path:
        document = document[part]
    return document


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("training.ppo.learningRate=1e-2", ("training", "ppo", "learningRate"), 0.01),
        ("spec.training.ppo.learningRate=1e-2", ("training", "ppo", "learningRate"), 0.01),
        ("training.totalFrames=1e6", ("training", "totalFrames"), 1_000_000),
        ("training.evaluation.deterministic=no", ("training", "evaluation", "deterministic"), False),
        ("training.env.id=1e3", ("training", "env", "id"), "1e3"),
        ("training.env.id='1e3'", ("training", "env", "id"), "1e3"),
        ("training.env.id=y", ("training", "env", "id"), "y"),
        ("training.checkpoint.resumeFrom=runs/a: b", ("training", "checkpoint", "resumeFrom"), "runs/a: b"),
        ("training.checkpoint.resumeFrom=null", ("training", "checkpoint", "resumeFrom"), None),
        ("training.ppo.maxGradNorm=null", ("training", "ppo", "maxGradNorm"), None),
        ("training.ppo.advantageNormalization=None", ("training", "ppo", "advantageNormalization"), "None"),
        ("training.device=cuda:0", ("training", "device"), "cuda:0"),
        ("training.env.import=[minigrid, y.z]", ("training", "env", "import"), ["minigrid", "y.z"]),
        ("training.env.kwargs.gravity=1e1", ("training", "env", "kwargs", "gravity"), 10),
        ("training.env.kwargs.a.b=x=y", ("training", "env", "kwargs", "a", "b"), "x=y"),
        ("training.network.config.hiddenSizes=[8, 8]", ("training", "network"),
         {"type": "MLP", "config": {"hiddenSizes": [8, 8]}}),
        ("training.env.transforms.0.type=RewardNorm", ("training", "env", "transforms"), [{"type": "RewardNorm"}]),
        ("training.env.transforms[0]={type: RewardNorm}", ("training", "env", "transforms"), [{"type": "RewardNorm"}]),
        ("roles.0.gpus=1", ("roles",), [{"name": "trainer", "type": "Trainer", "gpus": 1}]),
        ("roles[0].gpus=1", ("roles",), [{"name": "trainer", "type": "Trainer", "gpus": 1}]),
        ("scheduling.gang=None", ("scheduling", "gang"), "None"),
    ],
)  # fmt: skip
def test_an_override_sets_its_field_typed_by_the_schema(override: str, path: tuple[str | int, ...], value: Any) -> None:
    document = _document()
    changed = apply_overrides(document, [override])
    assert _at(changed, "spec", *path) == value
    assert type(_at(changed, "spec", *path)) is type(value)
    assert document == _document()


def test_later_overrides_win_and_the_metadata_can_be_set() -> None:
    changed = apply_overrides(_document(), ["training.seed=1", "training.seed=2", "metadata.name=other"])
    assert changed["spec"]["training"]["seed"] == 2
    assert changed["metadata"] == {"name": "other"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.ppo.lerningRate=1", "-o training.ppo.lerningRate=1: spec.training.ppo.lerningRate: there is no such"
         " field; did you mean 'learningRate'?"),
        ("trainin.seed=1", "-o trainin.seed=1: spec.trainin: there is no such field; did you mean 'training'?"),
        ("training.seed.x=1", "-o training.seed.x=1: spec.training.seed.x: there is no such field"),
        ("roles.first.gpus=1", "-o roles.first.gpus=1: spec.roles.first: there is no such field; give the number of an"
         " entry, such as spec.roles[0]"),
        ("roles.3.gpus=1", "-o roles.3.gpus=1: spec.roles[3]: the list has 1 entries"),
        ("training.seed", "-o training.seed: an override has the form path=value; see training.seed=1"),
        ("=1", "-o =1: an override has the form path=value; see training.seed=1"),
        ("training..seed=1", "-o training..seed=1: an override has the form path=value; see training.seed=1"),
        ("training.seed=[", "-o training.seed=[:1: is not YAML: expected the node content, but found '<stream end>'"),
        ("training.seed=abc", "with -o training.seed=abc: spec.training.seed: must be a whole number (got 'abc')"),
        ("training.ppo.gamma=2", "with -o training.ppo.gamma=2: spec.training.ppo.gamma: must be at most 1 (got 2)"),
        ("training.ppo.gamma=.nan", "-o training.ppo.gamma=.nan:1: must be a finite number (got .nan)"),
    ],
)  # fmt: skip
def test_a_wrong_override_gets_one_line_that_names_it(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_overrides(_document(), [override])
    assert str(caught.value) == message
