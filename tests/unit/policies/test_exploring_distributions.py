"""The distributions of off-policy algorithms: squashed Gaussian, deterministic with noise, epsilon-greedy."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlruntime.errors import ConfigError
from rlruntime.policies.distributions import ActionDistribution, make_distribution
from rlruntime.policies.epsilon_greedy import EpsilonGreedy
from rlruntime.policies.squashed import Deterministic, SquashedGaussian, fill_normal

BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
CPU = torch.device("cpu")
SEEDS = st.integers(0, 2**31)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sampled(distribution: ActionDistribution, params: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
    out = torch.empty((len(noise), *distribution.action_shape), dtype=distribution.action_dtype)
    distribution.sample(
        params.expand(len(noise), -1), noise, None if mask is None else mask.expand(len(noise), -1), out
    )
    return out


def torchs_squashed(params: Tensor) -> Any:
    mean, log_std = params.chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    transform: Any = torch.distributions.transforms.TanhTransform(cache_size=1)
    return torch.distributions.TransformedDistribution(normal, [transform])


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(1, 9))
def test_the_log_probability_of_a_squashed_sample_and_its_pathwise_gradient_are_the_automatic_ones(
    seed: int, rows: int
) -> None:
    distribution = SquashedGaussian(BOX).double()
    params = torch.randn(rows, 4, generator=generator(seed), dtype=torch.float64) * 1.5
    noise = torch.randn(rows, 2, generator=generator(seed + 1), dtype=torch.float64)
    d_action = torch.randn(rows, 2, generator=generator(seed + 2), dtype=torch.float64)
    d_log_prob = 0.37

    params.requires_grad_()
    mean, log_std = params.chunk(2, -1)
    log_std = log_std.clamp(-20, 2)
    before = mean + log_std.exp() * noise
    action = torch.tanh(before)
    normal: Any = torch.distributions.Normal(mean, log_std.exp())
    slope: Any = torch.distributions.transforms.TanhTransform()
    log_prob = (normal.log_prob(before) - slope.log_abs_det_jacobian(before, action)).sum(-1)
    (expected,) = torch.autograd.grad((d_action * action).sum() + d_log_prob * log_prob.sum(), params)

    sample = distribution.pathwise(params.detach(), noise)
    torch.testing.assert_close(sample.action, action.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sample.log_prob, log_prob.detach(), rtol=1e-9, atol=1e-9)
    found = distribution.pathwise_gradient(sample, d_action, d_log_prob)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(1, 9))
def test_the_gradient_of_a_given_squashed_action_is_the_automatic_one(seed: int, rows: int) -> None:
    distribution = SquashedGaussian(BOX).double()
    params = torch.randn(rows, 4, generator=generator(seed), dtype=torch.float64).requires_grad_()
    action = torch.rand(rows, 2, generator=generator(seed + 1), dtype=torch.float64) * 1.8 - 0.9
    weights = torch.randn(rows, generator=generator(seed + 2), dtype=torch.float64)
    evaluation = distribution.evaluate(params, action, None)
    reference = torchs_squashed(params).log_prob(action).sum(-1)
    torch.testing.assert_close(evaluation.log_prob, reference)
    objective = (weights * evaluation.log_prob).sum() + 0.3 * evaluation.entropy.sum()
    (expected,) = torch.autograd.grad(objective, params)
    found = distribution.gradient(distribution.evaluate(params.detach(), action, None), weights, 0.3)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_the_entropy_of_a_squashed_gaussian_is_the_mean_of_minus_its_log_probability() -> None:
    distribution = SquashedGaussian(spaces.Box(-1, 1, (1,), np.float32))
    for mean, log_std in ((0.0, -1.0), (1.5, -0.5), (-0.5, 0.5)):
        params = torch.tensor([[mean, log_std]])
        sample = distribution.pathwise(params.expand(200_000, -1), torch.randn(200_000, 1, generator=generator()))
        entropy = float(distribution.evaluate(params, torch.zeros(1, 1), None).entropy)
        assert entropy == pytest.approx(-float(sample.log_prob.mean()), abs=0.01)


def test_log_probabilities_stay_finite_where_the_tangent_is_flat() -> None:
    distribution = SquashedGaussian(BOX)
    params = torch.tensor([[40.0, -40.0, 2.0, -20.0]])
    sample = distribution.pathwise(params, torch.tensor([[2.0, -1.0]]))
    assert torch.isfinite(sample.log_prob).all()
    assert sample.action.tolist() == [[1.0, -1.0]]
    assert torch.isfinite(distribution.evaluate(params, sample.action, None).log_prob).all()
    # -log(1 - tanh(u)^2) grows as 2|u| - 2 log 2
    wide = distribution.pathwise(torch.tensor([[30.0, 0.0, 0.0, 0.0]]), torch.zeros(1, 2))
    expected = 2 * -0.5 * math.log(2 * math.pi) + 60 - 2 * math.log(2)
    assert float(wide.log_prob) == pytest.approx(expected, rel=1e-6)


def test_the_logarithm_of_the_deviation_is_held_and_has_no_gradient_beyond() -> None:
    distribution = SquashedGaussian(BOX).double()
    params = torch.tensor([[0.0, 0.0, 5.0, -30.0]], dtype=torch.float64)
    noise = torch.full((1, 2), 0.1, dtype=torch.float64)
    sample = distribution.pathwise(params, noise)
    np.testing.assert_allclose(sample.action[0, 0], math.tanh(0.1 * math.exp(2.0)))
    np.testing.assert_allclose(sample.action[0, 1], 0.1 * math.exp(-20.0), rtol=1e-6)
    gradient = distribution.pathwise_gradient(sample, torch.ones(1, 2, dtype=torch.float64), 0.5)
    assert gradient[0, 2:].tolist() == [0.0, 0.0]
    assert (gradient[0, :2] != 0).all()


@pytest.mark.parametrize("kind", [SquashedGaussian, Deterministic])
def test_units_of_minus_one_to_one_become_the_environments_bounds(kind: Any) -> None:
    distribution = kind(BOX)
    actions = np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 0.5]], np.float32)
    assert distribution.to_env(actions).tolist() == [[-2.0, 0.0], [0.0, 0.5], [2.0, 0.75]]
    assert distribution.to_env_tensor(torch.from_numpy(actions)).tolist() == [[-2.0, 0.0], [0.0, 0.5], [2.0, 0.75]]


@pytest.mark.parametrize(
    ("make", "space", "words"),
    [
        (SquashedGaussian, spaces.Box(-np.inf, np.inf, (2,), np.float32), "SAC needs actions with bounds in every"),
        (Deterministic, spaces.Box(-1, np.inf, (2,), np.float32), "TD3 needs actions with bounds in every dimension"),
        (SquashedGaussian, spaces.Discrete(2), "SAC needs Box actions .*; use algorithm: PPO or DQN"),
        (EpsilonGreedy, spaces.Box(-1, 1, (2,), np.float32), "DQN needs Discrete actions .*or SAC for Box actions"),
        (EpsilonGreedy, spaces.MultiDiscrete([2, 2]), "DQN needs Discrete actions .*; use algorithm: PPO"),
    ],
)
def test_an_action_space_that_does_not_fit_is_refused_in_one_line(make: Any, space: gym.Space[Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make(space)
    assert "\n" not in str(caught.value)


def test_deterministic_actions_have_noise_of_the_set_deviation_and_are_clipped() -> None:
    distribution = Deterministic(BOX, exploration_noise=0.2)
    params = torch.tensor([[0.0, 3.0]])
    noise = distribution.draw_noise((40_000,), generator(), CPU)
    drawn = sampled(distribution, params, noise)
    assert float(drawn[:, 0].mean()) == pytest.approx(0.0, abs=0.01)
    assert float(drawn[:, 0].std()) == pytest.approx(0.2, rel=0.02)
    assert float(drawn[:, 1].max()) == 1.0
    distribution.exploration_noise = 0.0
    torch.testing.assert_close(sampled(distribution, params, noise[:3]), torch.tanh(params).expand(3, -1))
    assert distribution.mode(params, None).tolist() == torch.tanh(params).tolist()


def test_the_gradient_of_a_deterministic_action_is_the_automatic_one() -> None:
    distribution = Deterministic(BOX).double()
    params = torch.randn(7, 2, generator=generator(), dtype=torch.float64).requires_grad_()
    d_action = torch.randn(7, 2, generator=generator(1), dtype=torch.float64)
    (expected,) = torch.autograd.grad((torch.tanh(params) * d_action).sum(), params)
    found = distribution.action_gradient(torch.tanh(params.detach()), d_action)
    torch.testing.assert_close(found, expected)
    evaluation = distribution.evaluate(params.detach(), torch.zeros(7, 2), None)
    assert evaluation.log_prob.tolist() == evaluation.entropy.tolist() == [0.0] * 7
    assert not distribution.gradient(evaluation, torch.ones(7), 1.0).any()


def test_epsilon_is_the_share_of_actions_that_are_any() -> None:
    distribution = EpsilonGreedy(spaces.Discrete(4), epsilon=0.4)
    values = torch.tensor([[0.0, 5.0, 1.0, 2.0]])
    counts = sampled(distribution, values, distribution.draw_noise((40_000,), generator(), CPU)).bincount(minlength=4)
    np.testing.assert_allclose(counts / 40_000, [0.1, 0.7, 0.1, 0.1], atol=0.01)
    evaluation = distribution.evaluate(values.expand(2, -1), torch.tensor([1, 2]), None)
    np.testing.assert_allclose(evaluation.log_prob.exp(), [0.7, 0.1], rtol=1e-6)
    assert float(evaluation.entropy[0]) == pytest.approx(-0.7 * math.log(0.7) - 0.3 * math.log(0.1))
    distribution.epsilon = 0.0
    assert sampled(distribution, values, distribution.draw_noise((50,), generator(), CPU)).tolist() == [1] * 50


def test_masks_hold_when_exploring_too() -> None:
    distribution = EpsilonGreedy(spaces.Discrete(4), epsilon=0.5)
    values, mask = torch.tensor([[0.0, 5.0, 1.0, 2.0]]), torch.tensor([[True, False, False, True]])
    noise = distribution.draw_noise((20_000,), generator(), CPU)
    counts = sampled(distribution, values, noise, mask).bincount(minlength=4)
    np.testing.assert_allclose(counts / 20_000, [0.25, 0.0, 0.0, 0.75], atol=0.015)
    evaluation = distribution.evaluate(values, torch.tensor([0]), mask)
    assert float(evaluation.log_prob.exp()) == pytest.approx(0.25)
    out = torch.empty(20_000, dtype=torch.int64)
    distribution.sample_uniform(noise, mask.expand(20_000, -1), out)
    np.testing.assert_allclose(out.bincount(minlength=4) / 20_000, [0.5, 0.0, 0.0, 0.5], atol=0.015)


def test_a_dueling_head_gives_a_value_and_advantages_whose_mean_does_not_count() -> None:
    distribution = EpsilonGreedy(spaces.Discrete(3), dueling=True)
    head = torch.tensor([[10.0, 1.0, 2.0, 6.0]], requires_grad=True)
    values = distribution.complete(head)
    assert values.tolist() == [[8.0, 9.0, 13.0]]
    d_values = torch.tensor([[1.0, -2.0, 0.5]])
    (expected,) = torch.autograd.grad((values * d_values).sum(), head)
    torch.testing.assert_close(distribution.complete_backward(d_values), expected)
    complete = distribution.array_completion()
    assert complete is not None
    out = np.empty((1, 3), np.float32)
    complete(head.detach().numpy(), out)
    assert out.tolist() == [[8.0, 9.0, 13.0]]


@pytest.mark.parametrize(
    "distribution",
    [SquashedGaussian(BOX), Deterministic(BOX), EpsilonGreedy(spaces.Discrete(5), epsilon=0.5)],
    ids=["squashed", "deterministic", "epsilon-greedy"],
)
def test_arrays_are_sampled_as_tensors_are(distribution: Any) -> None:
    params = torch.randn(64, distribution.num_params, generator=generator())
    noise = distribution.draw_noise((64,), generator(1), CPU)
    out = torch.empty((64, *distribution.action_shape), dtype=distribution.action_dtype)
    distribution.sample(params, noise, None, out)
    array = np.zeros_like(out.numpy())
    distribution.sample_array(params.numpy(), noise.numpy(), array)
    np.testing.assert_allclose(array, out.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "distribution",
    [SquashedGaussian(BOX), Deterministic(BOX), EpsilonGreedy(spaces.Discrete(5))],
    ids=["squashed", "deterministic", "epsilon-greedy"],
)
def test_noise_does_not_depend_on_how_many_steps_it_is_drawn_for(distribution: ActionDistribution) -> None:
    one, other = generator(3), generator(3)
    whole = distribution.draw_noise((12, 3), one, CPU)
    parts = torch.cat([distribution.draw_noise((steps, 3), other, CPU) for steps in (1, 1, 5, 2, 3)])
    assert torch.equal(whole, parts)


@pytest.mark.parametrize(
    ("distribution", "low", "high"),
    [
        (SquashedGaussian(BOX), -1.0, 1.0),
        (Deterministic(BOX), -1.0, 1.0),
        (make_distribution(BOX), -1.0, 1.0),
    ],
    ids=["squashed", "deterministic", "gaussian"],
)
def test_random_actions_are_uniform_within_the_bounds(distribution: Any, low: float, high: float) -> None:
    out = torch.empty(20_000, 2)
    distribution.uniform(generator(), None, out)
    assert float(out.min()) >= low
    assert float(out.max()) <= high
    counts = np.histogram(out.numpy().ravel(), bins=10, range=(low, high))[0]
    np.testing.assert_allclose(counts / 40_000, 0.1, atol=0.01)


@pytest.mark.parametrize(
    ("space", "expected"),
    [(spaces.Discrete(3), [1 / 2, 0, 1 / 2]), (spaces.MultiDiscrete([3]), [1 / 2, 0, 1 / 2])],
    ids=["discrete", "multi-discrete"],
)
def test_random_categories_are_uniform_among_those_allowed(space: gym.Space[Any], expected: list[float]) -> None:
    distribution = make_distribution(space)
    out = torch.empty((10_000, *distribution.action_shape), dtype=torch.int64)
    distribution.uniform(generator(), torch.tensor([[True, False, True]]).expand(10_000, -1), out)
    np.testing.assert_allclose(out.flatten().bincount(minlength=3) / 10_000, expected, atol=0.02)


def test_a_dimension_without_bounds_has_a_standard_normal_for_a_random_action() -> None:
    distribution = make_distribution(spaces.Box(np.array([-1, -np.inf]), np.array([1, np.inf]), dtype=np.float64))
    out = torch.empty(20_000, 2)
    distribution.uniform(generator(), None, out)
    assert float(out[:, 0].abs().max()) <= 1.0
    assert float(out[:, 1].std()) == pytest.approx(1.0, abs=0.02)


def test_normals_by_inversion_have_the_moments_of_normals_and_no_infinities() -> None:
    noise = torch.empty(200_000)
    fill_normal(noise, generator())
    assert torch.isfinite(noise).all()
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(noise.std()) == pytest.approx(1.0, abs=0.01)
    assert float((noise.abs() > 1.959964).float().mean()) == pytest.approx(0.05, abs=0.002)


def test_how_much_a_policy_explores_travels_with_its_weights() -> None:
    source, copy = EpsilonGreedy(spaces.Discrete(2)), EpsilonGreedy(spaces.Discrete(2))
    source.epsilon = 0.75
    copy.load_state_dict(source.state_dict())
    assert copy.epsilon == 0.75
    noisy, quiet = Deterministic(BOX), Deterministic(BOX)
    noisy.exploration_noise = 0.5
    quiet.load_state_dict(noisy.state_dict())
    assert quiet.exploration_noise == 0.5
