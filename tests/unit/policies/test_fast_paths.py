"""The quick ways of acting and of differentiating agree with PyTorch's own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlruntime.envs.protocol import EnvSpaces
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.build import build_policy
from rlruntime.policies.fast_actor import fast_actor
from rlruntime.policies.flat import FlatParameters
from rlruntime.policies.gradients import AutogradGradient, PerceptronGradient, make_gradient
from rlruntime.policies.networks import tanh
from rlruntime.spec.training.component import Component

VECTOR = spaces.Box(-3.0, 3.0, (5,), np.float32)
ACTIONS: dict[str, gym.Space[Any]] = {
    "Discrete": spaces.Discrete(4),
    "Box": spaces.Box(-2.0, 2.0, (3,), np.float32),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
}


def policy(action: str = "Discrete", transforms: tuple[str, ...] = (), **network: Any) -> ActorCritic:
    config = {"hiddenSizes": [16, 8], **network}
    parts = [Component(type=name) for name in transforms]
    built = build_policy(EnvSpaces(VECTOR, ACTIONS[action]), Component(type="MLP", config=config), parts, seed=3)
    with torch.no_grad():
        for parameter in built.parameters():  # heads begin near 0, where little could differ
            generator = torch.Generator().manual_seed(parameter.numel())
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return built


@pytest.mark.parametrize("action", ["Discrete", "Box"])
@pytest.mark.parametrize("activation", ["Tanh", "ReLU"])
def test_the_fast_actor_gives_the_parameters_of_the_policy(action: str, activation: str) -> None:
    built = policy(action, activation=activation)
    actor = fast_actor(built, 6)
    assert actor is not None
    rows = np.random.default_rng(0).uniform(-3, 3, (6, 5)).astype(np.float32)
    with torch.no_grad():
        expected = built.action_params(torch.from_numpy(rows)).numpy()
    found = np.zeros_like(expected)
    actor(rows, found)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_fast_actor_sees_parameters_that_an_optimiser_has_moved() -> None:
    built = policy()
    flat = FlatParameters(built)
    actor = fast_actor(built, 2)
    assert actor is not None
    flat.data.fill_(0.25)
    found = np.zeros((2, 4), np.float32)
    actor(np.zeros((2, 5), np.float32), found)
    first = np.tanh(0.25)
    second = np.tanh(16 * 0.25 * first + 0.25)
    np.testing.assert_allclose(found, np.full((2, 4), 8 * 0.25 * second + 0.25), rtol=1e-5)


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(policy("MultiDiscrete"), id="MultiDiscrete"),
        pytest.param(policy(transforms=("ObservationNorm",)), id="transform"),
        pytest.param(policy(hiddenSizes=[4096, 4096]), id="large"),
        pytest.param(policy(activation="GELU"), id="activation"),
    ],
)
def test_what_the_fast_actor_cannot_do_is_left_to_pytorch(built: ActorCritic) -> None:
    assert fast_actor(built, 16) is None


@pytest.mark.parametrize("action", list(ACTIONS))
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("transforms", [(), ("ObservationNorm",)])
@pytest.mark.parametrize("num_rows", [1, 7, 600])
@pytest.mark.parametrize("activation", ["Tanh", "ReLU"])
def test_the_written_out_gradient_is_that_of_automatic_differentiation(
    action: str, shared: bool, transforms: tuple[str, ...], num_rows: int, activation: str
) -> None:
    built = policy(action, transforms, shared=shared, activation=activation)
    flat = FlatParameters(built)
    written = make_gradient(built)
    assert isinstance(written, PerceptronGradient)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(num_rows, 5, generator=generator)
    gradients: list[torch.Tensor] = []
    outputs: list[tuple[torch.Tensor, torch.Tensor]] = []
    d_params, d_value = torch.Tensor(), torch.Tensor()
    for gradient in (AutogradGradient(built), written):
        flat.grad.fill_(7.0)  # what an earlier pass left behind
        params, value = gradient.forward(rows)
        if not gradients:
            d_params = torch.randn(params.shape, generator=generator)
            d_value = torch.randn(value.shape, generator=generator)
        gradient.backward(d_params, d_value)
        gradients.append(flat.grad.clone())
        outputs.append((params, value))
    for by_autograd, by_hand in zip(*outputs, strict=True):
        torch.testing.assert_close(by_hand, by_autograd, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)
    assert float(gradients[0].abs().max()) > 0.1


@pytest.mark.parametrize(
    "built", [policy(activation="GELU"), policy(transforms=())], ids=["other activation", "frozen parameter"]
)
def test_other_networks_are_differentiated_automatically(built: ActorCritic) -> None:
    if built.actor_encoder.activation is tanh:
        built.critic_head.bias.requires_grad_(False)
    FlatParameters(built)
    assert isinstance(make_gradient(built), AutogradGradient)


@pytest.mark.parametrize("num_rows", [3, 400])
def test_tanh_without_a_gradient_is_tanh_to_float32_rounding(num_rows: int) -> None:
    values = torch.linspace(-12.0, 12.0, num_rows * 16).reshape(num_rows, 16)
    kept = values.clone()
    with torch.no_grad():
        found = tanh(values)
    torch.testing.assert_close(found, torch.tanh(values), rtol=0.0, atol=2.4e-7)
    assert torch.equal(values, kept)
