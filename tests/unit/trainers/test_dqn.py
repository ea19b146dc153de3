"""DQN's update: double targets, masks, weights, exploration, and what it converges to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from replay_batches import OBSERVATION, batch_of, random_batch, spaces_of
from torch import Tensor

from rlruntime.envs.protocol import EnvSpaces
from rlruntime.policies.build import build_policy
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.dqn import DQNConfig
from rlruntime.storages.batch import Batch
from rlruntime.trainers.algorithms.dqn import DQN

pytestmark = pytest.mark.usefixtures("one_thread")
ACTIONS = spaces.Discrete(3)


def policy_of(actions: int = 3, *, dueling: bool = False, masked: bool = False, **config: Any) -> Policy:
    network = Component(type="MLP", config={"hiddenSizes": [16], "activation": "ReLU", **config})
    seen = EnvSpaces(OBSERVATION, spaces.Discrete(actions), "info" if masked else None, actions if masked else 0)
    return build_policy(seen, network, seed=1, kind="DQN", dueling=dueling)


def learner(policy: Policy | None = None, **config: Any) -> DQN:
    return DQN(DQNConfig(**config), policy_of() if policy is None else policy, seed=2)


def set_values(module: Any, *values: float) -> None:
    """Make a network say the same values in every state."""
    module.actor_head.weight.data.zero_()
    module.actor_head.bias.data.copy_(torch.tensor(values))


def chain(num_rows: int, *, seed: int) -> Batch:
    """Return random actions in a world of two states: action 0 pays 1 and ends it, action 1 pays nothing and leads from
    the first state to the second, and from the second back, cut off each time.
    """
    random = np.random.default_rng(seed)
    state, action = random.integers(0, 2, num_rows), random.integers(0, 2, num_rows)
    one_hot = np.eye(3, dtype=np.float32)
    return batch_of(
        observation=one_hot[state],
        action=action,
        next__observation=one_hot[1 - state],
        next__reward=np.where(action == 0, 1.0 + state, 0.0).astype(np.float32),
        next__terminated=action == 0,
        next__truncated=action == 1,
    )


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_values_converge_to_those_of_a_world_with_two_states(double: bool, dueling: bool) -> None:
    # The second state pays 2 at once. From the first, to go there is worth gamma 2 = 1.6, more than the 1 at hand; from
    # the second, to go back and return is worth gamma 1.6 = 1.28.
    policy = policy_of(2, dueling=dueling)
    dqn = learner(policy, gamma=0.8, learning_rate=1e-2, target_update_interval=20, double=double, dueling=dueling)
    for seed in range(600):
        dqn.update(chain(32, seed=seed))
    with torch.no_grad():
        values = policy.action_params(torch.eye(3)[:2])
    torch.testing.assert_close(values, torch.tensor([[1.0, 1.6], [2.0, 1.28]]), rtol=0, atol=0.05)


def test_double_learning_chooses_by_one_network_and_judges_by_the_other() -> None:
    batch = random_batch(ACTIONS, next__terminated=np.zeros(32, bool), next__reward=np.zeros(32, np.float32))
    found = {}
    for double in (True, False):
        dqn = learner(gamma=1.0, double=double)
        set_values(dqn.policy, 0.0, 1.0, 0.5)
        set_values(dqn.target.module, 7.0, 2.0, 3.0)
        taken = dqn.policy.action_params(batch["observation"]).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        dqn.update(batch)
        found[double] = (dqn.td_error() + taken).tolist()
    assert found[True] == pytest.approx([2.0] * 32)
    assert found[False] == pytest.approx([7.0] * 32)


@pytest.mark.parametrize("double", [True, False])
def test_a_forbidden_action_is_never_the_best_that_follows(double: bool) -> None:
    mask = np.tile([False, True, True], (32, 1))
    batch = random_batch(
        ACTIONS,
        next__terminated=np.zeros(32, bool),
        next__reward=np.zeros(32, np.float32),
        action_mask=mask,
        next__action_mask=mask,
        action=np.ones(32, np.int64),
    )
    dqn = learner(policy_of(masked=True), gamma=1.0, double=double)
    set_values(dqn.policy, 9.0, 1.0, 0.5)
    set_values(dqn.target.module, 9.0, 2.0, 1.0)
    dqn.update(batch)
    assert dqn.td_error().tolist() == pytest.approx([1.0] * 32)


def test_the_discount_of_a_row_over_several_steps_is_its_own() -> None:
    batch = random_batch(ACTIONS, next__terminated=np.zeros(32, bool), next__reward=np.ones(32, np.float32))
    batch.extra["discount"] = torch.linspace(0.0, 1.0, 32)
    dqn = learner()
    for module in (dqn.policy, dqn.target.module):
        set_values(module, 2.0, 2.0, 2.0)
    dqn.update(batch)
    torch.testing.assert_close(dqn.td_error(), 1.0 + 2.0 * torch.linspace(0.0, 1.0, 32) - 2.0)


@pytest.mark.parametrize("activation", ["ReLU", "GELU"], ids=["written out", "automatic"])
def test_an_update_uses_the_gradient_of_the_weighted_huber_loss(activation: str) -> None:
    batch, gradients = random_batch(ACTIONS, weighted=True), []

    @torch.enable_grad()
    def note() -> None:
        gradients.append(dqn.parameters.grad.clone())
        following, observation = batch["next.observation"].contiguous(), batch["observation"].contiguous()
        target_policy: Any = dqn.target.module
        with torch.no_grad():
            best = dqn.policy.action_params(following).argmax(1, keepdim=True)
            next_value = target_policy.action_params(following).gather(1, best).squeeze(1)
            target = batch["next.reward"] + 0.99 * torch.where(batch["next.terminated"], 0.0, next_value)
        taken = dqn.policy.action_params(observation).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        assert batch.weight is not None
        loss = (batch.weight * torch.nn.functional.smooth_l1_loss(taken, target, reduction="none")).mean()
        parts = torch.autograd.grad(loss, list(dqn.policy.parameters()))
        gradients.append(torch.cat([part.flatten() for part in parts]))

    policy = policy_of(activation=activation)
    dqn = DQN(DQNConfig(max_grad_norm=None), policy, before_step=note)
    dqn.update(batch)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


def test_the_target_network_is_a_copy_that_is_renewed_at_its_interval() -> None:
    dqn = learner(target_update_interval=3)
    started = _flat(dqn.target.module)
    for number in range(1, 7):
        dqn.update(random_batch(ACTIONS, seed=number))
        if number < 3:
            assert torch.equal(_flat(dqn.target.module), started)
        assert torch.equal(_flat(dqn.target.module), dqn.parameters.data) == (number % 3 == 0)
    soft = learner(target_update_interval=1, tau=0.25)
    soft.update(random_batch(ACTIONS))
    torch.testing.assert_close(_flat(soft.target.module), 0.75 * started + 0.25 * soft.parameters.data)


def test_epsilon_falls_linearly_over_its_share_of_the_run_and_stays() -> None:
    dqn = learner(initial_epsilon=1.0, final_epsilon=0.1, exploration_fraction=0.5)
    assert dqn.distribution.epsilon == 1.0
    found = []
    for progress in (0.0, 0.25, 0.5, 1.0):
        dqn.schedule(progress)
        found.append(dqn.distribution.epsilon)
    assert found == pytest.approx([1.0, 0.55, 0.1, 0.1])
    at_once = learner(exploration_fraction=0.0, final_epsilon=0.2)
    assert at_once.distribution.epsilon == pytest.approx(0.2)


def test_state_goes_on_bit_for_bit() -> None:
    results = []
    for restart in (False, True):
        policy = policy_of()
        dqn = learner(policy, target_update_interval=4, learning_rate=1e-2)
        for seed in range(3):
            dqn.update(random_batch(ACTIONS, seed=seed))
        if restart:
            state, acted = _copied(dqn.state_dict()), _copied(policy.state_dict())
            policy = policy_of()
            dqn = learner(policy, target_update_interval=4, learning_rate=1e-2)
            policy.load_state_dict(acted)
            dqn.load_state_dict(state)
        for seed in range(3, 6):
            dqn.update(random_batch(ACTIONS, seed=seed))
        results.append([dqn.parameters.data.clone(), _flat(dqn.target.module), dqn.td_error()])
    for ours, resumed in zip(*results, strict=True):
        assert torch.equal(ours, resumed)


def test_metrics_name_loss_values_and_exploration() -> None:
    dqn = learner(learning_rate=1e-3)
    assert dqn.metrics() == {}
    dqn.update(random_batch(ACTIONS))
    metrics = dqn.metrics()
    assert metrics["policy/epsilon"] == 1.0
    assert metrics["optim/learning_rate"] == 1e-3
    assert {"loss/critic", "critic/value_mean", "critic/target_mean", "optim/grad_norm"} <= metrics.keys()


def test_a_policy_that_does_not_fit_is_refused() -> None:
    with pytest.raises(TypeError, match="DQN learns a policy of kind DQN, not SAC"):
        DQN(DQNConfig(), build_policy(spaces_of(), kind="SAC"))
    with pytest.raises(ValueError, match="the policy must be dueling where the config says so"):
        learner(dueling=True)


def _flat(module: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def _copied(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.clone()
    return {name: _copied(part) for name, part in tree.items()} if isinstance(tree, dict) else tree
