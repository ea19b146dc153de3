"""What a rollout comes to: counts over columns that were cut short, uniform actions, statistics, settings."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from collector_envs import env_config

from rlruntime.collectors.accounting import Accounts
from rlruntime.collectors.acting import uniform_log_prob
from rlruntime.collectors.async_envs import AsyncEnvCollector
from rlruntime.collectors.inline import InlineCollector
from rlruntime.collectors.make import make_collector
from rlruntime.collectors.rollout import Rollout
from rlruntime.envs.make import describe, make_vector_env
from rlruntime.envs.protocol import EnvSpaces
from rlruntime.errors import ConfigError
from rlruntime.policies.build import build_policy
from rlruntime.spec.training.component import Component

MLP = Component(type="MLP", config={"hiddenSizes": [4]})
T, F = True, False


def rollout_of(
    valid: list[list[bool]], reward: list[list[float]], ended: list[list[bool]], filled: list[int]
) -> Rollout:
    spaces = EnvSpaces(gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2))
    rollout = Rollout(spaces, build_policy(spaces, MLP).distribution, len(valid), len(valid[0]))
    rollout.valid.copy_(torch.tensor(valid))
    rollout.env_reward.copy_(torch.tensor(reward))
    rollout.terminated.copy_(torch.tensor(ended))
    rollout.num_filled.copy_(torch.tensor(filled))
    return rollout


def test_an_episode_goes_on_behind_rows_that_were_never_reached() -> None:
    accounts = Accounts(2)
    first = rollout_of([[T, T], [T, F], [T, F]], [[1, 1], [1, 0], [1, 0]], [[F, F], [F, F], [F, F]], [3, 1])
    accounts.add(first)
    assert accounts.episodes.returns.tolist() == []
    assert first.trajectory_id.tolist() == [[0, 1], [0, -1], [0, -1]]
    second = rollout_of([[T, T], [F, T], [T, F]], [[1, 5], [0, 5], [1, 0]], [[T, F], [F, T], [F, F]], [3, 3])
    accounts.add(second)
    assert accounts.episodes.returns.tolist() == [4.0, 11.0]
    assert accounts.episodes.lengths.tolist() == [4, 3]
    assert second.trajectory_id.tolist() == [[0, 1], [-1, 1], [2, -1]]
    assert second.is_init.tolist() == [[F, F], [F, F], [T, F]]
    assert accounts.num_frames == 4 + 4


def test_columns_of_some_copies_go_on_from_those_copies() -> None:
    accounts = Accounts(3)
    accounts.add(rollout_of([[T], [T]], [[1], [2]], [[F], [F]], [2]), np.array([2]))
    part = rollout_of([[T, T], [T, F]], [[3, 4], [5, 0]], [[F, T], [T, F]], [2, 2])
    accounts.add(part, np.array([2, 0]))
    assert accounts.episodes.returns.tolist() == [11.0, 4.0]
    assert part.trajectory_id.tolist() == [[2, 0], [2, -1]]


@pytest.mark.parametrize(
    ("space", "action", "mask", "expected"),
    [
        (gym.spaces.Discrete(4), [0, 3], None, [-math.log(4)] * 2),
        (gym.spaces.Discrete(3), [0, 1], [[1, 0, 0], [1, 1, 1]], [0.0, -math.log(3)]),
        (gym.spaces.MultiDiscrete([2, 3]), [[0, 2]], None, [-math.log(6)]),
        (gym.spaces.MultiDiscrete([2, 3]), [[0, 2]], [[1, 0, 1, 0, 1]], [-math.log(2)]),
        (gym.spaces.Box(-3, 5, (2,), np.float32), [[0.3, -0.9]], None, [-2 * math.log(2)]),
        (gym.spaces.Box(-np.inf, np.inf, (1,), np.float32), [[0.0]], None, [-0.5 * math.log(2 * math.pi)]),
    ],
)
def test_uniform_actions_have_the_log_probability_of_their_density(
    space: gym.Space[object], action: list[object], mask: list[list[int]] | None, expected: list[float]
) -> None:
    policy = build_policy(EnvSpaces(gym.spaces.Box(-1, 1, (1,), np.float32), space), MLP)
    allowed = None if mask is None else torch.tensor(mask, dtype=torch.bool)
    log_prob = uniform_log_prob(policy, torch.tensor(action), allowed)
    torch.testing.assert_close(log_prob, torch.tensor(expected))


def test_the_first_frames_are_random_and_the_rest_the_policy_s() -> None:
    env = make_vector_env(env_config("collector_envs:LineEnv", 2, length=1000))
    policy = build_policy(env.spaces, MLP)
    collector = InlineCollector(env, policy, num_steps=50, random_frames=101)
    for _ in range(2):  # 101 frames take two rollouts
        rollout = collector.collect()
        assert bool((rollout.action.abs() <= 1).all())
        assert set(rollout.behaviour_log_prob.flatten().tolist()) == {float(np.float32(-math.log(2)))}
    assert float(rollout.action.std()) == pytest.approx(1 / math.sqrt(3), abs=0.1)
    rollout = collector.collect()
    assert not bool((rollout.action.abs() <= 1).all())
    collector.close()


def test_a_collector_that_is_paused_does_not_collect() -> None:
    env = make_vector_env(env_config(num_envs=1))
    collector = InlineCollector(env, build_policy(env.spaces, MLP), num_steps=2)
    collector.pause()
    with pytest.raises(RuntimeError, match="paused"):
        collector.collect()
    collector.resume()
    assert collector.collect().num_valid == 2
    assert collector.publish() == 2
    assert collector.collect().policy_version.tolist() == [[2], [2]]
    assert collector.stats().frames == collector.num_frames == 3
    collector.close()


def test_a_manifest_names_a_collector_and_its_settings() -> None:
    env = env_config(num_envs=3, length=3)
    policy = build_policy(describe(env).spaces, MLP)
    component = Component(type="AsyncEnv", config={"workers": "Threads", "columns": 2, "minReady": 2})
    collector = make_collector(component, env, policy, num_steps=4, seed=1, random_frames=5)
    assert isinstance(collector, AsyncEnvCollector)
    assert (collector.num_columns, collector.min_ready, collector.random_frames) == (2, 2, 5)
    rollout = collector.collect()
    assert rollout.num_envs == 2
    collector.close()
    inline = make_collector(Component(type="Inline"), env, policy, num_steps=4, seed=1)
    assert isinstance(inline, InlineCollector)
    inline.close()


@pytest.mark.parametrize(
    ("component", "words"),
    [
        (Component(type="Sync"), "spec.training.collector.type: there is no collector of this name"),
        (
            Component(type="SyncProcess", config={"numWorker": 2}),
            "spec.training.collector.config.numWorker: there is no such setting",
        ),
        (
            Component(type="SyncProcess", config={"preemptionShare": 2.0}),
            "spec.training.collector.config.preemptionShare: input should be less than or equal to 1",
        ),
        (Component(type="builtins:dict"), "a collector needs a class method from_config"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(component: Component, words: str) -> None:
    env = env_config()
    with pytest.raises(ConfigError) as caught:
        make_collector(component, env, build_policy(describe(env).spaces, MLP), num_steps=4, seed=1)
    assert words in str(caught.value)
