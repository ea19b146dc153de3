"""Evaluations carry what a policy remembers, for each episode by itself."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest
import torch
from recurrent_networks import KINDS

from rlruntime.collectors.episode_runs import run_episodes
from rlruntime.envs.make import describe, make_vector_env
from rlruntime.policies.artifact import LoadedPolicy, load_policy, save_policy
from rlruntime.policies.build import build_policy
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import EnvConfig
from rlruntime.trainers.evaluation import Evaluator

CONFIG = EnvConfig(id="CartPole-v1", num_envs=2, max_episode_steps=60)
SEEDS = [3, 4, 5]


def played(policy: LoadedPolicy, seed: int) -> float:
    """Return the reward of one episode, act by act."""
    env, total, state = gym.make("CartPole-v1", max_episode_steps=60), 0.0, None
    observation, _ = env.reset(seed=seed)
    while True:
        acted = policy.act(observation, state)
        state = acted.state
        observation, reward, terminated, truncated, _ = env.step(acted.action)
        total += float(reward)
        if terminated or truncated:
            env.close()
            return total


@pytest.mark.parametrize("kind", KINDS)
def test_evaluations_bring_what_acting_by_hand_brings(kind: str, tmp_path: Path) -> None:
    policy = build_policy(describe(CONFIG).spaces, Component.model_validate(KINDS[kind]), seed=8)
    with torch.no_grad():
        policy.actor_head.weight.normal_(generator=torch.Generator().manual_seed(5))
    save_policy(policy, tmp_path / "policy.safetensors")
    expected = [played(load_policy(tmp_path / "policy.safetensors"), seed) for seed in SEEDS]
    assert len(set(expected)) > 1
    evaluator = Evaluator(CONFIG, episodes=2, deterministic=True)  # the third episode follows in a copy that was used
    assert evaluator.evaluate(policy, SEEDS).returns.tolist() == expected
    evaluator.close()
    env = make_vector_env(CONFIG)
    assert run_episodes(env, policy, SEEDS, None)[0].tolist() == expected
    env.close()
