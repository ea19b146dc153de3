"""Policies with memory in other processes: the same rollouts, and the same numbers after a stop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from collector_envs import env_config
from recurrent_networks import KINDS, show_counts
from torch import Tensor

from rlruntime.collectors.async_envs import AsyncEnvCollector
from rlruntime.collectors.async_process import AsyncProcessCollector
from rlruntime.collectors.inline import InlineCollector
from rlruntime.collectors.rollout import Rollout
from rlruntime.collectors.sync_process import SyncProcessCollector
from rlruntime.envs.async_pool import AsyncEnvPool
from rlruntime.envs.make import describe, make_vector_env
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.build import build_policy
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import EnvConfig
from rlruntime.spec.training.ppo import PPOConfig
from rlruntime.trainers.algorithms.ppo import PPO

SETTINGS = PPOConfig(num_steps=16, minibatch_size=16, learning_rate=1e-2)


def policy_for(config: EnvConfig, component: Any = KINDS["LSTM"]) -> ActorCritic:
    return build_policy(describe(config).spaces, Component.model_validate(component), seed=5)


def tensors_of(rollout: Rollout | None) -> dict[str, Tensor]:
    assert rollout is not None
    names = ("action", "params", "env_reward", "valid", "behaviour_log_prob", "value", "is_init", "trajectory_id")
    assert isinstance(rollout.observation, Tensor)
    return {"observation": rollout.observation, **rollout.initial_state, **{n: getattr(rollout, n) for n in names}}


def largest_ratio_error(learner: PPO, rollout: Rollout) -> float:
    batch = learner.batch(rollout)
    params, value = batch.forward(learner.gradient)
    log_prob = learner.policy.distribution.evaluate(params, batch.rows.action, None).log_prob
    torch.testing.assert_close(value, batch.rows.behaviour_value, rtol=1e-5, atol=1e-5)
    return float(((log_prob - batch.rows.behaviour_log_prob).exp() - 1).abs().max())


@pytest.mark.usefixtures("nothing_is_left")
def test_with_one_worker_rollouts_learning_and_resuming_are_those_of_the_inline_collector() -> None:
    config = env_config("toy_envs:RandomWalkEnv", 3)
    inline = InlineCollector(make_vector_env(config), policy_for(config), num_steps=16, seed=3)
    process = SyncProcessCollector(config, policy_for(config), num_steps=16, num_workers=1, seed=3)
    learners = [PPO(SETTINGS, collector.policy, seed=3) for collector in (inline, process)]  # type: ignore[arg-type]
    saved: Any = None
    expected_again: dict[str, Tensor] = {}
    for number in range(4):
        rollouts = [inline.collect(), process.collect()]
        expected, seen = (tensors_of(rollout) for rollout in rollouts)
        assert {"actor.hidden", "actor.cell", "critic.hidden", "critic.cell"} < expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(tensor, seen[name]), name
        assert (float(expected["critic.cell"].abs().max()) > 0) == (number > 0)
        if number == 2:
            expected_again = {name: tensor.clone() for name, tensor in seen.items()}
        collector: Any
        for collector, learner, rollout in zip((inline, process), learners, rollouts, strict=True):
            assert rollout is not None
            assert largest_ratio_error(learner, rollout) < 1e-5
            learner.update(rollout)
            collector.publish()
        if number == 1:
            weights = {name: tensor.clone() for name, tensor in process.policy.state_dict().items()}
            saved = process.state_dict(), process.snapshot()
    process.policy.load_state_dict(weights)
    process.load_state_dict(saved[0])
    process.restore(saved[1])
    again = tensors_of(process.collect())
    for name, tensor in expected_again.items():
        assert torch.equal(tensor, again[name]), name
    inline.close()
    process.close()


@pytest.mark.usefixtures("nothing_is_left")
def test_a_rollout_that_is_cut_short_is_remembered_up_to_where_it_was_cut() -> None:
    config = env_config("collector_envs:SleepingEnv", 4, sleep_s=0.002, slow_factor=5.0, slow_seed=-1, length=50)
    policy = policy_for(config, {"type": "recurrent_networks:Counter"})
    show_counts(policy)
    collector = SyncProcessCollector(config, policy, num_steps=20, num_workers=2, preemption_share=0.5, seed=1)
    seen = torch.zeros(4)
    try:
        for _ in range(4):
            rollout = collector.collect()
            assert rollout is not None
            assert rollout.initial_state["actor.seen"][:, 0].tolist() == seen.tolist()
            assert rollout.initial_state["critic.seen"][:, 0].tolist() == seen.tolist()
            for copy, filled in enumerate(rollout.num_filled.tolist()):
                valid = rollout.valid[:filled, copy]
                counted = rollout.params[:filled, copy, 0]
                observed = rollout.observation[:filled, copy, 0]  # type: ignore[index]
                assert torch.equal(counted[valid], observed[valid] + 1)  # how many rows of the episode there were
                assert torch.equal(rollout.value[:filled, copy][valid], counted[valid])
                last = rollout.valid[filled - 1, copy] if filled else True
                seen[copy] = counted[-1] if filled and last else (0.0 if filled else seen[copy])
    finally:
        collector.close()


@pytest.mark.usefixtures("nothing_is_left")
def test_workers_beside_the_learner_hand_over_what_they_remembered() -> None:
    config = env_config("toy_envs:RandomWalkEnv", 4)
    policy = policy_for(config, KINDS["GRU"])
    collector = AsyncProcessCollector(config, policy, num_steps=16, num_workers=2, seed=3)
    learner = PPO(SETTINGS, policy)
    try:
        for number in range(8):  # nothing is published: those who act have the learner's weights
            rollout = collector.collect()
            assert rollout is not None
            assert largest_ratio_error(learner, rollout) < 1e-5
            if number >= 4:
                assert float(rollout.initial_state["actor.hidden"].abs().max()) > 0
    finally:
        collector.close()


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_environments_that_do_not_wait_have_memories_of_their_own(kind: str) -> None:
    config = env_config("toy_envs:RandomWalkEnv", 3)
    policy = policy_for(config, KINDS[kind])
    collector = AsyncEnvCollector(AsyncEnvPool(config, workers="Threads"), policy, num_steps=16, columns=2, seed=3)
    learner = PPO(SETTINGS, policy)
    try:
        for number in range(8):  # nothing is published: those who act have the learner's weights
            rollout = collector.collect()
            assert largest_ratio_error(learner, rollout) < 1e-5
            resets = torch.cat([torch.zeros(1, 2, dtype=torch.bool), ~rollout.valid])
            state = {name: rows.clone() for name, rows in rollout.initial_state.items()}
            observation = rollout.observation.flatten(0, 1)  # type: ignore[union-attr]
            with torch.no_grad():  # also that of the last observation, which nothing was done about in this rollout
                values = policy.values_over(observation, state, resets)[0].view(17, 2)
            torch.testing.assert_close(rollout.value, values, rtol=1e-5, atol=1e-5)
            if number >= 3:
                assert float(rollout.initial_state["actor.hidden"].abs().max()) > 0
    finally:
        collector.close()


@pytest.mark.usefixtures("nothing_is_left")
def test_an_environment_is_remembered_from_column_to_column_and_forgotten_where_its_episode_ends() -> None:
    config = env_config(num_envs=3, length=7)
    policy = policy_for(config, {"type": "recurrent_networks:Counter"})
    show_counts(policy)
    collector = AsyncEnvCollector(
        AsyncEnvPool(config, workers="Threads"), policy, num_steps=5, columns=2, random_frames=20
    )
    try:
        for _ in range(12):
            rollout = collector.collect()
            assert isinstance(rollout.observation, Tensor)
            seen = rollout.observation[:-1, :, 0] + 1  # how many rows of the episode there were; the final one is 8
            assert torch.equal(rollout.value[:-1], seen)
            first = torch.where(rollout.observation[0, :, 0] == 0, 0.0, rollout.observation[0, :, 0])
            assert rollout.initial_state["actor.seen"][:, 0].tolist() == first.tolist()
            collector.publish()
    finally:
        collector.close()
