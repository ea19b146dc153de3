"""SAC's update: its targets, gradients and temperature, and what it converges to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from replay_batches import batch_of, random_batch, set_values, spaces_of
from torch import Tensor

from rlruntime.envs.protocol import EnvSpaces
from rlruntime.errors import RLJobError
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.build import build_policy
from rlruntime.policies.critics import AutogradCritics
from rlruntime.policies.gradients import AutogradActorGradient
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.sac import SACConfig
from rlruntime.storages.batch import Batch
from rlruntime.trainers.algorithms.sac import SAC

pytestmark = pytest.mark.usefixtures("one_thread")
ONE_DIMENSION = spaces.Box(-1.0, 1.0, (1,), np.float32)


def policy_of(action: spaces.Box | None = None, transforms: tuple[str, ...] = (), **config: Any) -> Policy:
    network = Component(type="MLP", config={"hiddenSizes": [16], "activation": "ReLU", **config})
    seen = spaces_of() if action is None else spaces_of(action)
    return build_policy(seen, network, [Component(type=name) for name in transforms], seed=1, kind="SAC")


def learner(policy: Policy | None = None, **config: Any) -> SAC:
    return SAC(SACConfig(**config), policy_of() if policy is None else policy, seed=2)


def one_state(num_rows: int, reward: float, *, seed: int, terminated: bool = False) -> Batch:
    """Return random actions in the one state of a world that pays the same for all of them."""
    action = np.random.default_rng(seed).uniform(-1, 1, (num_rows, 1)).astype(np.float32)
    state = np.ones((num_rows, 3), np.float32)
    return batch_of(
        observation=state,
        action=action,
        next__observation=state,
        next__reward=np.full(num_rows, reward, np.float32),
        next__terminated=np.full(num_rows, terminated),
        next__truncated=np.full(num_rows, True),  # cut off after every step, and going on all the same
    )


def values_at(sac: SAC, action: Tensor) -> Tensor:
    with torch.no_grad():
        return sac.critics(torch.ones(len(action), 3), action)  # type: ignore[no-any-return]


def test_values_converge_to_the_soft_values_of_a_world_with_one_state() -> None:
    # With every action alike, the best policy is uniform: its entropy is log 2, so Q = r + gamma (Q + alpha log 2).
    gamma, temperature, reward = 0.5, 0.5, 1.0
    expected = (reward + gamma * temperature * math.log(2)) / (1 - gamma)
    sac = learner(
        policy_of(ONE_DIMENSION),
        gamma=gamma,
        learning_rate=3e-3,
        tau=0.05,
        initial_temperature=temperature,
        learn_temperature=False,
    )
    for seed in range(800):
        sac.update(one_state(64, reward, seed=seed))
    values = values_at(sac, torch.linspace(-0.9, 0.9, 7).unsqueeze(1))
    torch.testing.assert_close(values, torch.full_like(values, expected), rtol=0, atol=0.05)
    assert sac.temperature == pytest.approx(temperature)


def test_where_the_episode_terminates_a_value_is_the_reward() -> None:
    sac = learner(policy_of(ONE_DIMENSION), learning_rate=3e-3)
    for seed in range(400):
        sac.update(one_state(64, 0.7, seed=seed, terminated=True))
    values = values_at(sac, torch.linspace(-0.9, 0.9, 7).unsqueeze(1))
    torch.testing.assert_close(values, torch.full_like(values, 0.7), rtol=0, atol=0.03)


def reference_update(sac: SAC, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
    """Return the gradients of the paper's losses by automatic differentiation, in the networks as they are."""
    policy, alpha, gamma = sac.policy, sac.temperature, sac.config.gamma
    observation, following = batch["observation"].contiguous(), batch["next.observation"].contiguous()

    def act(rows: Tensor, draw: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = policy.action_params(rows).chunk(2, -1)
        normal: Any = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        before = mean + normal.scale * draw
        action = torch.tanh(before)
        return action, (normal.log_prob(before) - torch.log(1 - action.square() + 1e-12)).sum(-1)

    with torch.no_grad():
        next_action, next_log_prob = act(following, noise[0])
        next_value = sac.target_critics.module(following, next_action).min(0).values - alpha * next_log_prob
        target = batch["next.reward"] + gamma * torch.where(batch["next.terminated"], 0.0, next_value)
    values = sac.critics(observation, batch["action"])
    critic_loss = 0.5 * (values - target).square().mean(1).sum()
    critic_gradient = torch.cat([g.flatten() for g in torch.autograd.grad(critic_loss, list(sac.critics.parameters()))])
    return {"target": target, "td_error": (target - values).mean(0).detach(), "critic": critic_gradient}


@torch.enable_grad()
def actor_reference(sac: SAC, batch: Batch, draw: Tensor, alpha: float) -> Tensor:
    mean, log_std = sac.policy.action_params(batch["observation"].contiguous()).chunk(2, -1)
    normal: Any = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    before = mean + normal.scale * draw
    action = torch.tanh(before)
    log_prob = (normal.log_prob(before) - torch.log(1 - action.square() + 1e-12)).sum(-1)
    least = sac.critics(batch["observation"].contiguous(), action).min(0).values
    loss = (alpha * log_prob - least).mean()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(sac.policy.parameters()))])


def critic_gradient(batch: Batch) -> Tensor:
    """Return the gradient of the critics in a new learner's first update."""
    noted: list[Tensor] = []
    sac = SAC(SACConfig(), policy_of(), seed=2, before_step=lambda: noted.append(sac.critic_parameters.grad.clone()))
    sac.update(batch)
    return noted[0]


def next_noise(sac: SAC, num_rows: int) -> Tensor:
    """Return the noise that the learner's next update draws: for the next observations, and for the current ones."""
    copy = torch.Generator()
    copy.set_state(sac.state_dict()["generator"])
    current, following = torch.randn(2 * num_rows, sac.distribution.size, generator=copy).split(num_rows)  # type: ignore[no-untyped-call]
    return torch.stack([following, current])


@pytest.mark.parametrize("activation", ["ReLU", "GELU"], ids=["written out", "automatic"])
def test_an_update_uses_the_gradients_of_the_papers_losses(activation: str) -> None:
    policy = policy_of(activation=activation)
    gradients: list[Tensor] = []
    batch = random_batch()

    def note() -> None:
        if len(gradients) == 0:
            gradients.append(sac.critic_parameters.grad.clone())
        elif len(gradients) == 1:  # the critics have taken their step; the actor's gradient is through them as they are
            gradients.append(sac.actor_parameters.grad.clone())
            gradients.append(actor_reference(sac, batch, noise[1], alpha))
            sac.actor_parameters.grad.copy_(gradients[1])

    sac = SAC(SACConfig(), policy, seed=2, before_step=note)
    assert isinstance(sac.critic, AutogradCritics) == (activation == "GELU")
    assert isinstance(sac.actor, AutogradActorGradient) == (activation == "GELU")
    noise, alpha = next_noise(sac, 32), sac.temperature
    expected = reference_update(sac, batch, noise)
    sac.update(batch)
    torch.testing.assert_close(gradients[0], expected["critic"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients[1], gradients[2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sac.td_error(), expected["td_error"], rtol=1e-4, atol=1e-4)


def test_the_target_takes_the_least_critic() -> None:
    batch = random_batch(next__terminated=np.zeros(32, bool), next__reward=np.zeros(32, np.float32))
    targets = []
    for shifts in ((0.0, 100.0), (100.0, 0.0), (100.0, 100.0)):
        sac = learner(gamma=1.0)
        set_values(sac.target_critics.module, *shifts)
        set_values(sac.critics, 0.0, 0.0)
        sac.update(batch)
        targets.append(float(sac.td_error().mean()))
    assert targets[0] == pytest.approx(targets[1], abs=1e-3)
    assert targets[2] == pytest.approx(targets[0] + 100.0, abs=1e-2)


def test_weights_scale_gradients_and_a_batchs_own_discount_comes_before_gamma() -> None:
    batch = random_batch(weighted=True)
    assert batch.weight is not None
    halved = random_batch(weighted=True)
    assert halved.weight is not None
    halved.weight *= 0.5
    gradients = [critic_gradient(each) for each in (batch, halved)]
    torch.testing.assert_close(gradients[0], gradients[1] * 2)

    last = random_batch(next__terminated=np.zeros(32, bool))
    stopped = random_batch(next__terminated=np.ones(32, bool))
    last.extra["discount"] = torch.zeros(32)
    errors = []
    for each in (last, stopped):
        sac = learner()
        sac.update(each)
        errors.append(sac.td_error())
    torch.testing.assert_close(errors[0], errors[1])


@pytest.mark.parametrize(("target", "rises"), [(5.0, True), (-50.0, False)])
def test_the_temperature_rises_below_its_target_entropy_and_falls_above(target: float, rises: bool) -> None:
    sac = learner(target_entropy=target)
    before = sac.temperature
    for seed in range(5):
        sac.update(random_batch(seed=seed))
    assert (sac.temperature > before) == rises
    assert sac.temperature == pytest.approx(math.exp((1 if rises else -1) * 5 * 3e-4), rel=1e-4)


def test_the_target_entropy_is_minus_the_number_of_dimensions_unless_given() -> None:
    assert learner().target_entropy == -2.0
    assert learner(target_entropy=-0.5).target_entropy == -0.5


def test_target_critics_follow_by_tau_at_their_interval() -> None:
    sac = learner(tau=0.25, target_update_interval=2)
    started = torch.cat([p.detach().flatten() for p in sac.target_critics.module.parameters()])
    torch.testing.assert_close(started, sac.critic_parameters.data)
    sac.update(random_batch(seed=0))
    now = torch.cat([p.detach().flatten() for p in sac.target_critics.module.parameters()])
    assert torch.equal(now, started)
    sac.update(random_batch(seed=1))
    now = torch.cat([p.detach().flatten() for p in sac.target_critics.module.parameters()])
    torch.testing.assert_close(now, 0.75 * started + 0.25 * sac.critic_parameters.data)


def test_observations_are_normalised_as_they_are_learned_from() -> None:
    """Raw rows behind a normaliser teach what normalised rows teach without one."""
    results = []
    shift, factor = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.5, 2.0, 1.0])
    raw = random_batch()
    prepared: dict[str, Any] = {
        name: ((raw[name.replace("__", ".")] - shift) * factor).numpy() for name in ("observation", "next__observation")
    }
    for transforms, batch in ((("ObservationNorm",), raw), ((), random_batch(**prepared))):
        policy = policy_of(transforms=transforms)
        if transforms:
            norm: Any = policy.transforms[0]
            norm.shift_0.copy_(shift)
            norm.factor_0.copy_(factor)
        sac = learner(policy)
        sac.update(batch)
        results.append(sac.critic_parameters.data.clone())
    torch.testing.assert_close(*results)


def test_state_goes_on_bit_for_bit() -> None:
    results = []
    for restart in (False, True):
        policy = policy_of()
        sac = learner(policy, target_update_interval=2)
        for seed in range(3):
            sac.update(random_batch(seed=seed))
        if restart:
            state = {name: _copied(part) for name, part in sac.state_dict().items()}
            acted = _copied(policy.state_dict())
            policy = policy_of()
            sac = SAC(SACConfig(target_update_interval=2), policy, seed=99)
            policy.load_state_dict(acted)
            sac.load_state_dict(state)
        for seed in range(3, 6):
            sac.update(random_batch(seed=seed))
        results.append(
            [sac.actor_parameters.data.clone(), sac.critic_parameters.data.clone(), torch.tensor(sac.temperature)]
        )
    for ours, resumed in zip(*results, strict=True):
        assert torch.equal(ours, resumed)


def test_step_sizes_are_set_for_each_part_and_follow_the_schedule() -> None:
    sac = learner(actor_learning_rate=1e-9, temperature_learning_rate=1e-9, schedule="Linear", max_grad_norm=0.01)
    actor, critics = sac.actor_parameters.data.clone(), sac.critic_parameters.data.clone()
    sac.schedule(0.5)
    sac.update(random_batch())
    torch.testing.assert_close(sac.actor_parameters.data, actor, rtol=0, atol=1e-8)
    moved = (sac.critic_parameters.data - critics).abs()
    assert float(moved.max()) == pytest.approx(1.5e-4, rel=1e-2)
    assert sac.metrics()["optim/learning_rate"] == 1.5e-4
    sac.schedule(1.0)
    before = sac.critic_parameters.data.clone()
    sac.update(random_batch())
    assert torch.equal(sac.critic_parameters.data, before)


def test_metrics_are_means_since_the_last_call_and_phases_are_timed() -> None:
    timers = PhaseTimers()
    sac = SAC(SACConfig(), policy_of(), seed=2, timers=timers)
    assert sac.metrics() == {}
    losses = []
    for seed in range(3):
        sac.update(random_batch(seed=seed))
        losses.append(0.5 * float(sac._td_error.square().mean(1).sum()))
    metrics = sac.metrics()
    assert metrics["loss/critic"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert metrics["policy/temperature"] == pytest.approx(1.0, abs=1e-3)
    assert sac.metrics() == {}
    assert set(timers.totals()) == {"transform", "loss", "backward", "optimizer"}
    assert all(seconds > 0 for seconds in timers.totals().values())


def test_a_diverged_update_is_one_line_that_names_the_remedy() -> None:
    sac = learner()
    sac.update(random_batch(next__reward=np.full(32, np.nan, np.float32)))
    with pytest.raises(RLJobError, match=r"is nan: learning has diverged; lower spec.training.sac.learningRate"):
        sac.metrics()


@pytest.mark.parametrize("network", ["MLP", "CNN"], ids=["written out", "automatic"])
def test_it_learns_from_nested_observations_and_tables_of_actions(network: str) -> None:
    camera = spaces.Box(0, 255, (8, 8, 1), np.uint8)
    seen = spaces.Dict({"arm.angle": spaces.Box(-3.0, 3.0, (2,), np.float32), "goal": spaces.Discrete(3, start=1)})
    config: dict[str, Any] = {"hiddenSizes": [8]}
    if network == "CNN":
        seen = spaces.Dict({**seen.spaces, "camera": camera})
        config = {"channels": [2], "kernelSizes": [4], "strides": [2], "hiddenSizes": [8]}
    policy = build_policy(
        EnvSpaces(seen, spaces.Box(-1.0, 1.0, (2, 2), np.float32)), Component(type=network, config=config), kind="SAC"
    )
    random = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "action": random.uniform(-1, 1, (16, 2, 2)).astype(np.float32),
        "next.reward": random.normal(size=16).astype(np.float32),
        "next.terminated": random.random(16) < 0.3,
    }
    for name in ("observation", "next.observation"):
        columns[f"{name}.arm.angle"] = random.normal(size=(16, 2)).astype(np.float32)
        columns[f"{name}.goal"] = random.integers(1, 4, 16)
        if network == "CNN":
            columns[f"{name}.camera"] = random.integers(0, 256, (16, 8, 8, 1), np.uint8)
    sac = learner(policy, learning_rate=1e-2)
    losses = []
    for _ in range(60):
        sac.update(batch_of(**columns))
        losses.append(sac.metrics()["loss/critic"])
    assert losses[-1] < losses[0] / 2
    assert isinstance(sac.critic, AutogradCritics) == (network == "CNN")


def test_another_kind_of_policy_is_refused() -> None:
    with pytest.raises(TypeError, match="SAC learns a policy of kind SAC, not TD3"):
        SAC(SACConfig(), build_policy(spaces_of(), kind="TD3"))


def _copied(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.clone()
    return {name: _copied(part) for name, part in tree.items()} if isinstance(tree, dict) else tree
