"""Adam on flat parameters: moments of units that learn nothing any more."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlruntime.policies.flat import Adam, FlatParameters

SUBNORMAL = 1e-39


def multiplied(number: float) -> float:
    return float(torch.full((), number) * 1.0)


@pytest.fixture
def adam() -> Adam:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor can't take subnormal numbers for 0")
    torch.set_flush_denormal(False)
    return Adam(FlatParameters(nn.Linear(2, 1)), epsilon=1e-8)


def test_after_a_thousand_steps_without_a_gradient_moments_are_zero_and_not_subnormal(adam: Adam) -> None:
    adam.flat.grad.fill_(1.0)
    adam.step(1e-3)
    adam.flat.grad.zero_()
    for _ in range(1000):
        adam.step(1e-3)
    assert adam.first_moment.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("before", [False, True])
def test_outside_a_step_subnormal_numbers_are_what_they_were_to_the_thread(adam: Adam, before: bool) -> None:
    torch.set_flush_denormal(before)
    try:
        used = Adam(adam.flat, epsilon=1e-8)
        used.step(1e-3)
        assert (multiplied(SUBNORMAL) == 0.0) is before
    finally:
        torch.set_flush_denormal(False)
