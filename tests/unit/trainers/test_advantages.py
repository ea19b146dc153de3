"""How advantages are chosen: the defaults, V-trace under other weights, and one's own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from own_advantages import Constant
from recurrent_networks import KINDS
from small_jobs import run_job, small_job

from rlruntime.collectors.inline import InlineCollector
from rlruntime.envs.make import make_vector_env
from rlruntime.envs.protocol import EnvSpaces
from rlruntime.errors import ConfigError
from rlruntime.losses.returns import generalized_advantage_estimation, v_trace
from rlruntime.policies.build import build_policy
from rlruntime.spec.problems import ManifestError
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.components import check_components
from rlruntime.spec.training.env import EnvConfig
from rlruntime.spec.training.ppo import PPOConfig
from rlruntime.trainers.algorithms.advantages import AdvantageData
from rlruntime.trainers.algorithms.ppo import PPO

MLP = {"type": "MLP", "config": {"hiddenSizes": [8]}}


def parts(network: dict[str, Any] = MLP, **settings: Any) -> tuple[PPO, InlineCollector]:
    env = make_vector_env(EnvConfig(id="CartPole-v1", num_envs=3))
    policy = build_policy(env.spaces, Component.model_validate(network), seed=1)
    config = PPOConfig.model_validate(
        {"numSteps": 24, "minibatchSize": 24, "advantageNormalization": "None", "learningRate": 1e-2, **settings}
    )
    return PPO(config, policy), InlineCollector(env, policy, num_steps=24, seed=2)


def own(name: str, **config: Any) -> dict[str, Any]:
    return {"advantage": {"type": f"own_advantages:{name}", "config": config}}


@pytest.mark.parametrize(
    ("settings", "gamma", "gae_lambda"),
    [
        ({}, 0.99, 0.95),
        ({"gamma": 0.9, "gaeLambda": 0.5}, 0.9, 0.5),
        ({"gamma": 0.9, "advantage": {"type": "GAE", "config": {}}}, 0.9, 0.95),
        ({"gamma": 0.9, "advantage": {"type": "GAE", "config": {"gamma": 0.7, "gaeLambda": 0.6}}}, 0.7, 0.6),
    ],
)
def test_gae_has_the_settings_of_ppo_unless_it_has_its_own(
    settings: dict[str, Any], gamma: float, gae_lambda: float
) -> None:
    learner, collector = parts(**settings)
    rollout = collector.collect()
    expected = generalized_advantage_estimation(
        rollout.reward,
        rollout.value,
        rollout.terminated,
        rollout.truncated,
        rollout.valid,
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    rows = learner.batch(rollout).rows
    assert torch.equal(rows.advantage, expected[rollout.valid])
    assert torch.equal(rows.target, (expected + rollout.value[:-1])[rollout.valid])
    collector.close()


@pytest.mark.parametrize("network", [MLP, KINDS["LSTM"]], ids=["MLP", "LSTM"])
def test_v_trace_weighs_by_the_present_weights(network: dict[str, Any]) -> None:
    learner, collector = parts(network, advantage={"type": "VTrace", "config": {"rhoBar": 0.9}})
    collector.collect()
    rollout = collector.collect()
    data = AdvantageData(learner.policy, rollout)
    valid = rollout.valid
    torch.testing.assert_close(data.current().log_prob[valid], rollout.behaviour_log_prob[valid])
    torch.testing.assert_close(data.current().value, rollout.value, rtol=1e-5, atol=1e-5)
    learner.update(rollout)  # the rollout is stale now
    now = AdvantageData(learner.policy, rollout).current()
    log_ratio = now.log_prob - rollout.behaviour_log_prob
    assert float(log_ratio[valid].abs().max()) > 1e-4
    expected = v_trace(
        rollout.reward,
        now.value,
        log_ratio,
        rollout.terminated,
        rollout.truncated,
        valid,
        gamma=0.99,
        rho_bar=0.9,
    )
    rows = learner.batch(rollout).rows
    assert torch.equal(rows.advantage, expected[0][valid])
    assert torch.equal(rows.target, expected[1][valid])
    assert not torch.equal(now.value, rollout.value)
    collector.close()


@pytest.mark.parametrize("network", [MLP, KINDS["GRU"]], ids=["MLP", "GRU"])
def test_a_function_of_ones_own_wins_over_the_defaults_with_its_own_settings(network: dict[str, Any]) -> None:
    learner, collector = parts(network, gamma=0.99, **own("one_step", gamma=0.25, scale=2.0))
    rollout = collector.collect()
    target = rollout.reward + 0.25 * rollout.value[1:] * ~rollout.terminated
    rows = learner.batch(rollout).rows
    assert torch.equal(rows.target, target[rollout.valid])
    assert torch.equal(rows.advantage, ((target - rollout.value[:-1]) * 2.0)[rollout.valid])
    collector.close()


def test_an_object_of_ones_own_is_made_once_and_called_for_every_rollout() -> None:
    learner, collector = parts(**own("Constant", advantage=3.0, target=-1.0))
    rollout = collector.collect()
    for _ in range(2):
        learner.update(rollout)
    assert isinstance(learner.advantage, Constant)
    assert len(learner.advantage.seen) == 2
    assert learner.advantage.seen[0].behaviour_log_prob is rollout.behaviour_log_prob
    rows = learner.batch(rollout).rows
    assert set(rows.advantage.tolist()) == {3.0}
    assert set(rows.target.tolist()) == {-1.0}
    collector.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (own("one_step", lambda_=1), r"ppo\.advantage\.config\.lambda_: own_advantages:one_step takes no such setting"),
        (own("Constant"), r"ppo\.advantage\.config: own_advantages:Constant can't be called: missing a required"),
        (own("Unready"), r"ppo\.advantage\.type: an advantage must be a function, or a class whose objects can be"),
        (own("missing"), r"ppo\.advantage\.type: the module 'own_advantages' has no 'missing'"),
        ({"advantage": {"type": "GAE", "config": {"lambda": 1}}}, r"ppo\.advantage\.config\.lambda: there is no such"),
        (
            {"advantage": {"type": "GEA"}},
            r"ppo\.advantage\.type: there is no advantage of this name .* mean 'GAE'",
        ),
    ],
)
def test_an_advantage_that_cannot_work_is_refused_in_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PPO(PPOConfig.model_validate(settings), build_policy(_spaces()))


def test_an_advantage_of_the_wrong_shape_is_told_so_at_the_first_rollout() -> None:
    learner, collector = parts(**own("wrong_shape"))
    with pytest.raises(ConfigError, match=r"must return two float tensors of shape \(24, 3\), advantages and value"):
        learner.update(collector.collect())
    collector.close()


def test_a_manifest_names_the_advantage_and_its_settings_are_checked_before_the_run(tmp_path: Any) -> None:
    with pytest.raises(ManifestError, match=r"ppo\.advantage\.config\.rhoBar"):
        check_components(small_job(ppo={"advantage": {"type": "VTrace", "config": {"rhoBar": -1}}}).spec.training)
    job = small_job(totalFrames=200, ppo={"numSteps": 20, "minibatchSize": 32, **own("one_step", gamma=0.9)})
    assert run_job(job, tmp_path / "a")["status"] == "Succeeded"


def _spaces() -> EnvSpaces:
    return EnvSpaces(gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2))
