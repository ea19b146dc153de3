"""Losses on literals, and their closed-form gradients against automatic ones."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlruntime.losses.policy import clipped_surrogate
from rlruntime.losses.value import clipped_value_loss, squared_value_loss


def row(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_the_surrogate_clips_only_what_would_move_further_away() -> None:
    ratio = row(1.5, 1.5, 0.5, 0.5, 1.0)
    outcome = clipped_surrogate(ratio.log(), torch.zeros_like(ratio), row(1, -1, 1, -1, 2), clip_epsilon=0.2)
    # min(rho A, clip(rho) A) = 1.2, -1.5, 0.5, -0.8, 2 with mean 0.28
    assert float(outcome.loss) == pytest.approx(-0.28)
    assert outcome.gradient.tolist() == pytest.approx([0.0, 0.3, -0.1, 0.0, -0.4])
    assert float(outcome.clip_fraction) == pytest.approx(0.8)
    kl = (2 * (0.5 - math.log(1.5)) + 2 * (-0.5 - math.log(0.5))) / 5
    assert float(outcome.approx_kl) == pytest.approx(kl)


def test_equal_policies_have_ratio_one_no_kl_and_the_plain_policy_gradient() -> None:
    log_prob = row(-1.0, -2.0)
    outcome = clipped_surrogate(log_prob, log_prob, row(3, -5), clip_epsilon=0.1)
    assert outcome.gradient.tolist() == [-1.5, 2.5]
    assert (float(outcome.approx_kl), float(outcome.clip_fraction), float(outcome.loss)) == (0.0, 0.0, 1.0)


def test_squared_value_loss_is_the_mean_square_and_twice_the_mean_error() -> None:
    outcome = squared_value_loss(row(1, 4), row(2, 1))
    assert float(outcome.loss) == 5.0
    assert outcome.gradient.tolist() == [-1.0, 3.0]


def test_clipped_value_loss_takes_the_larger_of_the_two_errors() -> None:
    # Row 0 moved by 1, of which 0.2 count: 1.2 is farther from 2 than 2 is. Row 1 moved away from its target.
    outcome = clipped_value_loss(row(2.0, 3.0, 1.1), row(1.0, 1.0, 1.0), row(2.0, 0.0, 0.0), clip_epsilon=0.2)
    assert float(outcome.loss) == pytest.approx((0.64 + 9.0 + 1.21) / 3)
    assert outcome.gradient.tolist() == pytest.approx([0.0, 2.0, 2.2 / 3])


SEEDS = st.integers(0, 2**31)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 40), st.floats(0.01, 0.5))
def test_the_surrogates_gradient_is_the_automatic_one(seed: int, rows: int, clip_epsilon: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    behaviour, move, advantage = torch.randn(3, rows, generator=generator, dtype=torch.float64)
    log_prob = (behaviour + 0.4 * move).requires_grad_()
    ratio = (log_prob - behaviour).exp()
    loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - clip_epsilon, 1 + clip_epsilon) * advantage).mean()
    (expected,) = torch.autograd.grad(loss, log_prob)
    outcome = clipped_surrogate(log_prob, behaviour, advantage, clip_epsilon=clip_epsilon)
    torch.testing.assert_close(outcome.loss, loss.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(outcome.gradient, expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 40), st.floats(0.01, 0.5))
def test_the_value_losses_gradients_are_the_automatic_ones(seed: int, rows: int, clip_epsilon: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    behaviour, move, target = torch.randn(3, rows, generator=generator, dtype=torch.float64)
    value = (behaviour + 0.4 * move).requires_grad_()
    near = behaviour + (value - behaviour).clamp(-clip_epsilon, clip_epsilon)
    loss = torch.maximum((value - target).square(), (near - target).square()).mean()
    (expected,) = torch.autograd.grad(loss, value)
    outcome = clipped_value_loss(value, behaviour, target, clip_epsilon=clip_epsilon)
    torch.testing.assert_close(outcome.loss, loss.detach(), rtol=1e-12, atol=1e-12)
    # Where both squares are equal (an unclipped row) automatic differentiation halves a gradient that is the same.
    torch.testing.assert_close(outcome.gradient, expected, rtol=1e-12, atol=1e-12)

    plain = (value - target).square().mean()
    (expected,) = torch.autograd.grad(plain, value)
    outcome = squared_value_loss(value, target)
    torch.testing.assert_close(outcome.loss, plain.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(outcome.gradient, expected, rtol=1e-12, atol=1e-12)


def test_losses_neither_need_gradients_nor_leave_any() -> None:
    log_prob = row(-1.0).requires_grad_()
    outcome = clipped_surrogate(log_prob, row(-1.1), row(1.0), clip_epsilon=0.2)
    assert not outcome.loss.requires_grad
    assert not squared_value_loss(log_prob, row(0.0)).gradient.requires_grad
    assert log_prob.grad is None


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"advantage has shape \(1,\), expected \(2,\)"):
        clipped_surrogate(row(1, 2), row(1, 2), row(1), clip_epsilon=0.2)
    with pytest.raises(TypeError, match=r"behaviour_log_prob has dtype torch\.int64"):
        clipped_surrogate(row(1), torch.tensor([1]), row(1), clip_epsilon=0.2)
    with pytest.raises(ValueError, match=r"value has shape \(1, 1\), expected 1 dimensions"):
        squared_value_loss(row(1)[None], row(1))
    with pytest.raises(ValueError, match=r"behaviour_value has shape \(2,\), expected \(1,\)"):
        clipped_value_loss(row(1), row(1, 2), row(1), clip_epsilon=0.2)
