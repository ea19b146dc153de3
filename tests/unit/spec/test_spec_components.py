"""Configs of built-in parts, checked without importing the parts."""

from __future__ import annotations

from typing import Any

import pytest

from rlruntime.spec.loader import parse_manifest
from rlruntime.spec.problems import ManifestError
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.components import check_components, parse_component_config
from rlruntime.spec.training.network import MLPConfig
from rlruntime.spec.training.training import TrainingSpec
from rlruntime.spec.training.transforms import ObservationNormConfig, RewardNormConfig


def _training(env: dict[str, Any] | None = None, **fields: Any) -> TrainingSpec:
    training = {"algorithm": "PPO", "totalFrames": 1000, "env": {"id": "CartPole-v1", **(env or {})}, **fields}
    document = {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "job"},
        "spec": {"training": training},
    }
    return parse_manifest(document, "job.yaml").spec.training


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"network": {"type": "MPL"}},
            "spec.training.network.type: there is no network of this name (got 'MPL'); did you mean 'MLP'?",
        ),
        (
            {"network": {"type": "MLP", "config": {"hidenSizes": [1]}}},
            "spec.training.network.config.hidenSizes: there is no such field; did you mean 'hiddenSizes'?",
        ),
        (
            {"network": {"type": "CNN", "config": {"strides": [0]}}},
            "spec.training.network.config.strides[0]: must be at least 1 (got 0)",
        ),
        (
            {"env": {"transforms": [{"type": "ObservationNorm"}, {"type": "RewardNorm", "config": {"clip": 0}}]}},
            "spec.training.env.transforms[1].config.clip: must be above 0 (got 0)",
        ),
        (
            {"env": {"transforms": [{"type": "observationnorm"}]}},
            "spec.training.env.transforms[0].type: there is no transform of this name (got 'observationnorm');"
            " did you mean 'ObservationNorm' or 'FlattenObservation'?",
        ),
        (
            {"loggers": [{"type": "Zzz"}]},
            "spec.training.loggers[0].type: there is no logger of this name (got 'Zzz'); use TensorBoard, WandB,"
            " MLflow, package.module:Object",
        ),
        (
            {"callbacks": [{"type": "Early"}]},
            "spec.training.callbacks[0].type: there is no callback of this name (got 'Early');"
            " use package.module:Object",
        ),
    ],
)
def test_a_wrong_part_is_refused_with_its_path(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        check_components(_training(**fields))
    assert str(caught.value) == message


def test_a_part_of_ones_own_is_left_to_the_start_of_the_run() -> None:
    check_components(_training(network={"type": "my.nets:Big", "config": {"anything": 1}}))


def test_a_name_that_an_imported_module_may_register_is_left_to_the_start_of_the_run() -> None:
    check_components(_training(env={"import": ["my_parts"]}, network={"type": "MyNet"}))


def test_every_problem_of_every_part_is_kept() -> None:
    training = _training(
        network={"type": "MLP", "config": {"shared": 1, "activation": "Tan"}}, loggers=[{"type": "Wand"}]
    )
    with pytest.raises(ManifestError) as caught:
        check_components(training)
    assert [problem.field for problem in caught.value.problems] == [
        "spec.training.network.config.activation",
        "spec.training.network.config.shared",
        "spec.training.loggers[0].type",
    ]


def test_a_built_in_config_is_parsed_into_its_model_and_another_is_handed_on() -> None:
    mlp = Component(type="MLP", config={"hiddenSizes": [8], "activation": "ReLU"})
    assert parse_component_config("network", mlp, "x") == MLPConfig(hidden_sizes=(8,), activation="ReLU")
    own = Component(type="a:B", config={"hiddenSizes": "any"})
    assert parse_component_config("network", own, "x") == {"hiddenSizes": "any"}


def test_normalisation_has_the_documented_defaults() -> None:
    observations = {"keys": (), "clip": 10.0, "epsilon": 1e-8, "loc": None, "scale": None}
    assert ObservationNormConfig().model_dump() == observations
    assert RewardNormConfig().model_dump() == {"clip": 10.0, "gamma": None, "epsilon": 1e-8}
