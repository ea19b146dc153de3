"""Losses of action values on literals, and their closed-form gradients against automatic ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from rlruntime.losses.action_value import huber_td_loss, squared_td_loss, td_target, temperature_gradient

SEEDS = st.integers(0, 2**31)


def row(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_a_target_bootstraps_unless_the_episode_terminated() -> None:
    terminated = torch.tensor([False, True, False])
    target = td_target(row(1, 1, 1), 0.5, terminated, row(4, 4, -2))
    assert target.tolist() == [3.0, 1.0, 0.0]


def test_what_follows_a_terminated_row_does_not_matter_even_if_it_is_no_number() -> None:
    target = td_target(row(1, 2), 0.5, torch.tensor([True, False]), row(float("nan"), 2))
    assert target.tolist() == [1.0, 3.0]


def test_a_target_over_several_steps_has_a_discount_for_each_row() -> None:
    target = td_target(row(1, 1), row(0.25, 0.5), torch.tensor([False, False]), row(4, 4))
    assert target.tolist() == [2.0, 3.0]


def test_squared_errors_are_halved_averaged_over_rows_and_summed_over_critics() -> None:
    outcome = squared_td_loss(torch.stack([row(1, 4), row(2, 2)]), row(2, 1))
    # (1 + 9) / 4 + (0 + 1) / 4
    assert float(outcome.loss) == 2.75
    assert outcome.gradient.tolist() == [[-0.5, 1.5], [0.0, 0.5]]
    assert outcome.error.tolist() == [[1.0, -3.0], [0.0, -1.0]]


def test_hubers_loss_is_a_square_up_to_one_and_linear_beyond() -> None:
    outcome = huber_td_loss(row(0, 0, 0), row(0.5, -3, 1))
    assert float(outcome.loss) == pytest.approx((0.125 + 2.5 + 0.5) / 3)
    assert outcome.gradient.tolist() == pytest.approx([-0.5 / 3, 1 / 3, -1 / 3])
    assert outcome.error.tolist() == [0.5, -3.0, 1.0]


def test_importance_weights_scale_the_loss_and_gradient_of_their_rows_but_not_the_error() -> None:
    weight = row(1.0, 0.5)
    squared = squared_td_loss(row(0, 0)[None], row(2, 4), weight)
    assert (float(squared.loss), squared.gradient.tolist()) == (3.0, [[-1.0, -1.0]])
    huber = huber_td_loss(row(0, 0), row(0.5, 4), weight)
    assert float(huber.loss) == pytest.approx((0.125 + 0.5 * 3.5) / 2)
    assert huber.gradient.tolist() == pytest.approx([-0.25, -0.25])
    assert huber.error.tolist() == [0.5, 4.0]


def test_the_temperature_rises_below_the_target_entropy_and_falls_above_it() -> None:
    # Entropy is minus the mean log-probability: 2 against a target of 3, then 2 against 1. A step goes downhill.
    assert float(temperature_gradient(row(-1, -3), 3.0)) == -1.0
    assert float(temperature_gradient(row(-1, -3), 1.0)) == 1.0


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 40), st.integers(1, 3), st.booleans())
def test_closed_form_gradients_are_the_automatic_ones(seed: int, rows: int, critics: int, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    value = (2.0 * torch.randn(critics, rows, generator=generator, dtype=torch.float64)).requires_grad_()
    target = torch.randn(rows, generator=generator, dtype=torch.float64)
    weight = torch.rand(rows, generator=generator, dtype=torch.float64) if weighted else None
    factor = torch.ones(rows, dtype=torch.float64) if weight is None else weight

    loss = (0.5 * factor * (value - target).square()).mean(1).sum()
    (expected,) = torch.autograd.grad(loss, value)
    outcome = squared_td_loss(value.detach(), target, weight)
    torch.testing.assert_close(outcome.loss, loss.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(outcome.gradient, expected, rtol=1e-12, atol=1e-12)

    loss = (factor * functional.smooth_l1_loss(value[0], target, reduction="none")).mean()
    (expected,) = torch.autograd.grad(loss, value)
    outcome = huber_td_loss(value[0].detach(), target, weight)
    torch.testing.assert_close(outcome.loss, loss.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(outcome.gradient, expected[0], rtol=1e-12, atol=1e-12)


def test_wrong_arguments_are_refused() -> None:
    flags = torch.tensor([False])
    with pytest.raises(TypeError, match=r"terminated has dtype torch\.float64, expected torch\.bool"):
        td_target(row(1), 0.9, row(0), row(1))
    with pytest.raises(ValueError, match=r"next_value has shape \(2,\), expected \(1,\)"):
        td_target(row(1), 0.9, flags, row(1, 2))
    with pytest.raises(ValueError, match=r"discount has shape \(2,\), expected \(1,\)"):
        td_target(row(1), row(1, 2), flags, row(1))
    with pytest.raises(ValueError, match=r"value has shape \(1,\), expected 2 dimensions"):
        squared_td_loss(row(1), row(1))
    with pytest.raises(ValueError, match=r"target has shape \(2,\), expected \(1,\)"):
        huber_td_loss(row(1), row(1, 2))
    with pytest.raises(ValueError, match=r"weight has shape \(2,\), expected \(1,\)"):
        huber_td_loss(row(1), row(1), row(1, 2))
