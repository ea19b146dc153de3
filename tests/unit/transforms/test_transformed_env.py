"""Transforms in an environment: what is remembered, when it begins anew, and what happens within copies."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rlruntime.envs.loop import LoopVectorEnv
from rlruntime.envs.make import make_vector_env
from rlruntime.envs.protocol import StepSlot, VectorEnv, allocate_slot
from rlruntime.errors import CheckpointError, ConfigError
from rlruntime.spec.training.env import EnvConfig
from rlruntime.spec.training.transforms import FrameSkipConfig, StepCounterConfig
from rlruntime.transforms.base import Transform
from rlruntime.transforms.control import FrameSkip
from rlruntime.transforms.environment import TransformedEnv
from rlruntime.transforms.episodes import StepCounter
from rlruntime.transforms.staging import make_transformed_env


def config_of(env: str, *transforms: tuple[str, dict[str, Any]], **fields: Any) -> EnvConfig:
    parts = [{"type": name, "config": config} for name, config in transforms]
    document = {"factory": f"transform_envs:{env}", "num_envs": 1, "backend": "Loop", "transforms": parts, **fields}
    return EnvConfig.model_validate(document)


def play(env: VectorEnv, steps: int, seeds: tuple[int, ...] = (0,), actions: Any = 0) -> list[StepSlot]:
    slots = [allocate_slot(env.spaces, env.num_envs) for _ in range(steps + 1)]
    env.reset(seeds, slots[0])
    shape = (env.num_envs, *(env.spaces.action.shape or ()))
    for number, slot in enumerate(slots[1:]):
        action = actions[number] if isinstance(actions, list) else actions
        env.step(np.full(shape, action, env.spaces.action.dtype), slot)
    env.close()
    return slots


def run(env: str, *transforms: tuple[str, dict[str, Any]], steps: int = 6, **options: Any) -> list[StepSlot]:
    return play(make_transformed_env(config_of(env, *transforms)), steps, **options)


def column(slots: list[StepSlot], key: str, copy: int = 0) -> list[Any]:
    return [slot.observation[key][copy].tolist() for slot in slots]


def flag(slots: list[StepSlot], name: str) -> list[bool]:
    return [bool(getattr(slot, name)[0]) for slot in slots]


T, F = True, False


def test_steps_rewards_beginnings_and_numbers_of_episodes_are_shown() -> None:
    # Seed 0: episodes of 3, then of 4 steps; rewards 1, 2, 3, ...
    slots = run(
        "Choice",
        ("StepCounter", {}),
        ("RewardSum", {}),
        ("InitTracker", {}),
        ("TrajectoryCounter", {}),
        ("TargetReturn", {"target": 5.0}),
    )
    assert flag(slots, "valid") == [F, T, T, T, F, T, T]
    assert column(slots, "step_count") == [[0], [1], [2], [3], [0], [1], [2]]
    assert column(slots, "episode_reward") == [[0], [1], [3], [6], [0], [1], [3]]
    assert column(slots, "is_init") == [[1], [0], [0], [0], [1], [0], [0]]
    assert column(slots, "trajectory") == [[0], [0], [0], [0], [1], [1], [1]]
    assert column(slots, "target_return") == [[5], [4], [2], [-1], [5], [4], [2]]
    assert column(slots, "observation")[3] == [0, 0, 3]  # the true final observation


def test_numbers_of_episodes_differ_between_copies_and_go_on_over_resets() -> None:
    env = make_transformed_env(config_of("Choice", ("TrajectoryCounter", {}), num_envs=2))
    first, second = allocate_slot(env.spaces, 2), allocate_slot(env.spaces, 2)
    env.reset((0, 1), first)
    env.reset((0, 1), second)
    env.close()
    assert (column([first], "trajectory"), column([first], "trajectory", 1)) == ([[0]], [[1]])
    assert (column([second], "trajectory"), column([second], "trajectory", 1)) == ([[2]], [[3]])


def test_numbers_of_episodes_differ_between_the_workers_of_a_job() -> None:
    config = config_of("Choice", ("TrajectoryCounter", {}), num_envs=3)
    shown = []
    for first, num_envs in ((0, 2), (2, 1)):
        env = make_transformed_env(config, num_envs=num_envs, first_copy=first)
        slots = play(env, 9, seeds=(0,) * num_envs)
        shown += [{row[0] for row in column(slots, "trajectory", copy)} for copy in range(num_envs)]
    assert shown == [{0, 3, 6}, {1, 4, 7}, {2, 5, 8}]


def test_frames_are_joined_newest_last_and_begin_anew_with_each_episode() -> None:
    slots = run("Choice", ("CatFrames", {"frames": 3}))
    steps = [slot.observation[0].tolist()[2::3] for slot in slots]  # type: ignore[index]
    assert steps == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 0], [0, 0, 1], [0, 1, 2]]
    padded = run("Choice", ("CatFrames", {"frames": 3, "padding": "Zeros"}), seeds=(3,))
    seeds = [slot.observation[0].tolist()[0::3] for slot in padded]  # type: ignore[index]
    assert seeds == [[0, 0, 3], [0, 3, 3], [3, 3, 3], [3, 3, 3], [0, 0, 3], [0, 3, 3], [3, 3, 3]]


def test_largest_of_the_last_frames_is_shown() -> None:
    slots = run("Lives", ("TimeMaxPool", {"frames": 2}))
    assert [slot.observation[0].tolist()[2] for slot in slots] == [3, 3, 3, 2, 2, 1, 1]  # type: ignore[index]


def test_last_actions_are_shown_and_forgotten_with_the_episode() -> None:
    slots = run("Choice", ("ActionHistory", {"length": 2}), actions=[2, 0, 1, 2, 2, 1])
    none = -1
    assert column(slots, "action_history") == [
        [none, none],
        [none, 2],
        [2, 0],
        [0, 1],
        [none, none],
        [none, 2],
        [2, 1],
    ]


def test_action_history_shows_what_the_policy_chose() -> None:
    transforms: Any = ("ActionHistory", {"key": "env"}), ("ActionDiscretizer", {"intervals": 2}), ("ActionHistory", {})
    slots = run("Walker", *transforms, steps=1, actions=[1])
    np.testing.assert_allclose(column(slots, "env")[1], [1.0, 0.075])
    assert column(slots, "action_history")[1] == [1, 1]


def test_limit_truncates_and_never_terminates() -> None:
    slots = run("Endless", ("StepCounter", {"limit": 2}))
    assert flag(slots, "truncated") == [F, F, T, F, F, T, F]
    assert flag(slots, "terminated") == [F] * 7
    assert column(slots, "step_count") == [[0], [1], [2], [0], [1], [2], [0]]
    assert column(slots, "observation")[2] == [0, 0, 2]


def test_limit_that_meets_the_end_leaves_both_flags() -> None:
    slots = run("Choice", ("StepCounter", {"limit": 3}))
    assert (flag(slots, "terminated")[3], flag(slots, "truncated")[3]) == (T, T)


def test_skipped_frames_sum_their_rewards_and_stop_where_the_episode_ends() -> None:
    slots = run("Choice", ("FrameSkip", {"frames": 2}))
    # 3 steps: 1 + 2, then 3 alone; the next episode has 4.
    assert [float(slot.reward[0]) for slot in slots] == [0, 3, 3, 0, 3, 7, 0]
    assert flag(slots, "valid") == [F, T, T, F, T, T, F]
    assert flag(slots, "terminated") == [F, F, T, F, F, F, F]
    assert flag(slots, "truncated") == [F, F, F, F, F, T, F]
    assert [slot.observation[0].tolist()[2] for slot in slots] == [0, 2, 3, 0, 2, 4, 0]  # type: ignore[index]


def test_skipped_frames_are_pooled() -> None:
    slots = run("Lives", ("FrameSkip", {"frames": 2, "maxPool": 2}), steps=2)
    assert [slot.observation[0].tolist()[2] for slot in slots] == [3, 3, 2]  # type: ignore[index]


def test_counter_behind_a_frame_skip_counts_decisions() -> None:
    slots = run("Endless", ("FrameSkip", {"frames": 3}), ("StepCounter", {"limit": 2}), steps=3)
    assert column(slots, "step_count") == [[0], [1], [2], [0]]
    assert flag(slots, "truncated") == [F, F, T, F]
    assert column(slots, "observation")[2] == [0, 0, 6]


def test_episodes_begin_after_some_steps_that_do_nothing_by_the_seed() -> None:
    def first_steps(seed: int) -> list[float]:
        slots = run("Endless", ("NoopReset", {"maxNoops": 9}), ("StepCounter", {"limit": 1}), steps=8, seeds=(seed,))
        return [
            row[2] for row, valid in zip(column(slots, "observation"), flag(slots, "valid"), strict=True) if not valid
        ]

    assert first_steps(4) == first_steps(4)
    assert first_steps(4) != first_steps(5)
    assert all(1 <= count <= 9 for count in first_steps(4))


def test_noop_that_ends_the_episode_resets_again() -> None:
    slots = run("Choice", ("NoopReset", {"maxNoops": 30}), steps=20)
    assert all(slot.observation[0].tolist()[2] >= 0 for slot in slots)  # type: ignore[index]
    assert not any(slot.terminated[0] for slot in slots if not slot.valid[0])


def test_lost_life_ends_the_episode_in_training_and_the_game_goes_on() -> None:
    slots = run("Lives", ("EndOfLife", {}), steps=9)
    # A life is lost at the 2nd, 4th and 6th step of a game; a reset after the first two is one step of the game.
    assert [slot.observation[0].tolist() for slot in slots] == [  # type: ignore[index]
        [0, 0, 3],
        [0, 1, 3],
        [0, 2, 2],
        [0, 3, 2],
        [0, 4, 1],
        [0, 5, 1],
        [0, 6, 0],
        [1, 0, 3],
        [1, 1, 3],
        [1, 2, 2],
    ]
    assert flag(slots, "terminated") == [F, F, T, F, T, F, T, F, F, T]
    evaluated = play(make_transformed_env(config_of("Lives", ("EndOfLife", {})), evaluation=True), 6)
    assert flag(evaluated, "terminated") == [F] * 6 + [T]


def test_limit_outside_of_lives_resets_the_game() -> None:
    slots = run("Lives", ("EndOfLife", {}), ("StepCounter", {"limit": 1}), steps=2)
    assert column(slots, "observation") == [[0, 0, 3], [0, 1, 3], [1, 0, 3]]


def test_lives_that_nobody_counts_are_a_config_error() -> None:
    with pytest.raises(Exception, match=r"EndOfLife finds no lives"):
        run("Choice", ("EndOfLife", {}))


def test_random_truncation_follows_the_seed_and_spares_evaluations() -> None:
    settings = ("RandomTruncation", {"probability": 0.5})
    first, again, other = (flag(run("Endless", settings, steps=40, seeds=(s,)), "truncated") for s in (1, 1, 2))
    assert first == again != other
    assert not any(flag(run("Endless", settings, steps=40), "terminated"))
    evaluated = play(make_transformed_env(config_of("Endless", settings), evaluation=True), 40)
    assert not any(flag(evaluated, "truncated"))


def test_key_of_the_observation_becomes_the_mask() -> None:
    env = make_transformed_env(config_of("Parts", ("ActionMask", {"key": "legal"})))
    assert (env.spaces.action_mask, env.spaces.action_mask_size) == ("observation", 3)
    slots = play(env, 3)
    assert "legal" not in slots[0].observation
    assert [slot.action_mask[0].tolist() for slot in slots] == [  # type: ignore[index]
        [T, F, F],
        [T, T, F],
        [T, F, F],
        [T, T, T],  # the end of the episode: nothing is chosen
    ]


def test_policy_acts_in_bounds_of_its_own() -> None:
    env = make_transformed_env(config_of("Walker", ("ActionScaling", {"low": 0.0, "high": 1.0})))
    assert env.spaces.action == spaces.Box(0.0, 1.0, (2,), np.float32)
    play(env, 2, actions=1)  # Walker insists on its own bounds, which float32 can't hold


def test_environment_without_transforms_is_the_backend_itself() -> None:
    cases: Any = ((), (("ObservationNorm", {}), ("RewardNorm", {})))
    for transforms in cases:
        env = make_transformed_env(config_of("Walker", *transforms))
        assert type(env) is LoopVectorEnv
        env.close()


def test_parts_that_a_transform_leaves_lie_in_the_callers_memory() -> None:
    env = make_transformed_env(config_of("Parts", ("Rename", {"names": {"arm": "joints"}}), ("StepCounter", {})))
    assert isinstance(env, TransformedEnv)
    slot = allocate_slot(env.spaces, 1)
    inner = env._aim(slot)
    assert inner.observation["arm"] is slot.observation["joints"]
    assert inner.reward is slot.reward
    env.close()


def test_wrapper_within_copies_is_asked_for_where_it_belongs() -> None:
    env = make_vector_env(config_of("Choice"))
    observation = env.spaces.observation
    parts: tuple[Transform, ...] = (
        FrameSkip(FrameSkipConfig(), observation),
        StepCounter(StepCounterConfig(limit=3), observation),
    )
    for part in parts:
        with pytest.raises(
            ConfigError, match=r"needs a wrapper within each copy.*; put it in the transforms of an Env"
        ):
            TransformedEnv(env, [part])
    env.close()


def test_backend_that_steps_its_copies_itself_has_no_place_within_them() -> None:
    config = EnvConfig.model_validate(
        {"id": "CartPole-v1", "backend": "VectorEntryPoint", "transforms": [{"type": "FrameSkip"}]}
    )
    with pytest.raises(ConfigError, match=r"VectorEntryPoint steps its copies itself.*'FrameSkip'.*; use the backend"):
        make_transformed_env(config)


def test_vectorised_entry_point_remembers_and_is_restored() -> None:
    transforms = [{"type": "StepCounter"}, {"type": "CatFrames", "config": {"frames": 2, "keys": ["observation"]}}]
    document = {"id": "CartPole-v1", "backend": "VectorEntryPoint", "num_envs": 2, "transforms": transforms}
    env = make_transformed_env(EnvConfig.model_validate(document))
    slot, again = allocate_slot(env.spaces, 2), allocate_slot(env.spaces, 2)
    env.reset((1, 2), slot)
    for _ in range(12):
        env.step(np.array([0, 1]), slot)
    snapshot = env.snapshot()
    assert snapshot is not None
    env.step(np.array([0, 1]), slot)
    env.restore(snapshot)
    env.step(np.array([0, 1]), again)
    env.close()
    for key in ("step_count", "observation"):
        np.testing.assert_array_equal(slot.observation[key], again.observation[key])


def test_snapshot_of_other_transforms_is_refused_and_changes_nothing() -> None:
    frames: Any = ("CatFrames", {"frames": 2})
    counter: Any = ("StepCounter", {})
    first, second = (make_transformed_env(config_of("Choice", part)) for part in (frames, counter))
    for env in (first, second):
        env.reset((0,), allocate_slot(env.spaces, 1))
    snapshot = first.snapshot()
    assert snapshot is not None
    with pytest.raises(CheckpointError, match=r"the environment snapshot is of other transforms; resume with"):
        second.restore(snapshot)
    with pytest.raises(CheckpointError, match=r"holds 1 environment copies, the job has 2"):
        make_transformed_env(config_of("Choice", counter, num_envs=2)).restore(snapshot)
    slot = allocate_slot(second.spaces, 1)
    second.step(np.zeros(1, np.int64), slot)
    assert column([slot], "step_count") == [[1]]
    first.close()
    second.close()


def test_key_that_is_there_already_needs_another_name() -> None:
    with pytest.raises(
        ConfigError, match=r"StepCounter would add a key that the observation has already.*'step_count'"
    ):
        make_transformed_env(config_of("Choice", ("StepCounter", {}), ("StepCounter", {})))


def test_wrappers_of_copies_start_without_torch() -> None:
    program = "import sys, rlruntime.transforms.copies; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
