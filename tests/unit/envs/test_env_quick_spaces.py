"""The quick spaces answer as Gymnasium's do."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rlruntime.envs.quick_spaces import QuickDiscrete, QuickMultiDiscrete, quicken

ODD: list[Any] = [True, 0.0, 1.5, None, "1", np.float64(1), np.array(1), np.array([1]), np.uint8(1), [1], (1, 1)]


@given(st.integers(-5, 5), st.integers(1, 6), st.integers(-12, 12))
def test_a_quick_discrete_contains_what_a_discrete_does(start: int, n: int, value: int) -> None:
    plain, quick = spaces.Discrete(n, start=start), QuickDiscrete(n, start=start)
    for x in (np.int64(value), value, np.int8(value), *ODD):
        assert quick.contains(x) is plain.contains(x), x


@given(st.lists(st.integers(-4, 6), min_size=2, max_size=2))
def test_a_quick_multidiscrete_contains_what_a_multidiscrete_does(values: list[int]) -> None:
    plain, quick = (cls([2, 4], start=[-1, 2]) for cls in (spaces.MultiDiscrete, QuickMultiDiscrete))
    for x in (np.array(values), values, np.array(values, np.int8), np.array([values]), np.array(values, float), *ODD):
        assert quick.contains(x) is plain.contains(x), x


@pytest.mark.parametrize(
    ("space", "twin"),
    [
        (spaces.Discrete(3, start=1), spaces.Discrete(3, start=1)),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 3])),
    ],
)
def test_a_quickened_space_stays_equal_to_what_it_was(space: gym.Space[Any], twin: gym.Space[Any]) -> None:
    env = gym.make("CartPole-v1")
    env.unwrapped.action_space = space
    quicken(env)
    assert type(space) is not type(twin)
    assert (space == twin, twin == space, repr(space)) == (True, True, repr(twin))
    space.seed(3)
    twin.seed(3)
    np.testing.assert_array_equal([space.sample() for _ in range(9)], [twin.sample() for _ in range(9)])


def test_other_spaces_are_left_alone() -> None:
    env = gym.make("Pendulum-v1")
    quicken(env)
    assert type(env.unwrapped.action_space) is spaces.Box
