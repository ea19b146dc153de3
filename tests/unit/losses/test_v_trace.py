"""V-trace on literals, and where it is the same as what is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlruntime.losses.returns import generalized_advantage_estimation, v_trace


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers).unsqueeze(1)


def flags(*set_at: int, size: int) -> Tensor:
    return torch.tensor([[step in set_at] for step in range(size)])


def test_targets_and_advantages_follow_equation_one_on_literals() -> None:
    # Ratios 2 and 0.5 with bars of 1: rho = c = (1, 0.5). gamma 0.5.
    advantage, target = v_trace(
        reward=column(1.0, 2.0),
        value=column(4.0, 6.0, 8.0),
        log_ratio=column(math.log(2.0), math.log(0.5)),
        terminated=flags(size=2),
        truncated=flags(size=2),
        valid=torch.ones(2, 1, dtype=torch.bool),
        gamma=0.5,
    )
    # delta_1 = 0.5 (2 + 4 - 6) = 0; v_1 = 6. delta_0 = 1 (1 + 3 - 4) = 0; v_0 = 4.
    assert target.flatten().tolist() == [4.0, 6.0]
    assert advantage.flatten().tolist() == [0.0, 0.0]
    advantage, target = v_trace(
        reward=column(3.0, 6.0),
        value=column(4.0, 6.0, 8.0),
        log_ratio=column(math.log(2.0), math.log(0.5)),
        terminated=flags(size=2),
        truncated=flags(size=2),
        valid=torch.ones(2, 1, dtype=torch.bool),
        gamma=0.5,
    )
    # delta_1 = 0.5 (6 + 4 - 6) = 2; v_1 = 8. delta_0 = 1 (3 + 3 - 4) = 2; v_0 = 4 + 2 + 0.5 * 1 * 2 = 7.
    assert target.flatten().tolist() == pytest.approx([7.0, 8.0])
    # q_0 = 3 + 0.5 * 8 - 4 = 3; q_1 = 6 + 0.5 * 8 - 6 = 4.
    assert advantage.flatten().tolist() == pytest.approx([3.0, 4.0])


@pytest.mark.parametrize(
    ("settings", "targets"),
    [
        ({}, [1.0, 1.0]),
        ({"rho_bar": 3.0}, [3.0, 3.0]),
        ({"c_bar": 2.0}, [2.0, 1.0]),
        ({"trace_lambda": 0.25}, [0.25, 1.0]),
    ],
)
def test_bars_and_lambda_limit_what_is_carried_back(settings: dict[str, float], targets: list[float]) -> None:
    _, target = v_trace(
        reward=column(0.0, 1.0),
        value=column(0.0, 0.0, 0.0),
        log_ratio=torch.full((2, 1), math.log(4.0)),
        terminated=flags(size=2),
        truncated=flags(size=2),
        valid=torch.ones(2, 1, dtype=torch.bool),
        gamma=1.0,
        **settings,
    )
    assert target.flatten().tolist() == pytest.approx(targets)


@pytest.mark.parametrize("trace_lambda", [0.0, 0.7, 1.0])
def test_without_staleness_targets_are_those_of_generalised_advantage_estimation(trace_lambda: float) -> None:
    generator = torch.Generator().manual_seed(0)
    reward, value = torch.randn(9, 5, generator=generator), torch.randn(10, 5, generator=generator)
    ends = torch.rand(9, 5, generator=generator)
    terminated, truncated = ends < 0.2, (ends >= 0.2) & (ends < 0.4)
    valid = torch.ones(9, 5, dtype=torch.bool)
    valid[1:] = ~(terminated | truncated)[:-1]
    terminated, truncated = terminated & valid, truncated & valid
    valid[1:] = ~(terminated | truncated)[:-1]
    expected = generalized_advantage_estimation(
        reward, value, terminated, truncated, valid, gamma=0.9, gae_lambda=trace_lambda
    )
    advantage, target = v_trace(
        reward, value, torch.zeros(9, 5), terminated, truncated, valid, gamma=0.9, trace_lambda=trace_lambda
    )
    torch.testing.assert_close(target[valid], (expected + value[:-1])[valid])
    if trace_lambda == 1.0:
        torch.testing.assert_close(advantage[valid], expected[valid])


def test_ends_of_episodes_and_resets_are_not_reached_across() -> None:
    nan = float("nan")
    advantage, target = v_trace(
        reward=column(1.0, 0.0, 2.0, 0.0, 4.0),
        value=column(0.0, 10.0, 0.0, 20.0, 0.0, 8.0),
        log_ratio=column(0.0, nan, 0.0, nan, 0.0),
        terminated=flags(0, size=5),
        truncated=flags(2, size=5),
        valid=~flags(1, 3, size=5),
        gamma=0.5,
    )
    assert advantage.flatten().tolist() == [1.0, 0.0, 12.0, 0.0, 8.0]
    assert target.flatten().tolist() == [1.0, 10.0, 12.0, 20.0, 8.0]
