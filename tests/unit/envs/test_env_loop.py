"""The in-process loop: what the battery of all backends can't see."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlruntime.envs.faults import FiniteCheck
from rlruntime.envs.make import make_vector_env
from rlruntime.envs.protocol import StepSlot, VectorEnv, allocate_slot
from rlruntime.errors import EnvironmentFault
from rlruntime.spec.training.env import EnvConfig


def make(factory: str, **kwargs: Any) -> tuple[VectorEnv, StepSlot]:
    env = make_vector_env(EnvConfig(factory=f"toy_envs:{factory}", kwargs=kwargs, num_envs=2))
    slot = allocate_slot(env.spaces, 2)
    env.reset([1, 2], slot)
    return env, slot


@pytest.mark.parametrize(("name", "limit"), [("CartPole-v1", None), ("CartPole-v1", 12), ("Pendulum-v1", 9)])
def test_it_gives_the_numbers_of_gymnasiums_own_vector_environment(name: str, limit: int | None) -> None:
    config = EnvConfig(id=name, num_envs=4, max_episode_steps=limit)
    env = make_vector_env(config)
    peer = gym.vector.SyncVectorEnv([lambda: gym.make(name, max_episode_steps=limit)] * 4)
    slot = allocate_slot(env.spaces, 4)
    seeds: list[int | None] = [3, 1, 4, 1]
    env.reset([3, 1, 4, 1], slot)
    np.testing.assert_array_equal(slot.observation, peer.reset(seed=seeds)[0])
    peer.action_space.seed(0)
    ended = np.zeros(4, np.bool_)
    for _ in range(200):
        actions = peer.action_space.sample()
        observation, reward, terminated, truncated, _ = peer.step(actions)
        env.step(actions, slot)
        np.testing.assert_array_equal(slot.observation, observation)
        np.testing.assert_array_equal(slot.reward, reward.astype(np.float32))
        np.testing.assert_array_equal(slot.terminated, terminated)
        np.testing.assert_array_equal(slot.truncated, truncated)
        np.testing.assert_array_equal(slot.valid, ~ended)
        ended = terminated | truncated
    env.close()
    peer.close()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("stuck", "environment copy 0 (step 2 of its episode, 2 in total): action_mask allows no action"),
        (
            "silent",
            "environment copy 0 (step 2 of its episode, 2 in total): info has no action_mask, "
            "although its first reset had one",
        ),
    ],
)
def test_a_mask_that_cant_be_acted_under_is_a_fault(fault: str, words: str) -> None:
    env, slot = make("InfoMaskEnv", fault=fault)
    env.step(np.zeros(2, np.int64), slot)
    with pytest.raises(EnvironmentFault) as caught:
        env.step(np.zeros(2, np.int64), slot)
    assert str(caught.value) == words


def test_masks_of_several_dimensions_are_written_as_one_row() -> None:
    env, slot = make("InfoMaskEnv", multi=True)
    env.step(np.zeros((2, 2), np.int64), slot)
    assert slot.action_mask is not None
    assert slot.action_mask.tolist() == [[True, False, False, True, False]] * 2


def test_an_environment_keeps_its_own_copy_of_an_action() -> None:
    env, slot = make("EchoEnv", action="box")
    actions = np.ones((2, 3), np.float32)
    env.step(actions, slot)
    actions.fill(-1)
    observation = slot.observation
    assert isinstance(observation, np.ndarray)
    assert observation.tolist() == [[1, 1, 1]] * 2


@pytest.mark.parametrize("size", [4, 5000])
def test_only_nan_and_infinity_fail_the_check_of_numbers(size: int) -> None:
    check = FiniteCheck(("",))
    values = np.full((1, size), np.finfo(np.float32).max, np.float32)
    slot = StepSlot(values, *(np.zeros(1, dtype) for dtype in (np.float32, np.bool_, np.bool_, np.bool_)))
    assert check.passes(slot)
    values[0, ::2] *= -1
    assert check.passes(slot)
    for bad in (np.nan, np.inf, -np.inf):
        values[0, size // 2] = bad
        assert not check.passes(slot)
    values[0, 1] = np.inf
    assert not check.passes(slot)
    values.fill(0)
    slot.reward[0] = np.nan
    assert not check.passes(slot)
    assert check.first_offender(slot)[:2] == (0, "reward")
