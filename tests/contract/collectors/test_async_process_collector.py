"""Worker processes that collect while the learner learns: staleness, counts, pauses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from collector_envs import env_config, env_seed
from torch import Tensor

from rlruntime.collectors.async_process import AsyncProcessCollector
from rlruntime.collectors.rollout import Rollout
from rlruntime.envs.make import describe
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.build import build_policy
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import EnvConfig
from rlruntime.spec.training.ppo import PPOConfig
from rlruntime.spec.training.storages import SharedTensorStorageConfig
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.mapped import SharedTensorStorage
from rlruntime.trainers.algorithms.ppo import PPO

MLP = Component(type="MLP", config={"hiddenSizes": [4]})
NORMALISED = [Component(type="ObservationNorm"), Component(type="RewardNorm")]
ENDLESS = 1_000_000
Make = Callable[..., AsyncProcessCollector]


@pytest.fixture
def make(nothing_is_left: None) -> Iterator[Make]:
    """Make collectors; they are closed at the end, and nothing of theirs may be left then."""
    made: list[AsyncProcessCollector] = []

    def make_one(config: EnvConfig, transforms: list[Component] | None = None, **arguments: Any) -> Any:
        policy = build_policy(describe(config).spaces, MLP, transforms or ())
        made.append(AsyncProcessCollector(config, policy, **{"num_steps": 5, "num_workers": 2, **arguments}))
        return made[-1]

    yield make_one
    for collector in made:
        collector.close()
    made.clear()


def collected(collector: AsyncProcessCollector) -> Rollout:
    rollout = collector.collect()
    assert rollout is not None
    return rollout


def counts(rollout: Rollout, column: int = 0) -> list[float]:
    assert isinstance(rollout.observation, Tensor)
    return rollout.observation[:, column, 0].tolist()


def until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def test_rollouts_are_whole_in_order_and_within_the_bound_of_staleness(make: Make) -> None:
    collector = make(env_config(num_envs=4, length=ENDLESS), max_staleness=1)
    last, frames, skipped = {0: 0.0, 1: 0.0}, 0, 0
    for number in range(12):
        rollout = collected(collector)
        worker = collector.rollout_worker
        assert rollout.num_envs == 2
        first = counts(rollout)[0]
        assert first >= last[worker]  # one that was overtaken by the other worker's may have been dropped
        skipped += 2 * int(first - last[worker])
        for column in range(2):
            assert counts(rollout, column) == [first + step for step in range(6)]
        assert rollout.trajectory_id.tolist() == [[2 * worker, 2 * worker + 1]] * 5
        assert rollout.is_init[0].tolist() == [first == 0.0] * 2
        last[worker] = first + 5.0
        frames += 10
        version = int(rollout.policy_version[0, 0])
        assert rollout.policy_version.tolist() == [[version] * 2] * 5
        assert collector.staleness == number + 1 - version
        assert 0 <= collector.staleness <= 1
        assert collector.publish() == number + 2
    assert collector.num_frames == frames
    stats = collector.stats()
    assert stats.dropped["stale"] >= skipped
    assert stats.dropped["stale"] % 10 == skipped % 10 == 0
    assert stats.held_back > 0
    assert stats.steps >= frames


def test_a_bound_of_zero_makes_every_rollout_that_of_the_newest_weights(make: Make) -> None:
    collector = make(env_config(num_envs=2, length=ENDLESS), max_staleness=0)
    for number in range(4):
        rollout = collected(collector)
        assert set(rollout.policy_version.flatten().tolist()) == {number + 1}
        assert collector.staleness == 0
        collector.publish()


def test_what_is_too_old_when_its_turn_comes_is_dropped_and_counted(make: Make) -> None:
    collector = make(env_config(num_envs=1, length=3), max_staleness=1, num_steps=8, num_workers=1)
    for number in range(4):
        rollout = collected(collector)
        assert collector.staleness == 0
        until(lambda: collector.stats().steps == 16 * number + 16)  # noqa: B023 - asked at once; one more waits
        for _ in range(3):  # more often than once for each rollout
            collector.publish()
    stats = collector.stats()
    assert collector.num_frames == 4 * 6 == stats.frames
    assert stats.dropped["stale"] == 3 * 6
    assert rollout.num_valid == 6


def test_workers_collect_while_the_learner_learns_and_leave_its_rollout_alone(make: Make) -> None:
    collector = make(env_config(num_envs=1, length=ENDLESS), num_workers=1)
    rollout = collected(collector)
    before = {name: getattr(rollout, name).clone() for name in ("action", "params", "valid", "policy_version")}
    observation = counts(rollout)
    until(lambda: collector.stats().steps == 10)  # the next rollout's too; no more, as this one is held
    assert counts(rollout) == observation
    for name, tensor in before.items():
        assert torch.equal(tensor, getattr(rollout, name)), name


def test_nothing_is_stepped_in_a_pause_and_nothing_is_lost_by_it(make: Make) -> None:
    collector = make(env_config("collector_envs:SleepingEnv", 2, sleep_s=0.002, length=ENDLESS), num_steps=40)
    last = {0: 0.0, 1: 0.0}
    for _ in range(3):
        rollout = collected(collector)
        assert counts(rollout) == [last[collector.rollout_worker] + step for step in range(41)]
        last[collector.rollout_worker] += 40.0
        collector.pause()
        steps = collector.stats().steps
        time.sleep(0.05)
        assert collector.stats().steps == steps
        with pytest.raises(RuntimeError, match="paused"):
            collector.collect()
        collector.resume()
        collector.resume()


def test_ppo_learns_from_each_rollout_with_statistics_in_one_place(make: Make) -> None:
    collector = make(env_config("toy_envs:RandomWalkEnv", 4), NORMALISED, num_steps=16)
    policy = collector.policy
    assert isinstance(policy, ActorCritic)
    algorithm = PPO(PPOConfig(num_steps=16, minibatch_size=32), policy)
    rows = []
    for rollout in collector.rollouts(300):
        assert rollout is not None
        assert np.isfinite(algorithm.update(rollout)["loss/policy"])
        assert isinstance(rollout.observation, Tensor)
        rows.append(rollout.observation[:-1][rollout.valid].clone())
        collector.publish()
    seen = torch.cat(rows).double()
    moments: Any = policy.transforms[0].moments[0]  # type: ignore[index]
    assert float(moments.count) == len(seen) == collector.num_frames
    torch.testing.assert_close(moments.mean, seen.mean(0))
    torch.testing.assert_close(moments.variance, seen.var(0, correction=0))


def test_rows_go_into_a_shared_buffer_and_are_counted_exactly(make: Make) -> None:
    buffer = ReplayBuffer(SharedTensorStorage(SharedTensorStorageConfig(capacity=5000)))
    collector = make(env_config(num_envs=2, length=3), buffer=buffer, num_steps=8)
    for _ in range(6):
        assert collector.collect() is None
        collector.publish()
    assert collector.num_frames == 6 * 6
    collector.pause()
    collector.close()
    with buffer.storage.reading():
        rows = buffer.storage.gather(np.arange(len(buffer)))
    for copy in range(2):  # also those that have not been accounted for yet
        own = rows["observation"][rows["observation"][:, 1] == np.float32(env_seed(copy))][:, 0]
        assert own.tolist() == ([0, 1, 2] * len(own))[: len(own)]
    assert len(buffer) >= 36
    buffer.close()
    buffer.storage.close()


def test_restarted_episodes_keep_counters_and_take_new_seeds(make: Make) -> None:
    collector = make(env_config(num_envs=1, length=3), num_workers=1)
    collected(collector)
    state = collector.state_dict()
    collector.restart_episodes([11], state)
    for _ in range(4):
        rollout = collected(collector)
        assert isinstance(rollout.observation, Tensor)
        assert set(rollout.observation[..., 1].flatten().tolist()) == {11.0}
    assert collector.num_frames > int(state["num_frames"])
