"""Worker processes that fill one rollout together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from collector_envs import env_config, env_seed
from torch import Tensor, nn

from rlruntime.collectors.inline import InlineCollector
from rlruntime.collectors.rollout import Rollout
from rlruntime.collectors.sync_process import SyncProcessCollector
from rlruntime.collectors.transitions import transitions
from rlruntime.envs.make import describe, make_vector_env
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
Make = Callable[..., SyncProcessCollector]


@pytest.fixture
def make(nothing_is_left: None) -> Iterator[Make]:
    """Make collectors; they are closed at the end, and nothing of theirs may be left then."""
    made: list[SyncProcessCollector] = []

    def make_one(config: EnvConfig, policy: Any, **arguments: Any) -> SyncProcessCollector:
        made.append(SyncProcessCollector(config, policy, **{"num_steps": 6, **arguments}))
        return made[-1]

    yield make_one
    for collector in made:
        collector.close()
    made.clear()


def policy_for(config: EnvConfig, transforms: list[Component] | None = None, seed: int = 0) -> ActorCritic:
    return build_policy(describe(config).spaces, MLP, transforms or (), seed=seed)


def collected(collector: Any) -> Rollout:
    rollout = collector.collect()
    assert isinstance(rollout, Rollout)
    return rollout


def columns_of(rollout: Rollout) -> dict[str, Tensor]:
    names = ["action", "params", "env_reward", "reward", "terminated", "truncated", "valid", "behaviour_log_prob"]
    names += ["value", "is_init", "trajectory_id", "policy_version"]
    assert isinstance(rollout.observation, Tensor)
    return {"observation": rollout.observation, **{name: getattr(rollout, name) for name in names}}


def test_with_one_worker_rollouts_learning_and_resuming_are_those_of_the_inline_collector(make: Make) -> None:
    config = env_config("toy_envs:RandomWalkEnv", 3)
    inline = InlineCollector(make_vector_env(config), policy_for(config, NORMALISED), num_steps=16, seed=3)
    process = make(config, policy_for(config, NORMALISED), num_steps=16, num_workers=1, seed=3)
    settings = PPOConfig(num_steps=16, minibatch_size=16, learning_rate=1e-2)
    learners = [PPO(settings, collector.policy, seed=3) for collector in (inline, process)]  # type: ignore[arg-type]
    process.start()
    assert len(process.snapshot() or ()) == 3  # episodes have begun
    saved: tuple[dict[str, Any], list[bytes]] | None = None
    kept: list[dict[str, Tensor]] = []
    for number in range(4):
        rollouts = [collected(collector) for collector in (inline, process)]
        expected, seen = (columns_of(rollout) for rollout in rollouts)
        for name, tensor in expected.items():
            assert torch.equal(tensor, seen[name]), name
        if saved is not None:
            kept.append({name: tensor.clone() for name, tensor in seen.items()})
        assert inline.num_frames == process.num_frames
        assert inline.episodes.returns.tolist() == process.episodes.returns.tolist()
        collector: Any
        for collector, learner, rollout in zip((inline, process), learners, rollouts, strict=True):
            learner.update(rollout)
            collector.update_transforms()
            assert collector.publish() == number + 2
        if number == 1:
            snapshots = process.snapshot()
            assert snapshots is not None
            saved = process.state_dict(), snapshots
            weights = {name: tensor.clone() for name, tensor in process.policy.state_dict().items()}
    assert saved is not None
    process.policy.load_state_dict(weights)
    process.load_state_dict(saved[0])
    process.restore(saved[1])
    again = columns_of(collected(process))
    for name, tensor in kept[0].items():
        assert torch.equal(tensor, again[name]) or name == "policy_version", name
    inline.close()


def test_masks_and_dict_observations_lie_in_shared_memory_too(make: Make) -> None:
    config = env_config("toy_envs:NestedEnv", 3).model_copy(update={"observation_keys": ("camera", "joints")})
    inline = InlineCollector(make_vector_env(config), policy_for(config), num_steps=6)
    process = make(config, policy_for(config), num_workers=1)
    for _ in range(2):
        expected, seen = collected(inline), collected(process)
        assert isinstance(expected.observation, dict)
        assert isinstance(seen.observation, dict)
        assert list(seen.observation) == list(expected.observation)
        for key, leaf in expected.observation.items():
            assert torch.equal(leaf, seen.observation[key]), key
        assert expected.action_mask is not None
        assert seen.action_mask is not None
        assert torch.equal(expected.action_mask, seen.action_mask)
        assert torch.equal(expected.action, seen.action)
    inline.close()


def test_copies_have_the_seeds_and_ids_of_their_numbers_whatever_the_number_of_workers(make: Make) -> None:
    config = env_config(num_envs=5, length=3)
    collector = make(config, policy_for(config), num_workers=2)
    rollout = collected(collector)
    assert isinstance(rollout.observation, Tensor)
    assert rollout.observation[0, :, 1].tolist() == [float(np.float32(env_seed(copy))) for copy in range(5)]
    for copy in range(5):  # three steps, one that resets, two more
        assert rollout.trajectory_id[:, copy].tolist() == [copy, copy, copy, -1, copy + 5, copy + 5]
        assert rollout.is_init[:, copy].tolist() == [True, False, False, False, True, False]
    assert rollout.num_valid == collector.num_frames == 25
    assert collector.episodes.returns.tolist() == [6.0] * 5
    rollout = collected(collector)
    assert rollout.trajectory_id[:, 4].tolist() == [9, -1, 14, 14, 14, -1]
    assert collector.stats().steps == 60
    assert collector.stats().seconds["env"] > 0


def test_rollouts_are_handed_out_when_the_last_worker_is_done_at_next_to_no_cost_of_the_learner(make: Make) -> None:
    config = env_config(num_envs=4, length=ENDLESS)
    collector = make(config, policy_for(config), num_workers=2, num_steps=64)
    collector.collect()
    started, used = time.monotonic(), time.process_time()
    for _ in range(40):
        collector.collect()
    assert time.process_time() - used < 40 * 64 * 4 * 100e-6  # 100 us a frame; it takes some 3
    assert time.monotonic() - started < 40.0  # a second of idling after each would take longer


def test_publication_is_explicit_and_reaches_every_worker_or_those_addressed(make: Make) -> None:
    config = env_config("collector_envs:LineEnv", 4)
    policy = policy_for(config)
    collector = make(config, policy, num_workers=2)
    before = {name: (parameter, parameter.clone()) for name, parameter in policy.named_parameters()}
    first = collected(collector)
    assert first.policy_version.tolist() == [[1] * 4] * 6
    assert first.policy_version.dtype == torch.int64
    assert float(first.params[..., 0].abs().min()) > 0
    for name, parameter in policy.named_parameters():  # the learner's own are untouched by workers that copy them
        assert before[name][0] is parameter
        assert isinstance(parameter, nn.Parameter)
        assert torch.equal(before[name][1], parameter)

    with torch.no_grad():
        policy.actor_head.weight.zero_()
        policy.actor_head.bias.fill_(0.25)
    assert float(collected(collector).params[..., 0].sub(0.25).abs().min()) > 0  # not published yet

    assert collector.publish(workers=[1]) == 2
    rollout = collected(collector)
    assert rollout.policy_version.tolist() == [[1, 1, 2, 2]] * 6
    assert float(rollout.params[:, :2, 0].sub(0.25).abs().min()) > 0
    assert rollout.params[:, 2:, 0].tolist() == [[0.25, 0.25]] * 6

    with torch.no_grad():
        policy.actor_head.bias.zero_()
    assert collector.publish() == 3
    rollout = collected(collector)
    assert rollout.policy_version.tolist() == [[3] * 4] * 6
    assert rollout.params[..., 0].tolist() == [[0.0] * 4] * 6
    assert collector.stats().policy_version == 3


def test_workers_may_follow_policies_of_their_own(make: Make) -> None:
    config = env_config("collector_envs:LineEnv", 2)
    policies = [policy_for(config, seed=1), policy_for(config, seed=2)]
    for number, policy in enumerate(policies):
        nn.init.zeros_(policy.actor_head.weight)
        nn.init.constant_(policy.actor_head.bias, number + 0.5)
    collector = make(config, lambda worker: policies[worker], num_workers=2)
    assert collector.policy is policies[0]
    assert collected(collector).params[..., 0].tolist() == [[0.5, 1.5]] * 6
    nn.init.constant_(policies[1].actor_head.bias, 3.5)
    collector.publish(workers=[1])
    assert collected(collector).params[..., 0].tolist() == [[0.5, 3.5]] * 6


def test_stragglers_are_cut_short_where_they_are_and_go_on_from_there(make: Make, tmp_path: Path) -> None:
    config = env_config("collector_envs:SleepingEnv", 2, sleep_s=0.002, slow_factor=25, slow_seed=env_seed(1))
    collector = make(config, policy_for(config), num_workers=2, num_steps=10, preemption_share=0.5)
    counted, valid = 0.0, 0
    for _ in range(3):
        rollout = collected(collector)
        assert isinstance(rollout.observation, Tensor)
        filled = int(rollout.num_filled[1])
        assert int(rollout.num_filled[0]) == 10
        assert filled < 10
        assert rollout.valid[:, 1].tolist() == [True] * filled + [False] * (10 - filled)
        seen = rollout.observation[:, 1, 0].tolist()
        assert seen == [counted + min(step, filled) for step in range(11)]
        assert rollout.trajectory_id[:filled, 1].tolist() == [1] * filled
        counted += filled
        valid += 10 + filled
        # The value after the last step is there to bootstrap from.
        policy = collector.policy
        assert isinstance(policy, ActorCritic)
        with torch.no_grad():
            torch.testing.assert_close(rollout.value[filled, 1], policy.values(rollout.observation[filled])[1])
    assert collector.num_frames == valid
    assert collector.num_cut_short == 3


def test_rows_that_workers_write_into_a_shared_buffer_are_those_of_an_inline_collector(make: Make) -> None:
    config = env_config("toy_envs:RandomWalkEnv", 3)
    buffer = ReplayBuffer(SharedTensorStorage(SharedTensorStorageConfig(capacity=500)))
    by_hand = ReplayBuffer(SharedTensorStorage(SharedTensorStorageConfig(capacity=500)))
    inline = InlineCollector(make_vector_env(config), policy_for(config), num_steps=6)
    collector = make(config, policy_for(config), num_workers=1, buffer=buffer)
    for _ in range(5):
        assert collector.collect() is None
        by_hand.extend(transitions(inline.collect()))
    assert collector.num_frames == len(buffer) == buffer.num_written == len(by_hand)
    with buffer.storage.reading(), by_hand.storage.reading():
        positions = np.arange(len(buffer))
        seen, expected = buffer.storage.gather(positions), by_hand.storage.gather(positions)
    assert seen.dtype.names == expected.dtype.names
    for name in expected.dtype.names or ():
        assert seen[name].tolist() == expected[name].tolist(), name
    inline.close()
    for one in (buffer, by_hand):
        one.close()
        one.storage.close()


def test_several_workers_write_every_row_once(make: Make) -> None:
    config = env_config(num_envs=4, length=3)
    buffer = ReplayBuffer(SharedTensorStorage(SharedTensorStorageConfig(capacity=1000)))
    collector = make(config, policy_for(config), num_workers=2, buffer=buffer, weights="Pipe")
    for _ in range(4):
        collector.collect()
        collector.publish()
    assert collector.num_frames == len(buffer) == 4 * 18
    with buffer.storage.reading():
        rows = buffer.storage.gather(np.arange(len(buffer)))
    for copy in range(4):
        own = rows["observation"][rows["observation"][:, 1] == np.float32(env_seed(copy))]
        assert own[:, 0].tolist() == [0, 1, 2] * 6
    buffer.close()
    buffer.storage.close()
