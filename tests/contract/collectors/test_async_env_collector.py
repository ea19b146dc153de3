"""One policy for whichever environments are ready: columns, versions, counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from collector_envs import env_config, env_seed
from policy_runs import job_of
from torch import Tensor

from rlruntime.collectors.async_envs import AsyncEnvCollector
from rlruntime.collectors.rollout import Rollout
from rlruntime.collectors.trajectories import pack_trajectories
from rlruntime.envs.async_pool import AsyncEnvPool
from rlruntime.envs.protocol import EnvSpaces
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.build import build_policy
from rlruntime.spec.training.collectors import AsyncEnvCollectorConfig
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import EnvConfig
from rlruntime.spec.training.ppo import PPOConfig
from rlruntime.trainers.algorithms.ppo import PPO
from rlruntime.transforms.staging import make_transformed_env

MLP = Component(type="MLP", config={"hiddenSizes": [4]})
NORMALISED = [Component(type="ObservationNorm"), Component(type="RewardNorm")]
Make = Callable[..., AsyncEnvCollector]


@pytest.fixture
def make(nothing_is_left: None) -> Iterator[Make]:
    """Make collectors on threads; they are closed at the end."""
    made: list[AsyncEnvCollector] = []

    def make_one(config: EnvConfig, transforms: list[Component] | None = None, **arguments: int) -> AsyncEnvCollector:
        pool = AsyncEnvPool(config, workers="Threads")
        made.append(AsyncEnvCollector(pool, build_policy(pool.spaces, MLP, transforms or ()), **arguments))
        return made[-1]

    yield make_one
    for collector in made:
        collector.close()
    made.clear()


def make_spaces(config: EnvConfig) -> EnvSpaces:
    env = make_transformed_env(config, num_envs=1)
    env.close()
    return env.spaces


def counts(rollout: Rollout, column: int) -> list[float]:
    assert isinstance(rollout.observation, Tensor)
    return rollout.observation[:, column, 0].tolist()


def test_columns_follow_each_other_in_each_environment_and_hold_next_step_rows(make: Make) -> None:
    collector = make(env_config(num_envs=3, length=3), num_steps=5, columns=2)
    by_copy: dict[int, list[float]] = {0: [], 1: [], 2: []}
    valid: dict[int, list[bool]] = {0: [], 1: [], 2: []}
    ids: dict[int, list[int]] = {0: [], 1: [], 2: []}
    frames = 0
    for _ in range(9):
        rollout = collector.collect()
        assert (rollout.num_steps, rollout.num_envs) == (5, 2)
        frames += int(rollout.valid.sum())
        assert rollout.num_valid == int(rollout.valid.sum())
        for column, copy in enumerate(collector.rollout_copies.tolist()):
            if by_copy[copy]:  # the first observation is the last one of the column before
                assert counts(rollout, column)[0] == by_copy[copy][-1]
                by_copy[copy].pop()
            by_copy[copy] += counts(rollout, column)
            valid[copy] += rollout.valid[:, column].tolist()
            ids[copy] += rollout.trajectory_id[:, column].tolist()
            assert isinstance(rollout.observation, Tensor)
            assert set(rollout.observation[:, column, 1].tolist()) == {float(np.float32(env_seed(copy)))}
    assert collector.num_frames == frames
    for copy in range(3):
        steps = len(valid[copy])
        assert by_copy[copy] == ([0.0, 1.0, 2.0, 3.0] * steps)[: steps + 1]  # 3 is the true final observation
        assert valid[copy] == ([True, True, True, False] * steps)[:steps]
        episodes = [copy + 3 * episode for episode in range(steps) for _ in range(3)]
        assert [number for number in ids[copy] if number >= 0] == episodes[: sum(valid[copy])]


def test_episodes_are_those_of_the_rollout(make: Make) -> None:
    collector = make(env_config(num_envs=2, length=3), num_steps=8)
    for _ in range(3):
        rollout = collector.collect()
        ended = int((rollout.terminated & rollout.valid).sum())
        assert collector.episodes.returns.tolist() == [6.0] * ended
        assert collector.episodes.lengths.tolist() == [3] * ended


def test_a_slow_environment_gets_fewer_columns_and_holds_up_no_other(make: Make, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    config = env_config("collector_envs:GatedEnv", 3, gate=str(gate), seed=env_seed(1))
    collector = make(config, num_steps=4, columns=4)
    seen: list[int] = []
    for _ in range(3):
        rollout = collector.collect()
        seen += collector.rollout_copies.tolist()
        packed = pack_trajectories(rollout)
        assert int(packed.lengths.sum()) == 16
        assert len(packed.ids) <= 2  # columns of one environment that follow each other make one trajectory
    assert set(seen) == {0, 2}
    gate.touch()


def test_ppo_finds_a_ratio_of_one_and_the_values_of_the_weights_that_acted(make: Make) -> None:
    collector = make(env_config("toy_envs:RandomWalkEnv", 4), NORMALISED, num_steps=16)
    policy = collector.policy
    assert isinstance(policy, ActorCritic)
    algorithm = PPO(PPOConfig(num_steps=16, minibatch_size=32, learning_rate=1e-2), policy)
    for _ in range(3):
        rollout = collector.collect()
        # Columns may have begun before the last update: those rows are another policy's.
        newest = rollout.policy_version == collector.policy_version
        assert newest.any()
        assert isinstance(rollout.observation, Tensor)
        with torch.no_grad():
            params, value = policy.params_and_values(rollout.observation[:-1].flatten(0, 1))
            log_prob = policy.distribution.evaluate(params, rollout.action.flatten(), None).log_prob
        is_new = (newest & rollout.valid).flatten()
        torch.testing.assert_close(log_prob[is_new], rollout.behaviour_log_prob.flatten()[is_new], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(value[is_new], rollout.value[:-1].flatten()[is_new], rtol=1e-5, atol=1e-5)
        metrics = algorithm.update(rollout)
        assert np.isfinite(metrics["loss/policy"])
        collector.update_transforms()
        collector.publish()


def test_every_step_bears_the_version_that_chose_it(make: Make) -> None:
    collector = make(env_config(num_envs=2, length=1000), num_steps=4)
    versions: dict[int, list[int]] = {0: [], 1: []}
    for number in range(4):
        rollout = collector.collect()
        for column, copy in enumerate(collector.rollout_copies.tolist()):
            versions[copy] += rollout.policy_version[:, column].tolist()
        assert collector.staleness == collector.policy_version - int(rollout.policy_version.min())
        assert collector.publish() == number + 2
    for seen in versions.values():
        assert seen == sorted(seen)
    assert versions[0][0] == 1
    assert max(versions[0] + versions[1]) == 4


def test_masks_and_dict_observations_are_those_of_each_step(make: Make) -> None:
    config = env_config("toy_envs:NestedEnv", 2).model_copy(update={"observation_keys": ("camera", "joints")})
    collector = make(config, num_steps=7)
    for number in range(3):
        rollout = collector.collect()
        assert isinstance(rollout.observation, dict)
        assert rollout.action_mask is not None
        steps = rollout.observation["joints.1"]  # the step of the episode, which the mask allows alone
        for row, column in rollout.valid.nonzero().tolist():
            step = int(steps[row, column])
            assert rollout.action_mask[row, column].tolist() == [step == 0, step == 1, step == 2]
            assert int(rollout.action[row, column]) == step
            assert float(rollout.behaviour_log_prob[row, column]) == 0.0
            assert int(rollout.observation["camera.rgb"][row + 1, column].max()) == step + 1
        assert int(rollout.valid.sum()) < 14 or number == 0


def test_values_of_a_policy_that_can_not_defer_them_are_those_of_each_step() -> None:
    training = job_of("stateful").spec.training
    pool = AsyncEnvPool(training.env, workers="Threads")
    policy = build_policy(pool.spaces, training.network, training.env.transforms)
    assert not policy.deferrable
    collector = AsyncEnvCollector(pool, policy, num_steps=8)
    try:
        rollout = collector.collect()
        assert float(rollout.value[:-1].std()) > 0  # what it was at each step can't be computed again
        following = collector.collect()
        for column, copy in enumerate(collector.rollout_copies.tolist()):
            assert bool(following.valid[:, column].any()), copy
    finally:
        collector.close()


def test_random_frames_are_uniform_with_their_log_probability(make: Make) -> None:
    collector = make(env_config(num_envs=2, length=1000), num_steps=100, random_frames=1)
    rollout = collector.collect()
    torch.testing.assert_close(rollout.behaviour_log_prob[:99], torch.full((99, 2), float(np.log(0.5))))
    assert 0.3 < float(rollout.action.float().mean()) < 0.7
    assert collector.num_frames == 200


def test_nothing_is_stepped_in_a_pause_and_nothing_is_lost_by_it(make: Make) -> None:
    collector = make(env_config(num_envs=2, length=1000), num_steps=5)
    last: dict[int, float] = {}
    for _ in range(4):
        rollout = collector.collect()
        for column, copy in enumerate(collector.rollout_copies.tolist()):
            seen = counts(rollout, column)
            assert seen == [seen[0] + step for step in range(6)]
            assert seen[0] == last.get(copy, 0.0)
            last[copy] = seen[-1]
        collector.pause()
        collector.pause()
        assert collector.pool.num_pending == 0
        with pytest.raises(RuntimeError, match="paused"):
            collector.collect()
        collector.resume()


def test_acting_for_ready_environments_costs_little(make: Make) -> None:
    collector = make(env_config(num_envs=8, length=1000), num_steps=50)
    collector.collect()
    used, steps = time.process_time(), collector.steps
    for _ in range(5):
        collector.collect()
    assert time.process_time() - used < (collector.steps - steps) * 2e-3  # 2 ms a step; it takes some 0.1


def test_restarted_episodes_keep_counters_and_take_new_seeds(make: Make) -> None:
    collector = make(env_config(num_envs=2, length=3), num_steps=4)
    collector.collect()
    state = collector.state_dict()
    frames = collector.num_frames
    collector.restart_episodes([11, 12], state)
    rollout = collector.collect()
    assert isinstance(rollout.observation, Tensor)
    assert set(rollout.observation[:, :, 1].flatten().tolist()) <= {11.0, 12.0}
    assert counts(rollout, 0)[0] == 0.0
    assert collector.num_frames == frames + rollout.num_valid
    assert int(rollout.trajectory_id.max()) >= 2


@pytest.mark.parametrize("workers", ["Threads", "Processes"])
def test_transforms_that_remember_do_so_for_each_environment(workers: str, nothing_is_left: None) -> None:
    transforms = (
        Component(type="CatFrames", config={"frames": 2}),
        Component(type="TrajectoryCounter"),
        Component(type="StepCounter", config={"limit": 4}),
    )
    config = env_config(num_envs=3, length=1000).model_copy(update={"transforms": transforms})
    settings = AsyncEnvCollectorConfig(workers=workers, columns=2)  # type: ignore[arg-type]
    policy = build_policy(make_spaces(config), MLP, transforms)
    collector = AsyncEnvCollector.from_config(settings, config, policy, num_steps=6, seed=0)
    try:
        for _ in range(6):
            rollout = collector.collect()
            assert isinstance(rollout.observation, dict)
            for column, copy in enumerate(collector.rollout_copies.tolist()):
                # CountingEnv observes [step of the episode, seed]: two frames are two steps of one copy and episode.
                frames = rollout.observation["observation"][:, column].reshape(7, 2, 2)
                steps, seeds = frames[:, :, 0], frames[:, :, 1]
                assert set(seeds.flatten().tolist()) == {float(np.float32(env_seed(copy)))}
                assert torch.equal(steps[:, 0], (steps[:, 1] - 1).clamp(min=0))
                assert torch.equal(rollout.observation["step_count"][:, column, 0].float(), steps[:, 1])
                assert steps.max() == 4  # where it is truncated
                numbers = rollout.observation["trajectory"][:, column, 0]
                assert set((numbers % 3).tolist()) == {copy}
        assert collector.episodes.lengths.tolist() == [4] * len(collector.episodes.lengths)
    finally:
        collector.close()


def test_columns_that_are_full_at_the_same_time_make_rollouts_one_after_the_other(make: Make) -> None:
    collector = make(env_config(num_envs=4), num_steps=4, columns=1, min_ready=4)
    copies = []
    for _ in range(8):  # all four fill at once, so that three rollouts of four ask no environment for anything
        collector.collect()
        copies += collector.rollout_copies.tolist()
    assert sorted(copies) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("num_steps", [1, 2])
def test_pauses_fill_no_more_columns_than_there_is_room_for(make: Make, num_steps: int) -> None:
    collector = make(env_config(num_envs=4, length=1000), num_steps=num_steps, columns=1, min_ready=4)
    last: dict[int, float] = {}
    for _ in range(40):
        rollout = collector.collect()
        copy = int(collector.rollout_copies[0])
        seen = counts(rollout, 0)
        assert seen == [last.get(copy, 0.0) + step for step in range(num_steps + 1)]
        last[copy] = seen[-1]
        collector.pause()
        collector.resume()
