"""Running moments and the transforms that use them, on literals."""

from __future__ import annotations

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
from rlruntime.registry import build
from rlruntime.spec.training.component import Component
from rlruntime.transforms.base import RolloutView, Transform
from rlruntime.transforms.moments import RunningMoments

T, F = True, False
BOX: gym.Space[Any] = spaces.Box(-100, 100, (1,), np.float32)


def transform(name: str, space: gym.Space[Any] = BOX, **config: Any) -> Any:
    return build("transform", Component(type=name, config=config), space, field="spec.training.env.transforms[0]")


def view(
    observation: list[list[float]], reward: list[list[float]], valid: list[list[bool]], ended: list[list[bool]]
) -> RolloutView:
    rewards = torch.tensor(reward)
    return RolloutView(
        observation=torch.tensor(observation).unsqueeze(-1),
        reward=rewards,
        terminated=torch.tensor(ended),
        truncated=torch.zeros_like(rewards, dtype=torch.bool),
        valid=torch.tensor(valid),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 2**31), st.sampled_from([1.0, 1e6]))
def test_moments_of_pieces_merge_to_those_of_one_pass(sizes: list[int], seed: int, offset: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    pieces = [torch.randn(size, 3, generator=generator, dtype=torch.float64) + offset for size in sizes]
    moments = RunningMoments((3,))
    for piece in pieces:
        moments.add(piece)
    rows = torch.cat(pieces)
    assert float(moments.count) == len(rows)
    if len(rows):
        torch.testing.assert_close(moments.mean, rows.mean(0), rtol=1e-12, atol=1e-9)
        torch.testing.assert_close(moments.variance, rows.var(0, correction=0), rtol=1e-6, atol=1e-9)


def test_moments_begin_with_mean_zero_variance_one_and_ignore_no_rows() -> None:
    moments = RunningMoments((2,))
    moments.add(torch.zeros(0, 2))
    assert (moments.mean.tolist(), moments.variance.tolist(), float(moments.count)) == ([0, 0], [1, 1], 0)
    moments.add(torch.tensor([[1.0, 2.0], [3.0, 2.0]]))
    assert (moments.mean.tolist(), moments.variance.tolist(), float(moments.count)) == ([2, 2], [1, 0], 2)


def test_observations_pass_unchanged_until_the_first_update_then_are_standardised_and_clipped() -> None:
    norm = transform("ObservationNorm", clip=2.0, epsilon=1e-12)
    rows = torch.tensor([[1.0], [3.0], [0.5]])
    assert norm(rows).tolist() == [[1.0], [2.0], [0.5]]
    norm.update(view([[1.0], [5.0]], [[0.0], [0.0]], [[T], [T]], [[F], [F]]))
    # Mean 3, standard deviation 2.
    assert norm(torch.tensor([[3.0], [5.0], [4.0], [99.0], [-99.0]])).tolist() == [[0.0], [1.0], [0.5], [2.0], [-2.0]]


def test_reset_rows_do_not_move_the_statistics_of_observations() -> None:
    norm = transform("ObservationNorm")
    norm.update(view([[1.0], [5.0], [9999.0]], [[0.0]] * 3, [[T], [T], [F]], [[F]] * 3))
    assert float(norm.moments[0].mean) == 3.0
    assert float(norm.moments[0].count) == 2.0


def test_a_dict_observation_keeps_its_categories_and_normalises_each_box_by_itself() -> None:
    space = spaces.Dict({"a": BOX, "b": spaces.Discrete(3), "c": spaces.Box(0, 255, (2, 2, 3), np.uint8)})
    norm = transform("ObservationNorm", space)
    seen = norm.observation_space(space)
    assert seen["b"] == spaces.Discrete(3)
    assert seen["a"] == spaces.Box(-10.0, 10.0, (1,), np.float32)
    assert seen["c"] == spaces.Box(-10.0, 10.0, (2, 2, 3), np.float32)
    flags = torch.tensor([[T], [T]])
    observation = {
        "a": torch.tensor([[[2.0]], [[4.0]]]),
        "b": torch.tensor([[0], [2]]),
        "c": torch.tensor([10, 30], dtype=torch.uint8).view(2, 1, 1, 1, 1).expand(2, 1, 2, 2, 3),
    }
    norm.update(RolloutView(observation, torch.zeros(2, 1), ~flags, ~flags, flags))
    out = norm({key: leaf.flatten(0, 1) for key, leaf in observation.items()})
    torch.testing.assert_close(out["a"], torch.tensor([[-1.0], [1.0]]))
    assert out["b"].tolist() == [0, 2]
    torch.testing.assert_close(out["c"][1], torch.ones(2, 2, 3))


def test_an_observation_of_categories_alone_has_nothing_to_normalise() -> None:
    with pytest.raises(ConfigError, match=r"ObservationNorm needs a Box, .*Discrete\(3\).*; remove the transform"):
        transform("ObservationNorm", spaces.Discrete(3))


def test_rewards_are_divided_by_the_deviation_of_the_discounted_return_and_keep_their_sign() -> None:
    norm = transform("RewardNorm", gamma=0.5, epsilon=1e-12)
    reward = [[2.0], [0.0], [-1.0]]
    rollout = view([[0.0]] * 3, reward, [[T]] * 3, [[F]] * 3)
    # Running returns 2, 1, -0.5 with variance 19/18.
    torch.testing.assert_close(
        norm.reward(rollout, rollout.reward), torch.tensor(reward) / (19 / 18) ** 0.5, rtol=1e-6, atol=1e-6
    )


def test_the_running_return_starts_anew_with_each_episode_and_goes_on_over_rollouts() -> None:
    norm = transform("RewardNorm", gamma=0.5)
    first = view([[0.0]] * 2, [[4.0], [0.0]], [[T], [F]], [[T], [F]])
    norm.reward(first, first.reward)
    assert (float(norm.moments.mean), float(norm.moments.count)) == (4.0, 1.0)
    second = view([[0.0]], [[1.0]], [[T]], [[F]])
    norm.reward(second, second.reward)  # the episode ended: 1, not 1 + 0.5 * 4
    assert (float(norm.moments.mean), float(norm.moments.count)) == (2.5, 2.0)
    norm.reward(second, second.reward)  # this one goes on: 1 + 0.5 * 1
    assert float(norm.running_return) == 1.5


def test_normalised_rewards_are_clipped() -> None:
    norm = transform("RewardNorm", gamma=0.5, clip=1.5)
    rollout = view([[0.0]] * 4, [[0.0], [0.0], [0.0], [8.0]], [[T]] * 4, [[F]] * 4)
    assert norm.reward(rollout, rollout.reward)[:, 0].tolist() == [0.0, 0.0, 0.0, 1.5]


def test_a_reward_transform_leaves_observations_alone() -> None:
    norm = transform("RewardNorm")
    rows = torch.tensor([[5.0]])
    assert norm(rows) is rows
    assert norm.observation_space(BOX) is BOX
    rollout = view([[1.0]], [[1.0]], [[T]], [[F]])
    assert Transform().reward(rollout, rollout.reward) is rollout.reward


@pytest.mark.parametrize("name", ["ObservationNorm", "RewardNorm"])
def test_a_transform_goes_on_from_its_saved_state_bit_for_bit(name: str) -> None:
    generator = torch.Generator().manual_seed(0)

    def step(part: Any, rollout: RolloutView) -> Tensor:
        learned: Tensor = part.reward(rollout, rollout.reward)
        part.update(rollout)
        return torch.cat([learned.flatten(), part(rollout.observation.flatten(0, 1)).flatten()])  # type: ignore[union-attr]

    def rollout() -> RolloutView:
        flags = torch.rand(4, 5, generator=generator) < 0.3
        numbers = torch.randn(2, 4, 5, generator=generator)
        return RolloutView(numbers[0].unsqueeze(-1), numbers[1], flags, torch.zeros_like(flags), ~flags.roll(1, 0))

    first, second = transform(name), transform(name)
    step(first, rollout())
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        same = rollout()
        assert torch.equal(step(first, same), step(second, same))


def test_a_misspelt_setting_is_refused_with_its_path() -> None:
    with pytest.raises(ConfigError, match=r"^spec.training.env.transforms\[0\].config.clipp: .*did you mean 'clip'\?"):
        transform("ObservationNorm", clipp=3)
