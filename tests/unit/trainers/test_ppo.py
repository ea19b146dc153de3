"""PPO's update: what it learns from, when it stops, and what its schedules do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlruntime.collectors.rollout import Rollout
from rlruntime.envs.protocol import EnvSpaces
from rlruntime.errors import RLJobError
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.build import build_policy
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.ppo import PPOConfig
from rlruntime.trainers.algorithms.batches import Batch, minibatch_bounds
from rlruntime.trainers.algorithms.ppo import PPO
from rlruntime.trainers.schedules import schedule_factor

SPACES = EnvSpaces(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(2))


def small_policy() -> ActorCritic:
    return build_policy(SPACES, Component(type="MLP", config={"hiddenSizes": [8]}), seed=1)


def rollout_of(policy: ActorCritic, num_steps: int = 8, num_envs: int = 4, seed: int = 0) -> Rollout:
    """Return a rollout of random observations, half-random rewards, and one reset row in copy 0."""
    generator = torch.Generator().manual_seed(seed)
    rollout = Rollout(SPACES, policy.distribution, num_steps, num_envs)
    assert isinstance(rollout.observation, torch.Tensor)
    rollout.observation.copy_(torch.randn(rollout.observation.shape, generator=generator))
    rollout.action.copy_(torch.randint(0, 2, rollout.action.shape, generator=generator))
    rollout.reward.copy_(rollout.action.float() + torch.rand(rollout.reward.shape, generator=generator))
    rollout.valid.fill_(True)
    rollout.terminated[2, 0] = True
    rollout.valid[3, 0] = False
    rollout.num_valid = int(rollout.valid.sum())
    with torch.no_grad():
        flat = rollout.observation.flatten(0, 1)
        rollout.value.copy_(policy.values(flat).view_as(rollout.value))
        rollout.params.copy_(policy.action_params(flat[: num_steps * num_envs]).view_as(rollout.params))
        rollout.behaviour_log_prob.copy_(policy.distribution.evaluate(rollout.params, rollout.action, None).log_prob)
    return rollout


def test_reset_rows_are_not_learned_from_whatever_they_hold() -> None:
    results = []
    for filler in (0.0, 1e6):
        policy = small_policy()
        rollout = rollout_of(policy)
        rollout.reward[3, 0] = filler
        rollout.behaviour_log_prob[3, 0] = -filler
        ppo = PPO(PPOConfig(minibatch_size=8), policy)
        batch = ppo.batch(rollout)
        assert isinstance(batch, Batch)
        assert batch.advantage.shape == (31,)
        ppo.update(rollout)
        results.append(ppo.parameters.data.clone())
    assert torch.equal(*results)


def test_a_rollout_without_a_valid_row_changes_nothing() -> None:
    policy = small_policy()
    ppo, rollout = PPO(PPOConfig(), policy), rollout_of(policy)
    rollout.valid.zero_()
    rollout.num_valid = 0
    before = ppo.parameters.data.clone()
    outcome = ppo.update(rollout)
    assert (outcome["optim/steps"], outcome["policy/explained_variance"]) == (0.0, 0.0)
    assert torch.equal(ppo.parameters.data, before)


def test_the_rewarded_action_becomes_more_probable() -> None:
    policy = small_policy()
    ppo = PPO(PPOConfig(learning_rate=1e-2, minibatch_size=16), policy)
    observation = torch.randn(64, 3, generator=torch.Generator().manual_seed(5))
    for seed in range(20):
        ppo.update(rollout_of(policy, seed=seed))
    with torch.no_grad():
        probability = policy.action_params(observation).softmax(-1)[:, 1].mean()
    assert float(probability) > 0.8


def test_epochs_end_once_the_kl_divergence_passes_its_target() -> None:
    counts = {}
    for target in (None, 1e-4):
        policy = small_policy()
        ppo = PPO(PPOConfig(learning_rate=1e-2, minibatch_size=8, num_epochs=6, target_kl=target), policy)
        counts[target] = ppo.update(rollout_of(policy))["optim/steps"]
    assert counts[None] == 24.0
    assert 1.0 <= counts[1e-4] < 24.0


@pytest.mark.parametrize(
    ("schedule", "factors"), [("Constant", (1.0, 1.0, 1.0)), ("Linear", (1.0, 0.75, 0.0)), ("Cosine", (1.0, 0.5, 0.0))]
)
def test_schedules_fall_from_one_to_zero(schedule: Any, factors: tuple[float, ...]) -> None:
    middle = 0.5 if schedule == "Cosine" else 0.25
    found = [schedule_factor(schedule, progress) for progress in (0.0, middle, 1.0)]
    assert found == pytest.approx(factors)
    assert schedule_factor(schedule, -1.0) == 1.0
    assert schedule_factor(schedule, 7.0) == factors[2]


def test_the_learning_rate_follows_its_schedule_and_at_zero_nothing_moves() -> None:
    policy = small_policy()
    ppo = PPO(PPOConfig(learning_rate=1e-2, schedule="Linear"), policy)
    assert ppo.update(rollout_of(policy), progress=0.25)["optim/learning_rate"] == pytest.approx(0.0075)
    before = ppo.parameters.data.clone()
    assert ppo.update(rollout_of(policy), progress=1.0)["optim/learning_rate"] == 0.0
    assert torch.equal(ppo.parameters.data, before)


def test_an_entropy_bonus_keeps_the_policy_uncertain() -> None:
    entropies = []
    for coefficient in (0.0, 5.0):
        policy = small_policy()
        ppo = PPO(PPOConfig(learning_rate=1e-2, minibatch_size=16, entropy_coefficient=coefficient), policy)
        for seed in range(10):
            learned = ppo.update(rollout_of(policy, seed=seed))
        entropies.append(learned["policy/entropy"])
    assert entropies[0] < 0.5 < entropies[1] <= math.log(2) + 1e-6


def test_gradients_are_clipped_before_the_step() -> None:
    policy, norms = small_policy(), []
    ppo = PPO(
        PPOConfig(max_grad_norm=0.01),
        policy,
        before_step=lambda: norms.append(float(torch.linalg.vector_norm(ppo.parameters.grad))),
    )
    learned = ppo.update(rollout_of(policy))
    assert learned["optim/grad_norm"] > 0.01
    assert norms == pytest.approx([0.01] * 4, rel=1e-3)


@pytest.mark.parametrize("normalization", ["Rollout", "Minibatch"])
def test_advantages_are_normalised_over_the_rows_that_the_setting_names(normalization: Any) -> None:
    policy = small_policy()
    seen: list[Any] = []
    config = PPOConfig(advantage_normalization=normalization, minibatch_size=8, num_epochs=1)
    ppo = PPO(config, policy, on_minibatch=seen.append)
    ppo.update(rollout_of(policy))
    whole = torch.cat([batch.advantage for batch in seen])
    standard = abs(float(whole.mean())) < 1e-5 and abs(float(whole.std()) - 1.0) < 1e-3
    assert standard == (normalization == "Rollout")
    assert isinstance(seen[0], Batch)


def test_every_row_is_seen_once_an_epoch_in_minibatches_of_nearly_equal_length() -> None:
    assert list(minibatch_bounds(10, 4)) == [(0, 4), (4, 3), (7, 3)]
    assert list(minibatch_bounds(8, 8)) == [(0, 8)]
    assert list(minibatch_bounds(9, 8)) == [(0, 5), (5, 4)]
    policy = small_policy()
    seen: list[Any] = []
    ppo = PPO(PPOConfig(minibatch_size=10, num_epochs=2), policy, on_minibatch=seen.append)
    rollout = rollout_of(policy)
    ppo.update(rollout)
    assert [batch.advantage.shape[0] for batch in seen] == [8, 8, 8, 7] * 2
    expected = sorted(rollout.reward.flatten()[rollout.valid.flatten()].tolist())
    assert len(expected) == 31
    first, second = (torch.cat([b.target for b in seen[i : i + 4]]) for i in (0, 4))
    assert sorted(first.tolist()) == sorted(second.tolist())
    assert first.tolist() != second.tolist()


def test_a_clipped_value_loss_holds_values_near_those_of_the_rollout() -> None:
    moved = []
    for epsilon in (None, 1e-3):
        policy = small_policy()
        rollout = rollout_of(policy)
        ppo = PPO(PPOConfig(learning_rate=1e-2, value_clip_epsilon=epsilon, num_epochs=10), policy)
        ppo.update(rollout)
        assert isinstance(rollout.observation, torch.Tensor)
        with torch.no_grad():
            now = policy.values(rollout.observation[:-1].flatten(0, 1))
        moved.append(float((now - rollout.value[:-1].flatten()).abs().mean()))
    assert moved[1] < moved[0] / 2


def test_a_diverged_update_is_one_line_that_names_the_remedy() -> None:
    policy = small_policy()
    rollout = rollout_of(policy)
    rollout.reward[0, 1] = float("nan")
    with pytest.raises(RLJobError, match=r"is nan: learning has diverged; lower spec.training.ppo.learningRate"):
        PPO(PPOConfig(), policy).update(rollout)


def test_state_goes_on_where_it_was() -> None:
    states = []
    for restart in (False, True):
        policy = small_policy()
        ppo = PPO(PPOConfig(learning_rate=1e-2), policy, seed=4)
        ppo.update(rollout_of(policy, seed=1))
        if restart:
            saved = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
            optimizer = ppo.state_dict()
            policy = small_policy()
            ppo = PPO(PPOConfig(learning_rate=1e-2), policy, seed=99)
            policy.load_state_dict(saved)
            ppo.load_state_dict(optimizer)
        ppo.update(rollout_of(policy, seed=2))
        states.append(ppo.parameters.data.clone())
    assert torch.equal(*states)
