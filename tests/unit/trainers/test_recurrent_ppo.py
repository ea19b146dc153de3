"""PPO with memory: minibatches of whole sequences, the same updates where memory has no use, and exact resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recurrent_networks import KINDS
from small_jobs import built_trainer, off_policy_trainer, policy_bytes, run_job, small_job, timeless

from rlruntime.collectors.inline import InlineCollector
from rlruntime.envs.make import make_vector_env
from rlruntime.errors import ConfigError
from rlruntime.policies.artifact import load_policy
from rlruntime.policies.build import build_policy
from rlruntime.spec.manifest import RLJob
from rlruntime.spec.problems import ManifestError
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import EnvConfig
from rlruntime.spec.training.ppo import PPOConfig
from rlruntime.trainers.algorithms.batches import Batch, SequenceBatch
from rlruntime.trainers.algorithms.ppo import PPO

CARTPOLE = EnvConfig(id="CartPole-v1", num_envs=5)


def parts(network: dict[str, Any], on_minibatch: Any = None, **settings: Any) -> tuple[PPO, InlineCollector]:
    env = make_vector_env(CARTPOLE)
    policy = build_policy(env.spaces, Component.model_validate(network), seed=1)
    config = PPOConfig(num_steps=30, learning_rate=1e-2, **settings)
    return PPO(config, policy, on_minibatch=on_minibatch), InlineCollector(env, policy, num_steps=30, seed=2)


def observation_of(batch: Batch | SequenceBatch) -> torch.Tensor:
    assert isinstance(batch.observation, torch.Tensor)
    return batch.observation


def recurrent_job(**training: Any) -> RLJob:
    return small_job(**{"network": KINDS["LSTM"], **training})


@pytest.mark.parametrize("value_clip", [None, 0.2])
@pytest.mark.parametrize("normalization", ["Minibatch", "Rollout"])
def test_a_memory_without_use_learns_what_the_same_network_without_one_learns(
    normalization: Any, value_clip: float | None
) -> None:
    learned = []
    for network in ("Memoryless", "Plain"):
        learner, collector = parts(
            {"type": f"recurrent_networks:{network}"},
            minibatch_size=150,
            num_epochs=3,
            entropy_coefficient=0.01,
            value_clip_epsilon=value_clip,
            advantage_normalization=normalization,
        )
        diagnostics = {}
        for _ in range(3):  # one minibatch a pass: the order of rows doesn't count
            rollout = collector.collect()
            assert rollout.num_valid < 150
            diagnostics = learner.update(rollout)
        learned.append((diagnostics, learner.policy.state_dict()))
        collector.close()
    (ours, weights), (expected, plain) = learned
    assert ours == pytest.approx(expected, rel=1e-3, abs=1e-4)
    for name, tensor in plain.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-3, atol=1e-4)


def test_minibatches_are_whole_sequences_and_each_is_seen_once_in_a_pass() -> None:
    seen: list[Batch | SequenceBatch] = []
    learner, collector = parts(KINDS["LSTM"], seen.append, minibatch_size=70, num_epochs=2)
    rollout = collector.collect()
    learned = learner.update(rollout)
    assert learned["optim/steps"] == 6.0
    assert all(isinstance(batch, SequenceBatch) for batch in seen)
    sequences = [batch for batch in seen if isinstance(batch, SequenceBatch)]
    assert [batch.num_items for batch in sequences] == [2, 2, 1] * 2  # 70 rows are two copies of 30 steps
    assert isinstance(rollout.observation, torch.Tensor)
    for epoch in (sequences[:3], sequences[3:]):
        assert sum(batch.rows.num_items for batch in epoch) == rollout.num_valid
        observations = torch.cat([observation_of(batch) for batch in epoch], 1)
        order = [int((rollout.observation[0] == first).all(-1).nonzero()) for first in observations[0]]
        assert sorted(order) == [0, 1, 2, 3, 4]
        assert torch.equal(observations, rollout.observation[:-1, order])
    assert not torch.equal(observation_of(sequences[0]), observation_of(sequences[3]))
    collector.close()


def test_copies_without_a_valid_row_are_left_out() -> None:
    learner, collector = parts(KINDS["LSTM"], minibatch_size=30)
    rollout = collector.collect()
    rollout.valid[:, [1, 3]] = False
    rollout.num_valid = int(rollout.valid.sum())
    batch = learner.batch(rollout)
    assert batch.num_items == 3
    assert learner.update(rollout)["optim/steps"] == 12.0
    assert isinstance(rollout.observation, torch.Tensor)
    assert torch.equal(observation_of(batch.rows), rollout.observation[:-1][rollout.valid])
    collector.close()


def test_a_minibatch_of_less_than_a_sequence_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        built_trainer(recurrent_job(ppo={"numSteps": 40, "minibatchSize": 32}))
    assert str(caught.value) == (
        "spec.training.ppo.minibatchSize: a network with memory learns from whole sequences of numSteps = 40 rows "
        "(got 32); set it to 40 or more, or numSteps to less"
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop_after", [5, 9])
def test_a_resumed_run_ends_with_the_numbers_of_an_uninterrupted_one(
    kind: str, stop_after: int, tmp_path: Path
) -> None:
    job = recurrent_job(network=KINDS[kind])
    whole = run_job(job, tmp_path / "whole")
    stopped = run_job(job, tmp_path / "cut", stop_after=stop_after)
    assert (stopped["status"], stopped["resumeClass"]) == ("Stopped", "exact")
    resumed = run_job(job, tmp_path / "cut", resume=True)
    assert (resumed["resumed"]["class"], resumed["resumed"]["differences"]) == ("exact", [])
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    assert policy_bytes(tmp_path / "cut") == policy_bytes(tmp_path / "whole")
    assert resumed["evaluation"] == whole["evaluation"]


def test_a_critic_of_its_own_is_trained_saved_and_asked_for_at_resume(tmp_path: Path) -> None:
    mlp = {"type": "MLP", "config": {"hiddenSizes": [8]}}
    job = recurrent_job(network=mlp, criticNetwork=KINDS["LSTM"])
    run_job(job, tmp_path / "a", stop_after=6)
    assert load_policy(tmp_path / "a").module.state_shapes == {"critic.hidden": (1, 6), "critic.cell": (1, 6)}
    with pytest.raises(ConfigError, match="criticNetwork LSTM"):
        run_job(recurrent_job(network=mlp), tmp_path / "a", resume=True)
    assert run_job(job, tmp_path / "a", resume=True)["resumed"]["class"] == "exact"


@pytest.mark.parametrize(
    ("training", "words"),
    [
        (
            {"network": {"type": "MLP", "config": {"shared": True}}},
            r"criticNetwork: the network is shared by actor and critic, so that the critic can't have its own",
        ),
        (
            {"algorithm": "DQN", "ppo": None},
            r"criticNetwork: algorithm DQN takes no network of the critic's own",
        ),
    ],
)
def test_a_critic_network_that_contradicts_the_rest_is_refused(training: dict[str, Any], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        small_job(criticNetwork={"type": "MLP"}, **training)


def test_off_policy_algorithms_refuse_memory_before_anything_is_written() -> None:
    with pytest.raises(ConfigError, match=r"DQN learns from single rows of replay"):
        off_policy_trainer("DQN", network=KINDS["GRU"])
