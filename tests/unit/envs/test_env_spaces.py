"""From an environment's spaces to what the policy sees."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlruntime.envs.loop import allows_something
from rlruntime.envs.spaces import EnvLayout, describe_spaces, flat_mask, leaf_value
from rlruntime.errors import ConfigError

TWO = spaces.Discrete(2)
BOX = spaces.Box(-1, 1, (3,), np.float32)


def describe(observation: gym.Space[Any], action: gym.Space[Any] = TWO, **options: Any) -> EnvLayout:
    return describe_spaces(observation, action, **options)


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        spaces.Box(0, 255, (84, 84, 4), np.uint8),
        spaces.Box(0, 9, (2,), np.int32),
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(4),
        spaces.Box(-1, 1, (), np.float32),
    ],
)
def test_plain_spaces_stay_as_they_are(space: gym.Space[Any]) -> None:
    layout = describe(space)
    assert layout.spaces.observation == space
    assert [leaf.path for leaf in layout.leaves] == [()]


def test_floats_become_float32_and_huge_bounds_infinite() -> None:
    layout = describe(spaces.Box(-1e300, np.finfo(np.float64).max, (2,), np.float64))
    assert layout.spaces.observation == spaces.Box(-np.inf, np.inf, (2,), np.float32)


def test_nested_spaces_become_one_flat_dict_with_dotted_keys() -> None:
    inner = spaces.Tuple((BOX, spaces.Dict({"x": TWO})))
    layout = describe(spaces.Dict({"a": spaces.Dict({"b": BOX}), "t": inner}))
    assert layout.spaces.observation == spaces.Dict({"a.b": BOX, "t.0": BOX, "t.1.x": TWO})
    assert [leaf.path for leaf in layout.leaves] == [("a", "b"), ("t", 0), ("t", 1, "x")]
    assert leaf_value({"t": (0, {"x": 7})}, ("t", 1, "x")) == 7


def test_a_tuple_becomes_a_dict_of_its_indices() -> None:
    assert describe(spaces.Tuple((BOX, TWO))).spaces.observation == spaces.Dict({"0": BOX, "1": TWO})


def test_observation_keys_select_top_level_keys_in_the_environments_order() -> None:
    space = spaces.Dict({"a": BOX, "b": TWO, "words": spaces.Text(3)})
    assert list(describe(space, observation_keys=("b", "a")).spaces.observation.spaces) == ["a", "b"]  # type: ignore[attr-defined]
    assert describe(space, observation_keys=("b",)).spaces.observation == spaces.Dict({"b": TWO})


@pytest.mark.parametrize(
    ("observation", "options", "line"),
    [
        (
            spaces.Dict({"image": BOX, "words": spaces.Text(3, charset="ab")}),
            {},
            "spec.training.env.id: observation key 'words' is Text(1, 3, charset=ab), which a network can't take; "
            "choose keys with observationKeys, or put a wrapper around the environment that leaves it out",
        ),
        (
            spaces.Box(-1.0, 1.0, (0,)),
            {},
            "spec.training.env.id: observation is Box([], [], (0,), float32), which a network can't take; "
            "choose keys with observationKeys, or put a wrapper around the environment that leaves it out",
        ),
        (
            spaces.Sequence(TWO),
            {},
            "spec.training.env.id: observation is Sequence(Discrete(2), stack=False), which a network can't take; "
            "choose keys with observationKeys, or put a wrapper around the environment that leaves it out",
        ),
        (
            spaces.Dict({"image": BOX}),
            {"observation_keys": ("imag",)},
            "spec.training.env.observationKeys: the observation has no such key (got 'imag'); did you mean 'image'?",
        ),
        (
            spaces.Dict({"image": BOX, "pose": BOX}),
            {"observation_keys": ("q",)},
            "spec.training.env.observationKeys: the observation has no such key (got 'q'); the keys are image, pose",
        ),
        (
            TWO,
            {"observation_keys": ("a",)},
            "spec.training.env.observationKeys: the observation Discrete(2) is not a Dict, so it has no keys "
            "(got ['a']); remove observationKeys",
        ),
        (
            spaces.Dict({"a.b": BOX, "a": spaces.Dict({"b": BOX})}),
            {},
            "spec.training.env.id: two parts of the observation would both be called 'a.b'; "
            "rename one; nested keys are joined with dots",
        ),
        (
            spaces.Dict({"action_mask": spaces.MultiBinary(2)}),
            {},
            "spec.training.env.observationKeys: no observation is left for the policy; choose at least one key",
        ),
        (
            spaces.Dict({"x": BOX, "action_mask": spaces.MultiBinary(3)}),
            {},
            "spec.training.env.id: action_mask in the observation has 3 entries, but Discrete(2) has 2 actions; "
            "give one entry per action",
        ),
        (
            BOX,
            {"first_info": {"action_mask": [1, 1, 0]}},
            "spec.training.env.id: action_mask in info has 3 entries, but Discrete(2) has 2 actions; "
            "give one entry per action",
        ),
    ],
)
def test_what_a_policy_cant_take_is_one_line(observation: gym.Space[Any], options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        describe(observation, **options)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    "action",
    [spaces.Dict({"a": TWO}), spaces.MultiBinary(3), spaces.Box(0, 5, (2,), np.int64), spaces.Tuple((TWO, TWO))],
)
def test_actions_outside_of_discrete_multidiscrete_and_box_are_refused(action: gym.Space[Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        describe(BOX, action, field="spec.training.env.factory")
    assert str(caught.value) == (
        f"spec.training.env.factory: the action space {action} is not supported; "
        "supported are Discrete, MultiDiscrete and Box of floats; "
        "put a wrapper around the environment that offers one of them"
    )


def test_a_mask_leaves_the_observation_where_actions_are_counted() -> None:
    space = spaces.Dict({"x": BOX, "action_mask": spaces.Box(0, 1, (5,), np.int8)})
    counted = describe(space, spaces.MultiDiscrete([2, 3])).spaces
    assert (counted.action_mask, counted.action_mask_size, counted.observation) == (
        "observation",
        5,
        spaces.Dict({"x": BOX}),
    )
    box_action = describe(space, BOX).spaces
    assert (box_action.action_mask, list(box_action.observation.spaces)) == (None, ["action_mask", "x"])  # type: ignore[attr-defined]


def test_masks_of_several_dimensions_are_joined() -> None:
    assert flat_mask((np.array([1, 0]), np.array([0, 0, 1]))).tolist() == [True, False, False, False, True]
    assert flat_mask([1, 0, 1]).tolist() == [True, False, True]


def test_a_mask_must_allow_something_in_every_dimension() -> None:
    masks = np.array([[1, 0, 0, 1, 0], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]], np.bool_)
    assert allows_something(masks, spaces.MultiDiscrete([2, 3])).tolist() == [True, False, False]
    assert allows_something(masks[:, :3], spaces.Discrete(3)).tolist() == [True, True, True]
