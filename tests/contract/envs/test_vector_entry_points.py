"""Environments that step all their copies themselves, against what their single copies do."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlruntime.envs.make import make_vector_env
from rlruntime.envs.protocol import StepSlot, allocate_slot
from rlruntime.errors import ConfigError
from rlruntime.spec.training.env import EnvConfig


def config(factory: str, num_envs: int = 3, **kwargs: Any) -> EnvConfig:
    return EnvConfig(factory=f"toy_envs:{factory}", kwargs=kwargs, num_envs=num_envs, backend="VectorEntryPoint")


def array(slot: StepSlot) -> np.ndarray:
    assert isinstance(slot.observation, np.ndarray)
    return slot.observation


@pytest.mark.parametrize("limit", [12, 60])
def test_cartpoles_vector_environment_does_what_single_copies_do_from_equal_states(limit: int) -> None:
    copies, steps = 8, 400
    env = make_vector_env(
        EnvConfig(id="CartPole-v1", num_envs=copies, backend="VectorEntryPoint", max_episode_steps=limit)
    )
    singles = [gym.make("CartPole-v1", max_episode_steps=limit) for _ in range(copies)]
    for single in singles:
        single.reset(seed=0)
    slot = allocate_slot(env.spaces, copies)
    env.reset(range(copies), slot)
    rng = np.random.default_rng(0)
    ended = np.zeros(copies, np.bool_)
    ends = {"terminated": 0, "truncated": 0}
    for step in range(steps):
        if step:
            actions = rng.integers(0, 2, copies)
            env.step(actions, slot)
            np.testing.assert_array_equal(slot.valid, ~ended)
        for i, single in enumerate(singles):
            if slot.valid[i]:
                observation, reward, terminated, truncated, _ = single.step(actions[i])
                np.testing.assert_allclose(array(slot)[i], observation, atol=1e-5)
                assert (slot.reward[i], slot.terminated[i], slot.truncated[i]) == (reward, terminated, truncated)
            else:
                single.reset()
                single.unwrapped.state = array(slot)[i].astype(np.float64)  # type: ignore[attr-defined]
                assert (slot.reward[i], slot.terminated[i], slot.truncated[i]) == (0.0, False, False)
        ended = slot.terminated | slot.truncated
        ends["terminated"] += int(slot.terminated.sum())
        ends["truncated"] += int(slot.truncated.sum())
    assert ends["terminated"] > 20
    assert ends["truncated"] > (20 if limit == 12 else 0)
    env.close()


def test_a_single_seed_serves_environments_that_take_no_list() -> None:
    slots = []
    for seeds in ([4, 5], [4, 9], [5, 5]):
        env = make_vector_env(EnvConfig(id="CartPole-v1", num_envs=2, backend="VectorEntryPoint"))
        slot = allocate_slot(env.spaces, 2)
        env.reset(seeds, slot)
        slots.append(array(slot))
        env.close()
    np.testing.assert_array_equal(slots[0], slots[1])
    assert (slots[0] != slots[2]).any()
    assert (slots[0][0] != slots[0][1]).any()


def test_the_reward_of_the_step_that_resets_is_zero_whatever_the_environment_says() -> None:
    env = make_vector_env(config("CountingVectorEnv", length=2))
    slot = allocate_slot(env.spaces, 3)
    env.reset([0, 0, 0], slot)
    assert array(slot)[:, 0].tolist() == [0, 1, 0]
    rows = []
    for _ in range(3):
        env.step(np.zeros(3, np.int64), slot)
        rows.append((array(slot)[:, 0].tolist(), slot.reward.tolist(), slot.valid.tolist(), slot.terminated.tolist()))
    assert rows == [
        ([1, 2, 1], [1, 1, 1], [True, True, True], [False, True, False]),
        ([2, 0, 2], [1, 0, 1], [True, False, True], [True, False, True]),
        ([0, 1, 0], [0, 1, 0], [False, True, False], [False, False, False]),
    ]
    env.close()


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_an_autoreset_that_cant_be_adapted_exactly_is_refused(mode: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_vector_env(config("CountingVectorEnv", mode=mode))
    assert str(caught.value) == (
        f"spec.training.env.factory: the vector environment's autoreset is {mode}, and it ignores "
        "options={'reset_mask': ...}; build it with autoreset_mode=AutoresetMode.NEXT_STEP, "
        "or use the backend Loop or ProcessPool"
    )


def test_an_autoreset_that_isnt_said_is_refused() -> None:
    with pytest.raises(ConfigError, match="the vector environment does not say how it resets"):
        make_vector_env(config("CountingVectorEnv", mode=""))


def test_a_factory_that_lets_its_caller_choose_is_asked_for_the_next_step() -> None:
    env = make_vector_env(config("choosable_vector"))
    assert env.snapshot() is not None
    assert env._mode is AutoresetMode.NEXT_STEP  # type: ignore[attr-defined]
    env.close()


def test_same_step_masks_and_final_observations_belong_to_their_rows() -> None:
    env = make_vector_env(config("sync_vector", env="InfoMaskEnv", mode="SAME_STEP"))
    slot = allocate_slot(env.spaces, 3)
    env.reset([0, 0, 0], slot)
    seen = []
    for _ in range(5):
        env.step(np.zeros(3, np.int64), slot)
        assert slot.action_mask is not None
        seen.append((int(array(slot)[0]), bool(slot.valid[0]), slot.action_mask[0].tolist()))
    one, two, three = [True, False, False], [False, True, False], [False, False, True]
    assert seen == [(2, True, two), (3, True, three), (4, True, [True] * 3), (1, False, one), (2, True, two)]
    env.close()


def test_an_exception_in_a_vector_environment_names_the_step() -> None:
    env = make_vector_env(config("sync_vector", env="FaultyEnv", mode="NEXT_STEP", fault="raise"))
    slot = allocate_slot(env.spaces, 3)
    env.reset([0, 1, 2], slot)
    env.step(np.zeros(3, np.int64), slot)
    with pytest.raises(
        Exception, match=r"environment copies, all of them \(step 2\): step raised ValueError: the wheel"
    ):
        env.step(np.zeros(3, np.int64), slot)
    env.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"id": "Pendulum-v1"},
            "spec.training.env.backend: Pendulum-v1 has no vector entry point (got 'VectorEntryPoint')",
        ),
        (
            {"id": "CartPole-v1", "wrappers": [{"type": "TimeAwareObservation"}]},
            "spec.training.env.wrappers: wrappers of",
        ),
        (
            {"id": "CartPole-v1", "kwargs": {"gravity": 1}},
            "spec.training.env.kwargs: building the vector environment CartP",
        ),
        (
            {"factory": "toy_envs:not_an_env"},
            "spec.training.env.factory: the factory toy_envs:not_an_env takes no argument",
        ),
        (
            {"factory": "toy_envs:CountingEnv"},
            "spec.training.env.factory: the factory toy_envs:CountingEnv takes no argumen",
        ),
    ],
)
def test_what_has_no_vector_environment_is_refused(changes: dict[str, Any], words: str) -> None:
    document = {"numEnvs": 2, "backend": "VectorEntryPoint", **changes}
    with pytest.raises(ConfigError) as caught:
        make_vector_env(EnvConfig.model_validate(document))
    assert str(caught.value).startswith(words)
