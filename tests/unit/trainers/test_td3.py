"""TD3's update: target smoothing, delay, clipped double Q-learning, and what it converges to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from replay_batches import batch_of, random_batch, set_values, spaces_of
from torch import Tensor

from rlruntime.policies.build import build_policy
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.td3 import TD3Config
from rlruntime.storages.batch import Batch
from rlruntime.trainers.algorithms.td3 import TD3

pytestmark = pytest.mark.usefixtures("one_thread")
ONE_DIMENSION = spaces.Box(-1.0, 1.0, (1,), np.float32)


def policy_of(action: spaces.Box | None = None, **config: Any) -> Policy:
    network = Component(type="MLP", config={"hiddenSizes": [16], "activation": "ReLU", **config})
    return build_policy(spaces_of() if action is None else spaces_of(action), network, seed=1, kind="TD3")


def learner(policy: Policy | None = None, **config: Any) -> TD3:
    return TD3(TD3Config(**config), policy_of() if policy is None else policy, seed=2)


def flat(module: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def one_state(num_rows: int, *, seed: int, terminated: bool = False) -> Batch:
    """Return random actions in the one state of a world that pays what the action is."""
    action = np.random.default_rng(seed).uniform(-1, 1, (num_rows, 1)).astype(np.float32)
    state = np.ones((num_rows, 3), np.float32)
    return batch_of(
        observation=state,
        action=action,
        next__observation=state,
        next__reward=action[:, 0],
        next__terminated=np.full(num_rows, terminated),
        next__truncated=np.full(num_rows, True),  # cut off after every step, and going on all the same
    )


@pytest.mark.parametrize(("terminated", "goes_on"), [(False, 1.0), (True, 0.0)])
def test_it_finds_the_best_action_and_the_values_of_a_world_with_one_state(terminated: bool, goes_on: float) -> None:
    # The best action is 1, always: Q(a) = a + gamma / (1 - gamma) with gamma = 1/2, and Q(a) = a where it ends.
    td3 = learner(policy_of(ONE_DIMENSION), gamma=0.5, learning_rate=3e-3, tau=0.05, target_noise=0.0)
    for seed in range(900):
        td3.update(one_state(64, seed=seed, terminated=terminated))
    action = torch.tensor([[-0.5], [0.0], [0.5], [1.0]])
    with torch.no_grad():
        chosen = td3.distribution.mode(td3.policy.action_params(torch.ones(1, 3)), None)
        values = td3.critics(torch.ones(4, 3), action)
    assert float(chosen) > 0.97
    expected = (action[:, 0] + goes_on).expand_as(values)
    torch.testing.assert_close(values, expected, rtol=0, atol=0.06)


def test_the_target_action_has_clipped_noise_and_stays_within_the_bounds() -> None:
    td3 = learner(target_noise=0.2, target_noise_clip=0.5)
    head: Any = td3.target_policy.module.actor_head
    head.weight.data.zero_()
    head.bias.data.copy_(torch.atanh(torch.tensor([0.3, 0.9])))
    noise = torch.tensor([[1.0, -1.0], [10.0, 1.0], [-10.0, 10.0]])
    found = td3.target_action(torch.zeros(3, 3), noise)
    # Noise of 0.2, beyond 0.5 cut off; actions beyond 1 too.
    expected = torch.tensor([[0.5, 0.7], [0.8, 1.0], [-0.2, 1.0]])
    torch.testing.assert_close(found, expected)


def test_smoothing_draws_new_noise_at_each_update() -> None:
    batch = random_batch()
    errors = []
    for noise in (0.0, 0.5):
        td3 = learner(target_noise=noise, critic_learning_rate=1e-12)
        td3.update(batch)
        first = td3.td_error()
        td3.update(batch)
        errors.append(float((td3.td_error() - first).abs().max()))
    assert errors[0] < 1e-5 < errors[1]


def test_actor_and_targets_move_with_every_second_update_of_the_critics() -> None:
    td3 = learner(tau=0.25)
    for number in range(1, 5):
        before = [td3.actor_parameters.data.clone(), flat(td3.target_policy.module), flat(td3.target_critics.module)]
        critics = td3.critic_parameters.data.clone()
        td3.update(random_batch(seed=number))
        moved = [td3.actor_parameters.data, flat(td3.target_policy.module), flat(td3.target_critics.module)]
        assert not torch.equal(td3.critic_parameters.data, critics)
        assert [not torch.equal(*pair) for pair in zip(before, moved, strict=True)] == [number % 2 == 0] * 3
    torch.testing.assert_close(moved[1], 0.75 * before[1] + 0.25 * td3.actor_parameters.data)
    torch.testing.assert_close(moved[2], 0.75 * before[2] + 0.25 * td3.critic_parameters.data)


@pytest.mark.parametrize("activation", ["ReLU", "GELU"], ids=["written out", "automatic"])
def test_an_update_uses_the_gradients_of_the_papers_losses(activation: str) -> None:
    batch = random_batch()
    gradients: list[tuple[Tensor, Tensor]] = []

    def note() -> None:
        if not gradients:
            gradients.append((td3.critic_parameters.grad.clone(), critic_reference(td3, batch)))
        else:
            gradients.append((td3.actor_parameters.grad.clone(), actor_reference(td3, batch)))

    td3 = TD3(TD3Config(target_noise=0.0, policy_delay=1), policy_of(activation=activation), seed=2, before_step=note)
    td3.update(batch)
    assert len(gradients) == 2
    for found, expected in gradients:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@torch.enable_grad()
def critic_reference(td3: TD3, batch: Batch) -> Tensor:
    following = batch["next.observation"].contiguous()
    with torch.no_grad():
        target_policy: Any = td3.target_policy.module
        next_value = td3.target_critics.module(following, torch.tanh(target_policy.action_params(following))).min(0)[0]
        target = batch["next.reward"] + 0.99 * torch.where(batch["next.terminated"], 0.0, next_value)
    values = td3.critics(batch["observation"].contiguous(), batch["action"])
    loss = 0.5 * (values - target).square().mean(1).sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(td3.critics.parameters()))])


@torch.enable_grad()
def actor_reference(td3: TD3, batch: Batch) -> Tensor:
    observation = batch["observation"].contiguous()
    loss = -td3.critics(observation, torch.tanh(td3.policy.action_params(observation)))[0].mean()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(td3.policy.parameters()))])


def test_the_target_takes_the_least_critic() -> None:
    batch = random_batch(next__terminated=np.zeros(32, bool), next__reward=np.zeros(32, np.float32))
    for shifts, expected in (((3.0, 100.0), 3.0), ((100.0, 5.0), 5.0)):
        td3 = learner(gamma=1.0)
        set_values(td3.target_critics.module, *shifts)
        set_values(td3.critics, 0.0, 0.0)
        td3.update(batch)
        np.testing.assert_allclose(td3.td_error(), expected, rtol=1e-6)


def test_the_configs_noise_becomes_that_of_the_policy() -> None:
    td3 = learner(exploration_noise=0.3)
    assert td3.distribution.exploration_noise == pytest.approx(0.3)


def test_state_goes_on_bit_for_bit() -> None:
    results = []
    for restart in (False, True):
        policy = policy_of()
        td3 = learner(policy)
        for seed in range(3):
            td3.update(random_batch(seed=seed))
        if restart:
            state, acted = _copied(td3.state_dict()), _copied(policy.state_dict())
            policy = policy_of()
            td3 = TD3(TD3Config(), policy, seed=99)
            policy.load_state_dict(acted)
            td3.load_state_dict(state)
        for seed in range(3, 6):
            td3.update(random_batch(seed=seed))
        results.append(
            [td3.actor_parameters.data.clone(), td3.critic_parameters.data.clone(), flat(td3.target_policy.module)]
        )
    for ours, resumed in zip(*results, strict=True):
        assert torch.equal(ours, resumed)


def test_metrics_name_what_was_learned_since_the_last_call() -> None:
    td3 = learner()
    td3.update(random_batch())
    assert "loss/actor" not in td3.metrics()
    td3.update(random_batch())
    assert {"loss/actor", "loss/critic", "critic/value_mean", "optim/learning_rate"} <= td3.metrics().keys()
    assert td3.metrics() == {}


def test_another_kind_of_policy_is_refused() -> None:
    with pytest.raises(TypeError, match="TD3 learns a policy of kind TD3, not SAC"):
        TD3(TD3Config(), build_policy(spaces_of(), kind="SAC"))


def _copied(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.clone()
    return {name: _copied(part) for name, part in tree.items()} if isinstance(tree, dict) else tree
