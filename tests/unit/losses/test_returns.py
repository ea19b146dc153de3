"""Returns and advantages, on literals and by property."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlruntime.losses.returns import discounted_returns, generalized_advantage_estimation, reverse_linear_scan

T, F = True, False


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)


def flags(*values: bool) -> Tensor:
    return torch.tensor(values).unsqueeze(1)


def no(count: int) -> Tensor:
    return torch.zeros(count, 1, dtype=torch.bool)


def advantages(
    reward: Tensor, value: Tensor, terminated: Tensor, truncated: Tensor, valid: Tensor, gamma: float, lam: float
) -> list[float]:
    result = generalized_advantage_estimation(reward, value, terminated, truncated, valid, gamma=gamma, gae_lambda=lam)
    return result.squeeze(1).tolist()


def test_an_unbroken_rollout_sums_discounted_temporal_differences() -> None:
    # delta = 1 + 0.5 * 2 - 2 = 0 but for the last row, which bootstraps from 4: 1 + 0.5 * 4 - 2 = 1.
    found = advantages(column(1, 1, 1), column(2, 2, 2, 4), no(3), no(3), ~no(3), 0.5, 0.5)
    assert found == [0.0625, 0.25, 1.0]


def test_a_terminated_episode_does_not_bootstrap_and_a_truncated_one_does() -> None:
    reward, value = column(1, 1), column(0, 0, 10)
    assert advantages(reward, value, flags(F, T), no(2), ~no(2), 0.5, 1.0) == [1.5, 1.0]
    assert advantages(reward, value, no(2), flags(F, T), ~no(2), 0.5, 1.0) == [4.0, 6.0]


def test_an_episode_that_is_terminated_and_truncated_does_not_bootstrap() -> None:
    assert advantages(column(1), column(0, 10), flags(T), flags(T), ~no(1), 0.5, 1.0) == [1.0]


def test_the_next_episode_does_not_leak_through_the_reset_row() -> None:
    # Row 1 is cut off: it bootstraps from its final observation, 10. Row 2 resets. Rows 3 and 4 are another episode.
    found = advantages(
        column(1, 1, 0, 5, 5), column(0, 0, 10, 0, 0, 0), no(5), flags(F, T, F, F, F), flags(T, T, F, T, T), 0.5, 1.0
    )
    assert found == [4.0, 6.0, 0.0, 7.5, 5.0]


def test_a_replaced_copy_bootstraps_from_its_last_observation() -> None:
    # Row 1 is not valid although the episode went on in row 0: its worker was replaced.
    found = advantages(column(1, 0, 5), column(0, 4, 0, 0), no(3), no(3), flags(T, F, T), 0.5, 1.0)
    assert found == [3.0, 0.0, 5.0]


def test_returns_to_go_stop_at_ends_and_bootstrap_where_an_episode_was_cut() -> None:
    def returns(terminated: Tensor, truncated: Tensor, valid: Tensor) -> list[float]:
        found = discounted_returns(column(1, 2, 3), column(8, 8, 8), terminated, truncated, valid, gamma=0.5)
        return found.squeeze(1).tolist()

    assert returns(no(3), no(3), ~no(3)) == [3.75, 5.5, 7.0]
    assert returns(flags(F, F, T), no(3), ~no(3)) == [2.75, 3.5, 3.0]
    assert returns(flags(T, F, F), no(3), flags(T, F, T)) == [1.0, 0.0, 7.0]
    assert returns(no(3), flags(T, F, F), flags(T, F, T)) == [5.0, 0.0, 7.0]
    assert returns(no(3), no(3), flags(T, F, T)) == [5.0, 0.0, 7.0]


@pytest.mark.parametrize("length", range(1, 131))
def test_the_scan_by_doubling_equals_the_loop(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    increment = torch.randn(length, 3, generator=generator, dtype=torch.float64)
    decay = torch.rand(length, 3, generator=generator, dtype=torch.float64)
    decay[torch.rand(length, 3, generator=generator) < 0.2] = 0.0
    expected, following = torch.zeros_like(increment), torch.zeros(3, dtype=torch.float64)
    for step in reversed(range(length)):
        following = increment[step] + decay[step] * following
        expected[step] = following
    before = increment.clone(), decay.clone()
    torch.testing.assert_close(reverse_linear_scan(increment, decay), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(increment, before[0])
    assert torch.equal(decay, before[1])


@st.composite
def rollouts(draw: st.DrawFn) -> dict[str, Tensor]:
    """Rollouts on the canonical layout: a row after an end is not valid, and now and then a copy is replaced."""
    num_steps, num_envs = draw(st.integers(1, 24)), draw(st.integers(1, 3))
    seed, end_rate = draw(st.integers(0, 2**31)), draw(st.sampled_from([0.0, 0.1, 0.4]))
    generator = torch.Generator().manual_seed(seed)

    def chance(rate: float) -> Tensor:
        return torch.rand(num_steps, num_envs, generator=generator) < rate

    terminated, truncated, valid = chance(end_rate), chance(end_rate), ~chance(end_rate / 4)
    pending = chance(0.2)[0]
    for step in range(num_steps):
        valid[step] &= ~pending
        terminated[step] &= valid[step]
        truncated[step] &= valid[step]
        pending = terminated[step] | truncated[step]
    reward = torch.randn(num_steps, num_envs, generator=generator, dtype=torch.float64)
    return {
        "reward": torch.where(valid, reward, 0.0),
        "value": torch.randn(num_steps + 1, num_envs, generator=generator, dtype=torch.float64),
        "terminated": terminated,
        "truncated": truncated,
        "valid": valid,
    }


FRACTIONS = st.floats(0.0, 1.0)


@settings(max_examples=60, deadline=None)
@given(rollouts(), FRACTIONS)
def test_with_lambda_one_the_advantage_is_the_discounted_return_minus_the_value(
    rollout: dict[str, Tensor], gamma: float
) -> None:
    advantage = generalized_advantage_estimation(**rollout, gamma=gamma, gae_lambda=1.0)
    ends = {name: rollout[name] for name in ("terminated", "truncated", "valid")}
    returns = discounted_returns(rollout["reward"], rollout["value"][1:], **ends, gamma=gamma)
    expected = torch.where(rollout["valid"], returns - rollout["value"][:-1], 0.0)
    torch.testing.assert_close(advantage, expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(rollouts(), FRACTIONS)
def test_with_lambda_zero_the_advantage_is_one_temporal_difference(rollout: dict[str, Tensor], gamma: float) -> None:
    advantage = generalized_advantage_estimation(**rollout, gamma=gamma, gae_lambda=0.0)
    bootstrap = rollout["value"][1:] * ~rollout["terminated"]
    expected = (rollout["reward"] + gamma * bootstrap - rollout["value"][:-1]) * rollout["valid"]
    torch.testing.assert_close(advantage, expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(rollouts(), FRACTIONS, FRACTIONS)
def test_final_values_count_where_an_episode_was_cut_and_not_where_it_terminated(
    rollout: dict[str, Tensor], gamma: float, lam: float
) -> None:
    before = generalized_advantage_estimation(**rollout, gamma=gamma, gae_lambda=lam)
    raised = rollout["value"].clone()
    raised[1:] += 1.0
    after = generalized_advantage_estimation(**{**rollout, "value": raised}, gamma=gamma, gae_lambda=lam)
    ended, cut = rollout["terminated"], rollout["truncated"] & ~rollout["terminated"]
    # Rows whose own value was not raised: the first ones. The others answer for it with -1.
    own = torch.zeros_like(before)
    own[1:] = -1.0
    moved = after - before
    torch.testing.assert_close(moved[ended], own[ended], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moved[cut], (own + gamma)[cut], rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(rollouts(), FRACTIONS, FRACTIONS)
def test_the_rewards_of_reset_rows_count_for_nothing(rollout: dict[str, Tensor], gamma: float, lam: float) -> None:
    expected = generalized_advantage_estimation(**rollout, gamma=gamma, gae_lambda=lam)
    poisoned = torch.where(rollout["valid"], rollout["reward"], float("nan"))
    found = generalized_advantage_estimation(**{**rollout, "reward": poisoned}, gamma=gamma, gae_lambda=lam)
    assert torch.equal(found, expected)
    assert torch.equal(found[~rollout["valid"]], torch.zeros_like(found[~rollout["valid"]]))


@settings(max_examples=40, deadline=None)
@given(rollouts(), FRACTIONS, FRACTIONS)
def test_copies_do_not_meet(rollout: dict[str, Tensor], gamma: float, lam: float) -> None:
    together = generalized_advantage_estimation(**rollout, gamma=gamma, gae_lambda=lam)
    for copy in range(together.shape[1]):
        alone = {name: tensor[:, copy : copy + 1] for name, tensor in rollout.items()}
        found = generalized_advantage_estimation(**alone, gamma=gamma, gae_lambda=lam)
        torch.testing.assert_close(found, together[:, copy : copy + 1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "wrong", "error", "words"),
    [
        ("reward", torch.zeros(3), ValueError, r"reward has shape \(3,\), expected 2 dimensions"),
        ("reward", torch.zeros(3, 1, dtype=torch.int64), TypeError, "reward has dtype torch.int64"),
        ("value", torch.zeros(3, 1), ValueError, r"value has shape \(3, 1\), expected \(4, 1\)"),
        ("valid", torch.zeros(3, 2, dtype=torch.bool), ValueError, r"valid has shape \(3, 2\), expected \(3, 1\)"),
        ("terminated", torch.zeros(3, 1), TypeError, "terminated has dtype torch.float32, expected torch.bool"),
    ],
)
def test_wrong_ranks_shapes_and_dtypes_are_refused(
    name: str, wrong: Tensor, error: type[Exception], words: str
) -> None:
    right = {"reward": torch.zeros(3, 1), "value": torch.zeros(4, 1)}
    right |= {flag: no(3) for flag in ("terminated", "truncated", "valid")}
    with pytest.raises(error, match=words):
        generalized_advantage_estimation(**{**right, name: wrong}, gamma=0.9, gae_lambda=0.9)
