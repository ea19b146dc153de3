"""Which environments can be captured, and that what is restored continues bit for bit."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import toy_envs

from rlruntime.envs.make import make_single_env, make_vector_env
from rlruntime.envs.protocol import allocate_slot
from rlruntime.envs.snapshots import capture, identical, prove_snapshot, restore
from rlruntime.errors import CheckpointError
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import EnvConfig

EXACT = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCarContinuous-v0", "FrozenLake-v1", "Taxi-v4"]
MUJOCO = ["HalfCheetah-v5", "Hopper-v5", "Ant-v5", "Humanoid-v5"]


def make(name: str, **fields: Any) -> Any:
    return make_single_env(EnvConfig(id=name, **fields))


def outcomes(env: Any, actions: list[Any], *, reset_at: int) -> list[Any]:
    record: list[Any] = []
    for number, action in enumerate(actions):
        if number == reset_at:
            record.append(env.reset()[0])
        observation, reward, terminated, truncated, _ = env.step(action)
        record.append((np.array(observation), reward, terminated, truncated))
        if terminated or truncated:
            record.append(env.reset()[0])
    return record


@pytest.mark.parametrize("name", EXACT + MUJOCO)
def test_registered_environments_continue_bit_for_bit_over_hundreds_of_steps(name: str) -> None:
    env, other = make(name), make(name)
    env.reset(seed=5)
    env.action_space.seed(5)
    actions = [env.action_space.sample() for _ in range(250)]
    outcomes(env, actions[:50], reset_at=-1)
    proof = prove_snapshot(partial(make, name))
    assert proof.restorable, proof.reason
    blob = capture(env, {"any": 1}, baseline=proof.baseline, full=proof.full)
    assert blob is not None
    assert restore(other, blob) == {"any": 1}
    assert identical(outcomes(env, actions[50:], reset_at=120), outcomes(other, actions[50:], reset_at=120))
    env.close()
    other.close()


def test_only_mujoco_environments_that_read_older_quantities_need_all_of_their_data() -> None:
    assert [prove_snapshot(partial(make, name)).full for name in MUJOCO] == [False, False, True, True]


def test_minigrid_is_restorable() -> None:
    pytest.importorskip("minigrid")
    proof = prove_snapshot(partial(make, "MiniGrid-DoorKey-5x5-v0", imports=("minigrid",)))
    assert proof.restorable, proof.reason


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting to float32:UserWarning")
def test_wrappers_keep_their_state() -> None:
    wrappers = (
        Component(type="FrameStackObservation", config={"stack_size": 3}),
        Component(type="NormalizeObservation"),
        Component(type="RescaleAction", config={"min_action": -1.0, "max_action": 1.0}),
    )
    env, other = (make("Pendulum-v1", max_episode_steps=9, wrappers=wrappers) for _ in range(2))
    env.reset(seed=1)
    actions = [np.array([0.1 * i], np.float32) for i in range(-9, 10)]
    outcomes(env, actions[:5], reset_at=-1)
    blob = capture(env)
    assert blob is not None
    restore(other, blob)
    assert identical(outcomes(env, actions, reset_at=-1), outcomes(other, actions, reset_at=-1))


def test_what_wrapper_and_environment_share_stays_shared() -> None:
    env, other = (toy_envs.SharedCounterWrapper(toy_envs.CountingEnv(100)) for _ in range(2))
    env.reset(seed=1)
    env.step(0)
    env.step(0)
    blob = capture(env)
    assert blob is not None
    restore(other, blob)
    assert other.step(0)[1] == 3.0
    assert other.shared is other.unwrapped.shared  # type: ignore[attr-defined]


@pytest.mark.parametrize("held", ["file", "socket", "generator", "lock", "closure"])
def test_an_environment_that_holds_what_cant_be_captured_is_not_restorable(held: str) -> None:
    proof = prove_snapshot(partial(toy_envs.HoldingEnv, held))
    assert not proof.restorable
    assert proof.reason != ""
    env = make_vector_env(EnvConfig(factory="toy_envs:HoldingEnv", kwargs={"held": held}, num_envs=2))
    env.reset([1, 2], allocate_slot(env.spaces, 2))
    assert env.snapshot() is None
    env.close()


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (toy_envs.GlobalRandomEnv, "the restored environment continued differently"),
        (toy_envs.NestedPickleEnv, "it holds a gymnasium.wrappers.common.TimeLimit that pickles as a new one"),
    ],
)
def test_state_outside_of_the_environment_makes_it_not_restorable(cls: type[gym.Env[Any, Any]], reason: str) -> None:
    proof = prove_snapshot(cls)
    assert not proof.restorable
    assert reason in proof.reason


def test_a_mujoco_model_that_changed_since_is_not_captured() -> None:
    env = make("HalfCheetah-v5")
    env.reset(seed=0)
    proof = prove_snapshot(partial(make, "HalfCheetah-v5"))
    assert capture(env, baseline=proof.baseline) is not None
    env.unwrapped.model.body_mass[1] *= 2
    assert capture(env, baseline=proof.baseline) is None


def test_a_snapshot_of_another_environment_is_refused() -> None:
    env, other = make("CartPole-v1"), make("Pendulum-v1")
    env.reset(seed=0)
    blob = capture(env)
    assert blob is not None
    with pytest.raises(CheckpointError) as caught:
        restore(other, blob)
    assert str(caught.value).startswith("the environment snapshot is of another environment (got 'gymnasium.wrappers.")


def test_a_snapshot_that_was_cut_short_is_refused() -> None:
    env = make("CartPole-v1")
    env.reset(seed=0)
    blob = capture(env)
    assert blob is not None
    with pytest.raises(
        CheckpointError, match="the environment snapshot can't be read: UnpicklingError: pickle data was"
    ):
        restore(env, blob[: len(blob) // 2])


def test_a_snapshot_of_another_number_of_copies_is_refused() -> None:
    env = make_vector_env(EnvConfig(id="CartPole-v1", num_envs=2))
    with pytest.raises(CheckpointError, match="the snapshot holds 3 environment copies, the job has 2"):
        env.restore([b"", b"", b""])
    env.close()


def test_the_pool_restores_what_the_loop_captured() -> None:
    config = EnvConfig(id="HalfCheetah-v5", num_envs=3, num_workers=2, max_episode_steps=20)
    loop, pool = make_vector_env(config), make_vector_env(config, backend="ProcessPool")
    one, two = allocate_slot(loop.spaces, 3), allocate_slot(loop.spaces, 3)
    actions = np.random.default_rng(0).uniform(-1, 1, (60, 3, 6)).astype(np.float32)
    loop.reset([1, 2, 3], one)
    for action in actions[:17]:
        loop.step(action, one)
    blobs = loop.snapshot()
    assert blobs is not None
    pool.restore(blobs)
    for action in actions[17:]:
        loop.step(action, one)
        pool.step(action, two)
        np.testing.assert_array_equal(one.observation, two.observation)
        np.testing.assert_array_equal(one.reward, two.reward)
        np.testing.assert_array_equal(one.truncated, two.truncated)
    assert pool.snapshot() is not None
    pool.close()
    loop.close()


def test_cartpoles_own_vector_environment_continues_bit_for_bit() -> None:
    config = EnvConfig(id="CartPole-v1", num_envs=4, backend="VectorEntryPoint", max_episode_steps=11)
    env, other = make_vector_env(config), make_vector_env(config)
    one, two = allocate_slot(env.spaces, 4), allocate_slot(env.spaces, 4)
    actions = np.random.default_rng(0).integers(0, 2, (60, 4))
    env.reset([1, 2, 3, 4], one)
    for action in actions[:20]:
        env.step(action, one)
    blobs = env.snapshot()
    assert blobs is not None
    assert len(blobs) == 4
    other.restore(blobs)
    for action in actions[20:]:
        env.step(action, one)
        other.step(action, two)
        np.testing.assert_array_equal(one.observation, two.observation)
        np.testing.assert_array_equal(one.valid, two.valid)
    env.close()
    other.close()


def test_a_proof_that_takes_too_long_is_given_up_and_says_so() -> None:
    ticks = iter(range(1000))
    proof = prove_snapshot(partial(make, "CartPole-v1"), budget_s=5.0, clock=lambda: float(next(ticks)))
    assert (proof.restorable, proof.reason) == (
        False,
        "TimeoutError: its steps are too slow to prove it within 5 s",
    )
