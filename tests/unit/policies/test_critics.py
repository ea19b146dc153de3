"""Critics of actions: what they see, and their gradients written out against automatic ones."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rlruntime.envs.protocol import EnvSpaces
from rlruntime.policies.build import build_policy
from rlruntime.policies.critics import (
    AutogradCritics,
    Critics,
    PerceptronCritics,
    build_critics,
    make_critic_gradient,
)
from rlruntime.policies.flat import FlatParameters
from rlruntime.policies.gradients import (
    AutogradActorGradient,
    PerceptronActorGradient,
    make_actor_gradient,
)
from rlruntime.policies.observations import ObservationTensor
from rlruntime.policies.perceptron import Scratch
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.component import Component

VECTOR = spaces.Box(-3.0, 3.0, (5,), np.float32)
NESTED = spaces.Dict({"zoo": VECTOR, "action": spaces.Discrete(3)})
BOX = spaces.Box(-2.0, 2.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (12, 10, 3), np.uint8)


def policy_of(observation: gym.Space[Any] = VECTOR, network: str = "MLP", **config: Any) -> Policy:
    settings = {"hiddenSizes": [16, 8], "activation": "ReLU", **config} if network == "MLP" else config
    return build_policy(EnvSpaces(observation, BOX), Component(type=network, config=settings), kind="SAC", seed=1)


def critics_of(policy: Policy, num_critics: int = 2) -> Critics:
    return build_critics(policy, num_critics=num_critics, seed=1)


def rows(
    observation: gym.Space[Any], count: int, dtype: torch.dtype = torch.float32
) -> tuple[ObservationTensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    vector = torch.randn(count, 5, generator=generator, dtype=dtype)
    action = torch.rand(count, 3, generator=generator, dtype=dtype) * 2 - 1
    if observation is NESTED:
        return {"zoo": vector, "action": torch.arange(count) % 3}, action
    return vector, action


@pytest.mark.parametrize("observation", [VECTOR, NESTED], ids=["vector", "dict"])
@pytest.mark.parametrize("activation", ["ReLU", "Tanh"])
@pytest.mark.parametrize("num_rows", [1, 7, 300])
@pytest.mark.parametrize("sizes", [[16, 8], [12], [8, 8, 8]])
def test_written_out_gradients_are_those_of_automatic_differentiation(
    observation: gym.Space[Any], activation: str, num_rows: int, sizes: list[int]
) -> None:
    critics = critics_of(policy_of(observation, activation=activation, hiddenSizes=sizes), 3)
    flat = FlatParameters(critics)
    written = make_critic_gradient(critics)
    assert isinstance(written, PerceptronCritics)
    automatic = AutogradCritics(critics)
    seen, action = rows(observation, num_rows)
    d_value = torch.randn(3, num_rows, generator=torch.Generator().manual_seed(0))
    found: dict[str, list[Tensor]] = {}
    for name, gradient in (("written", written), ("automatic", automatic)):
        flat.grad.fill_(7.0)  # what an earlier pass left behind
        values = gradient.forward(seen, action)
        gradient.backward(d_value)
        kept = flat.grad.clone()
        of_action = gradient.forward_action(seen, action)
        d_action = gradient.action_gradient(d_value)
        first = gradient.forward_action(seen, action, count=1)
        d_first = gradient.action_gradient(d_value[:1])
        assert torch.equal(flat.grad, kept)  # the gradient by an action writes none
        found[name] = [values, kept, of_action, d_action, first, d_first, gradient.infer(seen, action)]
    for by_hand, by_autograd in zip(found["written"], found["automatic"], strict=True):
        torch.testing.assert_close(by_hand, by_autograd, rtol=1e-4, atol=1e-4)
    assert found["written"][4].shape == (1, num_rows)
    assert float(found["automatic"][1].abs().max()) > 0.1


@pytest.mark.parametrize("activation", ["ReLU", "Tanh"])
def test_in_double_precision_they_agree_to_its_rounding(activation: str) -> None:
    critics = critics_of(policy_of(activation=activation)).double()
    flat = FlatParameters(critics)
    seen, action = rows(VECTOR, 40, torch.float64)
    d_value = torch.randn(2, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for gradient in (PerceptronCritics(critics), AutogradCritics(critics)):
        values = gradient.forward(seen, action)
        gradient.backward(d_value)
        gradient.forward_action(seen, action)
        found.append([values, flat.grad.clone(), gradient.action_gradient(d_value)])
    for by_hand, by_autograd in zip(*found, strict=True):
        torch.testing.assert_close(by_hand, by_autograd, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("activation", ["ReLU", "Tanh"])
@pytest.mark.parametrize("kind", ["SAC", "TD3", "dueling"])
def test_the_written_out_gradient_of_an_actor_is_the_automatic_one(activation: str, kind: str) -> None:
    action = spaces.Discrete(4) if kind == "dueling" else BOX
    built_as: Any = "DQN" if kind == "dueling" else kind
    policy = build_policy(
        EnvSpaces(VECTOR, action),
        Component(type="MLP", config={"hiddenSizes": [16, 8], "activation": activation}),
        kind=built_as,
        dueling=kind == "dueling",
    ).double()
    flat = FlatParameters(policy)
    written = make_actor_gradient(policy)
    assert isinstance(written, PerceptronActorGradient)
    seen, _ = rows(VECTOR, 30, torch.float64)
    other, _ = rows(VECTOR, 31, torch.float64)
    found = []
    for gradient in (written, AutogradActorGradient(policy)):
        flat.grad.fill_(7.0)
        params = gradient.forward(seen)
        inferred = gradient.infer(other)  # must not disturb what backward needs
        d_params = torch.randn(params.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        gradient.backward(d_params)
        alone = flat.grad.clone()
        both = gradient.forward_both(seen, other[:30])  # type: ignore[index]
        gradient.backward(d_params)  # of the former half alone
        torch.testing.assert_close(flat.grad, alone, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(both[:30], params, rtol=1e-12, atol=1e-12)
        found.append([params, inferred, both, alone])
    for by_hand, by_autograd in zip(*found, strict=True):
        torch.testing.assert_close(by_hand, by_autograd, rtol=1e-10, atol=1e-10)


def test_networks_that_share_memory_and_take_turns_get_the_numbers_of_those_that_have_their_own() -> None:
    policy = policy_of()
    critics, target = critics_of(policy), critics_of(policy, 3)
    flats = [FlatParameters(module) for module in (policy, critics, target)]
    found = []
    for scratch in (None, Scratch()):
        actor = make_actor_gradient(policy, scratch)
        values, judge = make_critic_gradient(critics, scratch), make_critic_gradient(target, scratch)
        assert isinstance(actor, PerceptronActorGradient)
        assert isinstance(values, PerceptronCritics)
        numbers: list[Tensor] = []
        for count in (70, 9, 130, 9):  # more rows, fewer, and more than ever before
            (seen, action), (other, _) = rows(VECTOR, count), rows(VECTOR, count + 1)
            assert isinstance(seen, Tensor)
            assert isinstance(other, Tensor)
            d_value = torch.randn(2, count, generator=torch.Generator().manual_seed(count)).clamp_(min=0)
            params = actor.forward_both(seen, other[:count])
            numbers += [params, judge.infer(seen, action), values.forward(seen, action), actor.infer(other)]
            values.backward(d_value)
            numbers += [flats[1].grad.clone(), values.forward_action(seen, action), values.action_gradient(d_value)]
            actor.backward(params[:count])
            numbers.append(flats[0].grad.clone())
        found.append(numbers)
    assert all(map(torch.equal, *found))


def test_any_other_network_is_differentiated_automatically() -> None:
    small_cnn = {"channels": [2], "kernelSizes": [4], "strides": [2], "hiddenSizes": [5]}
    for policy in (policy_of(IMAGE, "CNN", **small_cnn), policy_of(activation="GELU")):
        critics = critics_of(policy)
        FlatParameters(critics)
        assert isinstance(make_critic_gradient(critics), AutogradCritics)
        assert isinstance(make_actor_gradient(policy), AutogradActorGradient)
    image = torch.randint(0, 256, (4, 12, 10, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    gradient = AutogradCritics(critics_of(policy_of(IMAGE, "CNN", **small_cnn)))
    gradient.forward_action(image, torch.zeros(4, 3))
    assert gradient.action_gradient(torch.ones(2, 4)).shape == (4, 3)


def test_an_observation_that_is_called_action_keeps_its_name() -> None:
    critics = critics_of(policy_of(NESTED))
    assert critics.action_key == "_action"
    seen, action = rows(NESTED, 2)
    assert sorted(critics.inputs(seen, action)) == ["_action", "action", "zoo"]


def test_critics_differ_from_each_other_and_repeat_with_the_seed() -> None:
    policy, before = policy_of(), torch.get_rng_state()
    seen, action = rows(VECTOR, 4)
    with torch.no_grad():
        values = critics_of(policy)(seen, action)
        assert torch.equal(values, critics_of(policy)(seen, action))
        assert not torch.allclose(values[0], values[1])
        assert not torch.allclose(values, build_critics(policy, num_critics=2, seed=2)(seen, action))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_backward_pass_without_a_forward_pass_is_refused() -> None:
    gradient = AutogradCritics(critics_of(policy_of()))
    with pytest.raises(RuntimeError, match="backward needs a forward pass before it"):
        gradient.backward(torch.zeros(2, 3))
    with pytest.raises(RuntimeError, match="action_gradient needs a forward pass before it"):
        gradient.action_gradient(torch.zeros(2, 3))
    with pytest.raises(RuntimeError, match="backward needs a forward pass before it"):
        AutogradActorGradient(policy_of()).backward(torch.zeros(2, 6))
