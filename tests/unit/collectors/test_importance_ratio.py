"""Before the first optimiser step the learner's policy is the one that acted: importance ratios are 1."""

from __future__ import annotations

import pytest
import torch
from policy_runs import TRAININGS, job_of

from rlruntime.collectors.inline import InlineCollector
from rlruntime.envs.make import make_vector_env
from rlruntime.policies.build import build_policy
from rlruntime.spec.training.ppo import PPOConfig
from rlruntime.trainers.algorithms.batches import Batch
from rlruntime.trainers.algorithms.ppo import PPO


@pytest.mark.parametrize("kind", TRAININGS)
def test_ratio_is_one_and_values_agree_before_the_first_optimiser_step(kind: str) -> None:
    training = job_of(kind).spec.training
    env = make_vector_env(training.env)
    policy = build_policy(env.spaces, training.network, training.env.transforms, seed=1)
    collector = InlineCollector(env, policy, num_steps=40, seed=2)
    algorithm = PPO(PPOConfig(num_steps=40, minibatch_size=64, learning_rate=1e-2), policy)
    try:
        assert policy.deferrable == (kind != "stateful")
        for _ in range(3):  # from the second rollout on, statistics have moved and parameters have learned
            rollout = collector.collect()
            batch = algorithm.batch(rollout)
            assert isinstance(batch, Batch)
            assert 0 < rollout.num_valid == len(batch.advantage) < 160 or kind == "pendulum"
            with torch.no_grad():
                params, value = policy.params_and_values(batch.observation)
                log_prob = policy.distribution.evaluate(params, batch.action, batch.action_mask).log_prob
            ratio = (log_prob - batch.behaviour_log_prob).exp()
            assert float((ratio - 1).abs().max()) < 1e-5
            torch.testing.assert_close(value, batch.behaviour_value, rtol=1e-5, atol=1e-5)
            assert float(log_prob.std()) > 0 or kind == "stateful"
            algorithm.update(rollout)
            collector.update_transforms()
    finally:
        collector.close()
