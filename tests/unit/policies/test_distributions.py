"""Action distributions: sampling, masks, log-probabilities, and gradients in closed form."""

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

CPU = torch.device("cpu")
SPACES: dict[str, gym.Space[Any]] = {
    "categorical": spaces.Discrete(4),
    "multi": spaces.MultiDiscrete([2, 3]),
    "table": spaces.MultiDiscrete(np.array([[2, 3], [4, 2]])),
    "gaussian": spaces.Box(-1, 1, (3,), np.float32),
    "unbounded": spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
    "scalar": spaces.Box(-1, 1, (), np.float32),
}


def samples(
    distribution: ActionDistribution, params: Tensor, count: int, mask: Tensor | None = None, seed: int = 0
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = distribution.draw_noise((count,), generator, CPU)
    out = torch.empty((count, *distribution.action_shape), dtype=distribution.action_dtype)
    expanded = None if mask is None else mask.expand(count, -1)
    distribution.sample(params.expand(count, -1), noise, expanded, out)
    return out


def random_mask(space: gym.Space[Any], rows: int, generator: torch.Generator) -> Tensor | None:
    if isinstance(space, spaces.Box):
        return None
    sizes = [int(space.n)] if isinstance(space, spaces.Discrete) else [int(n) for n in space.nvec.reshape(-1)]  # type: ignore[attr-defined]
    parts = []
    for size in sizes:
        part = torch.rand(rows, size, generator=generator) < 0.6
        part[torch.arange(rows), torch.randint(size, (rows,), generator=generator)] = True
        parts.append(part)
    return torch.cat(parts, -1)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(SPACES)), st.integers(0, 2**31), st.integers(1, 9), st.booleans())
def test_closed_form_gradients_are_the_automatic_ones(kind: str, seed: int, rows: int, masked: bool) -> None:
    space, generator = SPACES[kind], torch.Generator().manual_seed(seed)
    distribution = make_distribution(space).double()
    head = torch.randn(rows, distribution.num_params, generator=generator, dtype=torch.float64)
    params = distribution.complete(head).detach().requires_grad_()
    mask = random_mask(space, rows, generator) if masked else None
    noise = distribution.draw_noise((rows,), generator, CPU).double()
    action = torch.empty((rows, *distribution.action_shape), dtype=distribution.action_dtype)
    if isinstance(space, spaces.Box):
        action = action.double()
    distribution.sample(params.detach(), noise, mask, action)
    weights = torch.randn(rows, generator=generator, dtype=torch.float64)
    d_entropy = float(torch.randn((), generator=generator))

    evaluation = distribution.evaluate(params, action, mask)
    objective = (weights * evaluation.log_prob).sum() + d_entropy * evaluation.entropy.sum()
    (expected,) = torch.autograd.grad(objective, params)
    with torch.no_grad():
        found = distribution.gradient(distribution.evaluate(params, action, mask), weights, d_entropy)
        without_entropy = distribution.gradient(distribution.evaluate(params, action, mask), weights, 0.0)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    again = distribution.evaluate(params, action, mask)
    (expected,) = torch.autograd.grad((weights * again.log_prob).sum(), params)
    torch.testing.assert_close(without_entropy, expected, rtol=1e-9, atol=1e-9)


def test_log_probability_and_entropy_are_torchs() -> None:
    logits = torch.tensor([[0.1, -2.0, 1.5, 0.0], [3.0, 0.0, 0.0, -1.0]])
    action = torch.tensor([2, 3])
    found = make_distribution(SPACES["categorical"]).evaluate(logits, action, None)
    reference: Any = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(found.log_prob, reference.log_prob(action))
    torch.testing.assert_close(found.entropy, reference.entropy())

    gaussian = make_distribution(SPACES["gaussian"])
    params = gaussian.complete(torch.tensor([[0.5, -1.0, 2.0]])).detach()
    params[:, 3:] = torch.tensor([0.0, -0.7, 0.4])
    box_action = torch.tensor([[0.0, -1.2, 3.0]])
    found = gaussian.evaluate(params, box_action, None)
    normal: Any = torch.distributions.Normal(params[:, :3], params[:, 3:].exp())
    torch.testing.assert_close(found.log_prob, normal.log_prob(box_action).sum(-1))
    torch.testing.assert_close(found.entropy, normal.entropy().sum(-1))


def test_log_probabilities_of_a_table_of_categories_add_up() -> None:
    distribution = make_distribution(SPACES["table"])
    logits = torch.randn(5, 11, generator=torch.Generator().manual_seed(0))
    action = torch.tensor([[[1, 2], [3, 0]]]).expand(5, 2, 2)
    parts = logits.split([2, 3, 4, 2], -1)  # type: ignore[no-untyped-call]
    expected = sum(part.log_softmax(-1)[:, chosen] for part, chosen in zip(parts, (1, 2, 3, 0), strict=True))
    evaluation = distribution.evaluate(logits, action, None)
    torch.testing.assert_close(evaluation.log_prob, expected)
    rollout = distribution.evaluate(logits.view(5, 1, 11), action.view(5, 1, 2, 2), None)
    torch.testing.assert_close(rollout.log_prob.squeeze(1), expected)


def test_sampling_frequencies_match_the_probabilities() -> None:
    distribution = make_distribution(SPACES["categorical"])
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    counts = samples(distribution, probs.log()[None], 40_000).bincount(minlength=4)
    assert (counts / 40_000 - probs).abs().max() < 0.01


def test_masked_sampling_renormalises_and_never_takes_what_is_forbidden() -> None:
    distribution = make_distribution(SPACES["categorical"])
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log() + torch.tensor([[0.0, 30.0, 0.0, 0.0]])
    mask = torch.tensor([[True, False, True, False]])
    counts = samples(distribution, logits, 10_000, mask).bincount(minlength=4).tolist()
    assert counts[1] == counts[3] == 0
    assert counts[0] / 10_000 == pytest.approx(0.5 / 0.65, abs=0.02)
    assert distribution.mode(logits, mask).tolist() == [0]
    evaluation = distribution.evaluate(logits, torch.tensor([2]), mask)
    assert float(evaluation.log_prob) == pytest.approx(math.log(0.15 / 0.65), abs=1e-6)
    p, q = 0.5 / 0.65, 0.15 / 0.65
    assert float(evaluation.entropy) == pytest.approx(-p * math.log(p) - q * math.log(q), abs=1e-6)


def test_masks_of_several_dimensions_hold_in_each_of_them() -> None:
    distribution = make_distribution(SPACES["table"])
    mask = torch.tensor([[True, False, True, False, True, False, True, True, False, True, True]])
    drawn = samples(distribution, torch.randn(1, 11, generator=torch.Generator().manual_seed(1)), 10_000, mask)
    assert drawn.shape == (10_000, 2, 2)
    assert [sorted(set(drawn[:, i, j].tolist())) for i in (0, 1) for j in (0, 1)] == [[0], [0, 2], [1, 2], [0, 1]]


def test_the_only_action_that_is_allowed_is_certain_and_has_no_entropy() -> None:
    distribution = make_distribution(SPACES["categorical"])
    mask = torch.tensor([[False, False, False, True]])
    evaluation = distribution.evaluate(torch.tensor([[50.0, 0.0, 0.0, -50.0]]), torch.tensor([3]), mask)
    assert (float(evaluation.log_prob), float(evaluation.entropy)) == (0.0, 0.0)


def test_gaussian_samples_have_the_mean_and_deviation_of_their_parameters() -> None:
    distribution = make_distribution(SPACES["gaussian"])
    params = torch.tensor([[0.5, -1.0, 0.0, math.log(0.1), math.log(2.0), 0.0]])
    drawn = samples(distribution, params, 40_000)
    torch.testing.assert_close(drawn.mean(0), torch.tensor([0.5, -1.0, 0.0]), rtol=0, atol=0.03)
    torch.testing.assert_close(drawn.std(0), torch.tensor([0.1, 2.0, 1.0]), rtol=0.02, atol=0)


def test_box_actions_are_scaled_to_their_bounds_and_clipped_on_the_way_out() -> None:
    space = spaces.Box(np.array([0, -np.inf], np.float32), np.array([10, np.inf], np.float32))
    distribution = make_distribution(space)
    actions = np.array([[0.0, 3.0], [1.0, -3.0], [-0.5, 0.0], [7.0, 9.0]], np.float32)
    expected = [[5.0, 3.0], [10.0, -3.0], [2.5, 0.0], [10.0, 9.0]]
    assert distribution.to_env(actions).tolist() == expected
    assert distribution.to_env_tensor(torch.from_numpy(actions)).tolist() == expected


def test_bounds_too_far_apart_for_float32_count_as_none() -> None:
    space = spaces.Box(np.array([-3e38, -1e308]), np.array([3e38, 1e308]), dtype=np.float64)
    gaussian = make_distribution(space)
    actions = [[0.0, 0.0], [2.0, -3.0]]
    assert gaussian.to_env(np.array(actions, np.float32)).tolist() == actions
    assert gaussian.to_env_tensor(torch.tensor(actions)).tolist() == actions


def test_noise_repeats_with_the_generators_seed() -> None:
    distribution = make_distribution(SPACES["multi"])
    params = torch.zeros(1, 5)
    assert torch.equal(samples(distribution, params, 50, seed=1), samples(distribution, params, 50, seed=1))
    assert not torch.equal(samples(distribution, params, 50, seed=1), samples(distribution, params, 50, seed=2))


def test_other_action_spaces_are_refused() -> None:
    with pytest.raises(ConfigError, match="the action space MultiBinary is not supported"):
        make_distribution(spaces.MultiBinary(3))
