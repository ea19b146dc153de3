"""Transforms of observations, rewards and actions, on literals."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import rlruntime.transforms.builtin  # noqa: F401  (registers them)
from rlruntime.envs.protocol import EnvSpaces
from rlruntime.errors import ConfigError
from rlruntime.spec.training.component import Component
from rlruntime.transforms.base import RolloutView
from rlruntime.transforms.columns import ColumnTransforms
from rlruntime.transforms.staging import build_transform

F32 = np.float32
DICT = spaces.Dict(
    {
        "a": spaces.Box(-1, 1, (2,), F32),
        "b": spaces.Box(0, 5, (1,), F32),
        "c": spaces.Discrete(3),
        "image": spaces.Box(0, 255, (2, 2, 3), np.uint8),
    }
)
IMAGE = spaces.Box(0, 255, (2, 2, 3), np.uint8)
ACTION = spaces.Box(np.array([-1.0, 0.0], F32), np.array([1.0, 10.0], F32))


def make(name: str, space: gym.Space[Any] = DICT, action: gym.Space[Any] = ACTION, **config: Any) -> Any:
    component = Component(type=name, config=config)
    return build_transform(component, EnvSpaces(space, action), field="spec.training.env.transforms[0]")


def box(space: Any) -> tuple[list[float], list[float], tuple[int, ...], str]:
    return space.low.reshape(-1).tolist(), space.high.reshape(-1).tolist(), space.shape, str(space.dtype)


def test_keys_are_joined_in_the_order_given_with_their_bounds() -> None:
    cat = make("CatTensors", keys=["b", "a"], outKey="all")
    assert box(cat.observation_space(DICT)["all"]) == ([0, -1, -1], [5, 1, 1], (3,), "float32")
    assert set(cat.observation_space(DICT).spaces) == {"all", "c", "image"}
    rows = {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([[3.0]]), "c": torch.tensor([1])}
    out = cat(rows)
    assert out["all"].tolist() == [[3, 1, 2]]
    assert out["c"].tolist() == [1]
    assert "a" not in out
    assert cat.inverse(out)["a"].tolist() == [[1, 2]]


def test_all_keys_joined_become_the_observation_itself() -> None:
    space = spaces.Dict({"y": spaces.Box(0, 1, (1,), F32), "x": spaces.Box(2, 3, (1,), F32)})
    cat = make("CatTensors", space)
    assert box(cat.observation_space(space)) == ([2, 0], [3, 1], (2,), "float32")
    assert cat({"y": torch.tensor([[0.5]]), "x": torch.tensor([[2.5]])}).tolist() == [[2.5, 0.5]]


def test_keys_are_selected_excluded_and_renamed() -> None:
    rows = {
        "a": torch.tensor([[1.0, 2.0]]),
        "b": torch.tensor([[3.0]]),
        "c": torch.tensor([1]),
        "image": torch.zeros(1),
    }
    assert set(make("Select", keys=["c", "a"])(rows)) == {"a", "c"}
    assert set(make("Exclude", keys=["image"])(rows)) == {"a", "b", "c"}
    rename = make("Rename", names={"a": "joints"})
    assert set(rename(rows)) == {"joints", "b", "c", "image"}
    assert rename.inverse(rename(rows))["a"] is rows["a"]
    assert rename.observation_space(DICT)["joints"] == DICT["a"]


def test_dimensions_are_moved_added_and_taken_away() -> None:
    rows = torch.arange(12, dtype=torch.uint8).reshape(1, 2, 2, 3)
    assert make("Permute", IMAGE, dims=[2, 0, 1])(rows).shape == (1, 3, 2, 2)
    assert make("Permute", IMAGE, dims=[-1, 0, 1])(rows)[0, 2].tolist() == [[2, 5], [8, 11]]
    assert make("FlattenObservation", IMAGE)(rows).tolist() == [list(range(12))]
    assert make("Unsqueeze", IMAGE, dim=0)(rows).shape == (1, 1, 2, 2, 3)
    assert make("Unsqueeze", IMAGE, dim=-1)(rows).shape == (1, 2, 2, 3, 1)
    column = spaces.Box(0, 1, (1, 3), F32)
    assert make("Squeeze", column, dim=0)(torch.ones(4, 1, 3)).shape == (4, 3)


def test_bounds_follow_the_elements_that_are_moved() -> None:
    space = spaces.Box(np.array([[0, 1], [2, 3]], F32), np.array([[4, 5], [6, 7]], F32))
    assert box(make("Permute", space, dims=[1, 0]).observation_space(space))[:2] == ([0, 2, 1, 3], [4, 6, 5, 7])


def test_types_are_cast_with_their_bounds() -> None:
    cast = make("DTypeCast", spaces.Box(-np.inf, np.inf, (2,), F32), dtype="int32")
    assert box(cast.observation_space(DICT["a"]))[:2] == ([-(2**31)] * 2, [2**31 - 1] * 2)
    assert cast(torch.tensor([[1.9, -1.9]])).tolist() == [[1, -1]]
    flag = make("DTypeCast", spaces.Box(-1, 1, (2,), F32), dtype="bool")
    assert flag.observation_space(DICT["a"]) == spaces.MultiBinary((2,))
    assert flag(torch.tensor([[0.0, -0.5]])).tolist() == [[0, 1]]
    double = make("DoubleToFloat", spaces.Box(-1, 1, (1,), np.float64))
    assert double(torch.zeros(1, 1, dtype=torch.float64)).dtype == torch.float32


def test_functions_are_named_or_imported() -> None:
    space = spaces.Box(0, 9, (2,), F32)
    assert make("Unary", space, function="square")(torch.tensor([[2.0, -3.0]])).tolist() == [[4, 9]]
    assert make("Unary", space, function="torch:floor")(torch.tensor([[2.5, -3.5]])).tolist() == [[2, -4]]
    torch.testing.assert_close(
        make("Unary", space, function="symlog")(torch.tensor([[np.e - 1, 1 - np.e]])), torch.tensor([[1.0, -1.0]])
    )


def test_images_become_floats_grey_smaller_and_cut_out() -> None:
    rows = torch.tensor([[[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]]], dtype=torch.uint8)
    assert make("ToFloatImage", IMAGE, channels="Last")(rows)[0, 0].tolist() == [[1, 0], [0, 1]]
    assert make("GrayScale", IMAGE, channels="Last")(rows)[0, :, :, 0].tolist() == [[76, 150], [29, 255]]
    assert make("Resize", IMAGE, channels="Last", height=1, width=1)(rows)[0, 0, 0].tolist() == [128, 128, 128]
    assert (
        make("Resize", IMAGE, channels="Last", height=1, width=2, interpolation="Nearest")(rows)[0, 0].tolist()
        == rows[0, 0].tolist()
    )
    assert make("Crop", IMAGE, channels="Last", top=1, left=1, height=1, width=1)(rows)[0, 0, 0].tolist() == [
        255,
        255,
        255,
    ]
    wide = spaces.Box(0, 255, (3, 4, 4), np.uint8)
    middle = make("CenterCrop", wide, height=2, width=2)
    picture = torch.arange(48, dtype=torch.uint8).reshape(1, 3, 4, 4)
    assert middle(picture)[0, 0].tolist() == [[5, 6], [9, 10]]
    assert middle.observation_space(wide).shape == (3, 2, 2)


def test_rewards_are_scaled_clipped_and_made_signs() -> None:
    reward = torch.tensor([3.0, -0.5, 0.0])
    assert make("RewardScaling", scale=2.0, loc=1.0).map_reward(reward).tolist() == [7, 0, 1]
    assert make("RewardClipping", low=-0.25, high=1.0).map_reward(reward).tolist() == [1, -0.25, 0]
    assert make("RewardSign").map_reward(reward).tolist() == [1, -1, 0]
    assert make("BinarizeReward").map_reward(reward).tolist() == [1, 0, 0]
    assert make("LineariseRewards", weights=[1.0, 10.0]).map_reward(torch.tensor([[1.0, 2.0]])).tolist() == [21]
    with pytest.raises(ConfigError, match=r"LineariseRewards has 2 weights for rewards of shape \(1, 3\)"):
        make("LineariseRewards", weights=[1.0, 10.0]).map_reward(torch.zeros(1, 3))


def test_rewards_to_go_end_with_their_episode_or_the_rollout() -> None:
    t, f = True, False
    flags = torch.tensor([[f], [t], [f], [f], [f]])
    valid = torch.tensor([[t], [t], [f], [t], [t]])
    reward = torch.tensor([[1.0], [2.0], [0.0], [4.0], [8.0]])
    view = RolloutView(torch.zeros(5, 1, 2), reward, flags, torch.zeros_like(flags), valid)
    assert make("RewardToGo", gamma=0.5).reward(view, reward)[:, 0].tolist() == [2.0, 2.0, 0.0, 8.0, 8.0]
    # A step that resets keeps the reward 0, whatever is added to the others.
    assert make("RewardScaling", loc=1.0).reward(view, reward)[:, 0].tolist() == [2.0, 3.0, 0.0, 5.0, 9.0]


def test_actions_are_scaled_to_the_bounds_of_the_environment() -> None:
    scaling = make("ActionScaling")
    assert box(scaling.policy_space) == ([-1, -1], [1, 1], (2,), "float32")
    assert scaling.action_inverse(torch.tensor([[-1.0, -1.0], [0.0, 1.0]])).tolist() == [[-1, 0], [0, 10]]
    assert scaling.action_forward(torch.tensor([[0.5, 2.5]])).tolist() == [[0.5, -0.5]]
    actions = np.random.default_rng(0).uniform(-1.5, 1.5, (50, 2)).astype(F32)
    taken = scaling.before_step(actions)
    assert taken.dtype == F32
    np.testing.assert_allclose(taken, scaling.action_inverse(torch.from_numpy(actions)).numpy(), rtol=1e-6)


def test_actions_are_chosen_among_points() -> None:
    centres = make("ActionDiscretizer", intervals=2)
    assert centres.policy_space == spaces.MultiDiscrete([2, 2])
    assert centres.action_inverse(torch.tensor([[0, 1], [1, 0]])).tolist() == [[-0.5, 7.5], [0.5, 2.5]]
    assert centres.action_forward(torch.tensor([[0.9, 4.9]])).tolist() == [[1, 0]]
    edges = make("ActionDiscretizer", action=spaces.Box(-1, 1, (1,), F32), intervals=3, points="Edges")
    assert edges.policy_space == spaces.Discrete(3)
    assert edges.action_inverse(torch.tensor([0, 1, 2])).tolist() == [[-1], [0], [1]]


def test_bytes_are_stored_and_floats_are_sampled() -> None:
    images = ColumnTransforms([make("ToFloatImage", IMAGE, channels="Last")], "write")
    floats = torch.tensor([[[[1.0, 0.2], [0.4, 0.6]]] * 3]).reshape(1, 3, 2, 2)
    stored = images.inverse({"observation": floats})
    assert stored["observation"].dtype == torch.uint8
    assert stored["observation"].shape == (1, 2, 2, 3)
    torch.testing.assert_close(images(stored)["observation"], floats)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("CatTensors", {"keys": ["a", "bb"], "outKey": "x"}, r"finds no such key .*'bb'.*did you mean 'b'\?"),
        ("CatTensors", {"keys": ["a", "image"], "outKey": "x"}, r"only what differs in the last dimension alone"),
        ("CatTensors", {"keys": ["a", "b"]}, r"CatTensors leaves c, image beside .*; give outKey, or join"),
        ("CatTensors", {"keys": ["a", "b"], "outKey": "c"}, r"two parts of the observation one name"),
        ("Rename", {"names": {"a": "b"}}, r"Rename would give two parts .*; choose another name"),
        ("Exclude", {"keys": ["a", "b", "c", "image"]}, r"Exclude leaves no observation"),
        ("FlattenObservation", {"keys": ["c"]}, r"FlattenObservation needs a Box, and the observation 'c' is Discrete"),
        ("Permute", {"dims": [0, 0, 1]}, r"dims must list each dimension once"),
        ("Squeeze", {"dim": 7}, r"Squeeze needs a Box with a dimension of size 1 .*; remove the transform"),
        (
            "Crop",
            {"height": 3, "width": 1, "channels": "Last"},
            r"Crop reaches beyond an image of 2 x 2 pixels .*; cut out less",
        ),
        ("Unary", {"function": "sqare"}, r"Unary knows no such function .*did you mean 'square'"),
        (
            "Unary",
            {"function": "math:sqrt"},
            r"the function of Unary raised ValueError: .*got .math:sqrt.\); give one that takes a tensor",
        ),
        ("ObservationNorm", {"keys": ["a"], "loc": [0, 0, 0], "scale": [1]}, r"loc of ObservationNorm has 3 numbers"),
        ("ActionMask", {"key": "mask"}, r"ActionMask finds no such key"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_a_remedy(name: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name, **config)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("ObservationNorm", {"loc": [0.0]}, r"config: give loc and scale together"),
        ("RewardScaling", {"scale": 0.0}, r"a scale of 0 leaves nothing to learn from"),
        ("RewardClipping", {"low": 1.0, "high": 0.0}, r"low must be below high"),
        ("FrameSkip", {"frames": 2, "maxPool": 3}, r"can't be more than frames"),
        ("Crop", {"height": 1, "width": 1, "topp": 1}, r"config.topp: .*did you mean 'top'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(name: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name, **config)


@pytest.mark.parametrize("name", ["ActionScaling", "ActionDiscretizer"])
def test_action_without_bounds_can_not_be_mapped(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} needs a Box action with finite bounds"):
        make(name, action=spaces.Box(-np.inf, np.inf, (1,), F32))
