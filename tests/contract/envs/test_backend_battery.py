"""What every backend must show, through the protocol alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from rlruntime.envs.make import make_single_env, make_vector_env
from rlruntime.envs.measure import random_actions
from rlruntime.envs.protocol import StepSlot, VectorEnv, allocate_slot
from rlruntime.spec.training.env import EnvConfig

COPIES = 3
BACKENDS = (
    "Loop",
    "ProcessPool",
    "VectorEntryPoint/NEXT_STEP",
    "VectorEntryPoint/SAME_STEP",
    "VectorEntryPoint/DISABLED",
)


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return a function that builds an environment of `toy_envs` on the backend."""
    backend, _, mode = request.param.partition("/")
    made: list[VectorEnv] = []

    def build(env: str, **options: Any) -> VectorEnv:
        fields: dict[str, Any] = {
            key: options.pop(key) for key in ("observation_keys", "max_episode_steps") if key in options
        }
        source: dict[str, Any]
        if mode:
            source = {"factory": "toy_envs:sync_vector", "kwargs": {"env": env, "mode": mode, **options}}
        else:
            source = {"factory": f"toy_envs:{env}", "kwargs": options}
        document: dict[str, Any] = {"num_envs": COPIES, "num_workers": 2, "backend": backend, **source, **fields}
        made.append(make_vector_env(EnvConfig.model_validate(document)))
        return made[-1]

    yield build
    for env in made:
        env.close()


def run(env: VectorEnv, actions: np.ndarray, seeds: tuple[int, ...] = (1, 2, 3)) -> list[StepSlot]:
    """Return the outcome of a reset and of each step, each in memory of its own."""
    slots = [allocate_slot(env.spaces, env.num_envs) for _ in range(len(actions) + 1)]
    for slot in slots:  # what is written must not depend on what was there
        slot.reward.fill(7)
        slot.terminated.fill(True)
        slot.truncated.fill(True)
    env.reset(seeds, slots[0])
    for action, slot in zip(actions, slots[1:], strict=True):
        env.step(action, slot)
    return slots


def array(slot: StepSlot) -> np.ndarray:
    assert isinstance(slot.observation, np.ndarray)
    return slot.observation


def shared_memory_names() -> set[str]:
    """Return named shared memory but for torch's, which other tests may use at the same time."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("torch")}


def column(slots: list[StepSlot], name: str, copy: int = 0) -> list[Any]:
    return [getattr(slot, name)[copy].tolist() for slot in slots]


ZEROS = np.zeros((7, COPIES), np.int64)


def test_the_step_after_an_ended_episode_resets_and_is_not_valid(make: Any) -> None:
    slots = run(make("CountingEnv", length=3), ZEROS)
    counts = [array(slot)[1].tolist() for slot in slots]
    assert counts == [[0, 2], [1, 2], [2, 2], [3, 2], [0, 2], [1, 2], [2, 2], [3, 2]]
    assert column(slots, "reward", 1) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert column(slots, "terminated", 1) == [False, False, False, True, False, False, False, True]
    assert column(slots, "truncated", 1) == [False] * 8
    assert column(slots, "valid", 1) == [False, True, True, True, False, True, True, True]


@pytest.mark.parametrize(
    ("end", "terminated", "truncated"),
    [("terminated", True, False), ("truncated", False, True), ("both", True, True)],
)
def test_terminated_and_truncated_stay_apart(make: Any, end: str, terminated: bool, truncated: bool) -> None:
    last = run(make("CountingEnv", length=2, end=end), ZEROS[:2])[-1]
    assert last.terminated.tolist() == [terminated] * COPIES
    assert last.truncated.tolist() == [truncated] * COPIES


def test_the_time_limit_truncates_and_counts_each_episode_anew(make: Any) -> None:
    slots = run(make("CountingEnv", length=100, max_episode_steps=2), ZEROS)
    assert column(slots, "truncated") == [False, False, True, False, False, True, False, False]
    assert column(slots, "terminated") == [False] * 8
    assert column(slots, "valid") == [False, True, True, False, True, True, False, True]
    assert [array(slot)[0][0] for slot in slots] == [0, 1, 2, 0, 1, 2, 0, 1]


def test_an_episode_that_ends_at_its_time_limit_is_terminated_and_truncated(make: Any) -> None:
    last = run(make("CountingEnv", length=2, max_episode_steps=2), ZEROS[:2])[-1]
    assert (last.terminated.tolist(), last.truncated.tolist()) == ([True] * COPIES, [True] * COPIES)


def test_each_copy_gets_its_own_seed_and_equal_seeds_give_equal_numbers(make: Any) -> None:
    actions = np.random.default_rng(0).integers(0, 3, (40, COPIES))
    first = run(make("RandomWalkEnv"), actions, (11, 12, 11))
    again = run(make("RandomWalkEnv"), actions, (11, 12, 11))
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.observation, two.observation)
        np.testing.assert_array_equal(one.reward, two.reward)
        np.testing.assert_array_equal(one.terminated, two.terminated)
    start = array(first[0])
    assert start.dtype == np.float32
    assert start[0, 0] == start[2, 0]
    assert start[0, 0] != start[1, 0]


def test_a_second_reset_starts_over(make: Any) -> None:
    env = make("CountingEnv", length=3)
    first = run(env, ZEROS[:3])
    again = run(env, ZEROS[:3])
    assert column(first, "terminated") == column(again, "terminated") == [False, False, False, True]
    assert column(again, "valid") == [False, True, True, True]


@pytest.mark.parametrize(
    ("action", "given", "expected"),
    [
        ("discrete", [0, 1, 2], [[5], [6], [7]]),
        ("multi", [[0, 3], [1, 0], [1, 2]], [[10, 23], [11, 20], [11, 22]]),
        ("box", [[0.5, -1.5, 2.0]] * 3, [[0.5, -1.5, 2.0]] * 3),
    ],
)
def test_actions_count_from_zero_and_arrive_as_the_space_wants_them(
    make: Any, action: str, given: list[Any], expected: list[Any]
) -> None:
    dtype = np.float32 if action == "box" else np.int64
    last = run(make("EchoEnv", action=action), np.array([given], dtype))[-1]
    np.testing.assert_array_equal(last.observation, np.array(expected, np.float32))


def test_images_keep_shape_and_bytes(make: Any) -> None:
    env = make("ImageEnv")
    assert env.spaces.observation == spaces.Box(0, 255, (6, 5, 3), np.uint8)
    last = run(env, ZEROS[:2])[-1]
    assert array(last).dtype == np.uint8
    np.testing.assert_array_equal(last.observation, np.full((COPIES, 6, 5, 3), 20, np.uint8))


def test_dict_observations_become_flat_and_the_mask_leaves_them(make: Any) -> None:
    env = make("NestedEnv", observation_keys=("camera", "joints"))
    assert isinstance(env.spaces.observation, spaces.Dict)
    assert dict(env.spaces.observation.spaces) == {
        "camera.rgb": spaces.Box(0, 255, (2, 2, 3), np.uint8),
        "joints.0": spaces.Box(-1, 1, (2,), np.float32),
        "joints.1": spaces.Discrete(4),
    }
    assert (env.spaces.action_mask, env.spaces.action_mask_size) == ("observation", 3)
    slots = run(env, ZEROS)
    observation = slots[2].observation
    assert isinstance(observation, dict)
    assert observation["camera.rgb"].dtype == np.uint8
    np.testing.assert_array_equal(observation["camera.rgb"], np.full((COPIES, 2, 2, 3), 2))
    np.testing.assert_array_equal(observation["joints.0"], np.array([[0.5, -0.5]] * COPIES, np.float32))
    np.testing.assert_array_equal(observation["joints.1"], [2, 2, 2])
    masks = [slot.action_mask[0].tolist() for slot in slots if slot.action_mask is not None]
    one, two, three = [True, False, False], [False, True, False], [False, False, True]
    assert masks[:3] == [one, two, three]
    assert masks[4:7] == [one, two, three]
    final = slots[3].observation
    assert isinstance(final, dict)
    np.testing.assert_array_equal(final["camera.rgb"], np.full((COPIES, 2, 2, 3), 3))


def test_masks_from_info_follow_the_step_and_free_the_ended_episode(make: Any) -> None:
    env = make("InfoMaskEnv")
    assert (env.spaces.action_mask, env.spaces.action_mask_size) == ("info", 3)
    assert env.spaces.observation == spaces.Discrete(5, start=1)
    slots = run(env, ZEROS[:5])
    masks = [slot.action_mask[0].tolist() for slot in slots if slot.action_mask is not None]
    one, two, three = [True, False, False], [False, True, False], [False, False, True]
    assert masks == [one, two, three, [True] * 3, one, two]
    assert [int(array(slot)[0]) for slot in slots] == [1, 2, 3, 4, 1, 2]


def test_a_batch_of_the_wrong_size_is_refused(make: Any) -> None:
    env = make("CountingEnv")
    slot = allocate_slot(env.spaces, COPIES)
    with pytest.raises(ValueError, match="3 copies need as many seeds, got 2"):
        env.reset([1, 2], slot)
    env.reset([1, 2, 3], slot)
    with pytest.raises(ValueError, match=r"3 copies need as many actions, got shape \(2,\)"):
        env.step(np.zeros(2, np.int64), slot)


def test_a_snapshot_continues_bit_for_bit_in_a_new_environment(make: Any) -> None:
    actions = np.random.default_rng(1).integers(0, 3, (60, COPIES))
    env = make("RandomWalkEnv", max_episode_steps=7)
    run(env, actions[:9])
    blobs = env.snapshot()
    assert blobs is not None
    assert len(blobs) == COPIES
    other = make("RandomWalkEnv", max_episode_steps=7)
    other.restore(blobs)
    one, two = allocate_slot(env.spaces, COPIES), allocate_slot(env.spaces, COPIES)
    for action in actions[9:]:
        env.step(action, one)
        other.step(action, two)
        for name in ("observation", "reward", "terminated", "truncated", "valid"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)


def test_a_snapshot_right_after_an_episode_keeps_the_pending_reset(make: Any) -> None:
    env, other = make("CountingEnv", length=3), make("CountingEnv", length=3)
    run(env, ZEROS[:3])
    blobs = env.snapshot()
    assert blobs is not None
    run(other, ZEROS[:1])
    other.restore(blobs)
    slot = allocate_slot(env.spaces, COPIES)
    other.step(ZEROS[0], slot)
    assert slot.valid.tolist() == [False] * COPIES
    assert array(slot)[:, 0].tolist() == [0] * COPIES
    other.step(ZEROS[0], slot)
    assert slot.valid.tolist() == [True] * COPIES


def test_closing_twice_leaves_no_process_and_no_shared_memory(make: Any) -> None:
    before, shared = set(psutil.Process().children()), shared_memory_names()
    descriptors = psutil.Process().num_fds()
    env = make("CountingEnv")
    run(env, ZEROS[:1])
    env.close()
    env.close()
    assert set(psutil.Process().children()) == before
    assert shared_memory_names() <= shared
    assert psutil.Process().num_fds() <= descriptors


@pytest.mark.parametrize("backend", ["Loop", "ProcessPool", "VectorEntryPoint", "EnvPool"])
def test_cartpole_keeps_the_layout_on_every_backend(backend: str) -> None:
    if backend == "EnvPool":
        pytest.importorskip("envpool")
    config = EnvConfig(id="CartPole-v1", num_envs=4, num_workers=2, backend=backend, max_episode_steps=15)  # type: ignore[arg-type]
    runs = []
    for _ in range(2):
        env = make_vector_env(config)
        assert env.backend == backend
        rng, slots = np.random.default_rng(3), []
        slot = allocate_slot(env.spaces, 4)
        env.reset([5, 6, 7, 8], slot)
        for _step in range(60):
            slots.append(slot)
            slot = allocate_slot(env.spaces, 4)
            env.step(random_actions(env.spaces, slot, rng), slot)
        env.close()
        runs.append(slots)
    ended = np.zeros(4, np.bool_)
    length = np.zeros(4, np.int64)
    finished = 0
    for slot, twin in zip(*runs, strict=True):
        np.testing.assert_array_equal(slot.observation, twin.observation)
        np.testing.assert_array_equal(slot.valid, ~ended & (slot is not runs[0][0]))
        np.testing.assert_array_equal(slot.reward, slot.valid.astype(np.float32))
        length = np.where(slot.valid, length + 1, 0)
        observation = array(slot)
        beyond = (np.abs(observation[:, 0]) > 2.4) | (np.abs(observation[:, 2]) > 12 * 2 * np.pi / 360)
        assert (np.abs(observation[~slot.valid]) <= 0.05).all()
        np.testing.assert_array_equal(slot.truncated, slot.valid & (length >= 15))
        expected = slot.valid & beyond & ~(slot.truncated & (backend == "EnvPool"))
        np.testing.assert_array_equal(slot.terminated, expected)
        ended = slot.terminated | slot.truncated
        finished += int(ended.sum())
    assert finished >= 10


@pytest.mark.filterwarnings("ignore:.*(A Box observation space|For Box action spaces):UserWarning")
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "HalfCheetah-v5"])
def test_gymnasiums_checker_passes_on_the_environment_that_is_built(name: str) -> None:
    env = make_single_env(EnvConfig(id=name))
    check_env(env.unwrapped, skip_render_check=True)
    env.close()
