"""Whatever a transform of a job refuses, the error names its place in the manifest."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from small_jobs import built_trainer, small_job

from rlruntime.errors import ConfigError
from rlruntime.registry import names_of
from rlruntime.transforms.base import Transform

PLACE = "spec.training.env.transforms[1]"
KEY = "finds no such key in the observation (got 'nope'); the keys are observation, step_count"
NO_LEAF = "and no part of the observation is one (got Dict("


def refusal(name: str, config: dict[str, Any]) -> ConfigError | None:
    """Return the error of a transform behind another that adds a key to CartPole's observation of four numbers."""
    parts = [{"type": "StepCounter"}, {"type": name, "config": config}]
    try:
        built_trainer(small_job(env={"id": "CartPole-v1", "transforms": parts}))
    except ConfigError as error:
        return error
    return None


@pytest.mark.parametrize("name", names_of("transform"))
def test_a_transform_without_settings_works_or_names_its_place(name: str) -> None:
    error = refusal(name, {})
    assert error is None or error.field.startswith(PLACE)


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("StepCounter", {}, "StepCounter would add a key that the observation has already (got 'step_count')"),
        ("ActionScaling", {}, "ActionScaling needs a Box action with finite bounds (got Discrete(2)); remove it"),
        ("ActionMask", {"key": "nope"}, f"ActionMask {KEY}"),
        ("Select", {"keys": ["nope"]}, f"Select {KEY}"),
        ("Exclude", {"keys": ["nope"]}, f"Exclude {KEY}"),
        ("Rename", {"names": {"nope": "b"}}, f"Rename {KEY}"),
        ("CatTensors", {"keys": ["nope"]}, f"CatTensors {KEY}"),
        ("ObservationNorm", {"keys": ["nope"]}, f"ObservationNorm {KEY}"),
        ("CatFrames", {"keys": ["nope"]}, f"CatFrames {KEY}"),
        ("Resize", {"height": 8, "width": 8}, f"Resize needs an image (a Box with three dimensions), {NO_LEAF}"),
        ("GrayScale", {}, f"GrayScale needs an image with three channels, {NO_LEAF}"),
        ("Permute", {"dims": [1, 0]}, f"Permute needs a Box with as many dimensions as dims lists, {NO_LEAF}"),
        ("Permute", {"dims": [0, 0]}, "dims must list each dimension once (got [0, 0]); correct dims"),
        ("Squeeze", {"dim": 3}, f"Squeeze needs a Box with a dimension of size 1 where dim points, {NO_LEAF}"),
        ("Unary", {"function": "math:nope"}, "the module 'math' has no 'nope' (got 'math:nope')"),
        ("ModuleTransform", {}, "ModuleTransform has no module (got null); give factory: package.module:callable"),
    ],
)
def test_what_the_spaces_do_not_allow_is_one_line_with_the_place(name: str, config: dict[str, Any], words: str) -> None:
    assert str(refusal(name, config)).startswith(f"{PLACE}: {words}")


def test_a_setting_that_can_not_be_imported_keeps_its_own_path() -> None:
    error = refusal("ModuleTransform", {"factory": "math:nope"})
    assert str(error).startswith(f"{PLACE}.config.factory: the module 'math' has no 'nope'")


class Fielded(Transform):
    """One of a user's own, with a property that the project might have a name for too."""

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()

    @property
    def field(self) -> float:
        """Of magnets."""
        return 1.5


def test_a_users_own_transform_may_have_attributes_of_any_name() -> None:
    parts = [{"type": f"{Fielded.__module__}:Fielded"}]
    trainer = built_trainer(small_job(env={"id": "CartPole-v1", "transforms": parts}))
    assert isinstance(trainer.policy.transforms[0], Fielded)
    trainer.close()
