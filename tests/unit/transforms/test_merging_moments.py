"""Statistics of several workers, merged: each row counts once, in whatever order."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rlruntime.spec.training.transforms import ObservationNormConfig, RewardNormConfig
from rlruntime.transforms.base import RolloutView, Transform
from rlruntime.transforms.moments import RunningMoments, merged, moments_of
from rlruntime.transforms.normalization import ObservationNorm, RewardNorm

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.randoms(use_true_random=False), st.integers(0, 2**31))
def test_parts_merge_to_the_whole_in_any_order(sizes: list[int], order: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(size, 3, generator=generator, dtype=torch.float64) * 4.0 + 3.0 for size in sizes]
    shuffled = [moments_of(part) for part in parts]
    order.shuffle(shuffled)
    found, whole = reduce(merged, shuffled, moments_of(torch.zeros(0, 3))), moments_of(torch.cat(parts))
    assert float(found.num_rows) == float(whole.num_rows) == sum(sizes)
    torch.testing.assert_close(found.mean, whole.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.variance, whole.variance, rtol=1e-12, atol=1e-12)


def test_no_rows_merge_to_what_was_there() -> None:
    moments = RunningMoments((2,))
    nothing = moments_of(torch.zeros(0, 2))
    moments.merge(nothing)
    assert (moments.mean.tolist(), moments.variance.tolist(), float(moments.count)) == ([0, 0], [1, 1], 0)
    moments.add(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    moments.merge(nothing)
    assert (moments.mean.tolist(), moments.variance.tolist(), float(moments.count)) == ([2, 3], [1, 1], 2)


def rollout(seed: int, num_steps: int = 8, num_envs: int = 2) -> RolloutView:
    generator = torch.Generator().manual_seed(seed)
    flags = torch.rand((2, num_steps, num_envs), generator=generator) < 0.2
    valid = ~flags[1]
    reward = torch.where(valid, torch.randn((num_steps, num_envs), generator=generator), 0.0)
    observation = torch.randn((num_steps, num_envs, 3), generator=generator)
    return RolloutView(observation, reward, flags[0] & valid, torch.zeros_like(valid), valid)


def test_deltas_of_workers_bring_the_learner_to_the_statistics_of_all_rows() -> None:
    rollouts = [[rollout(10 * worker + number) for number in range(3)] for worker in range(4)]
    learner = ObservationNorm(ObservationNormConfig(), BOX)
    for turn in range(3):
        deltas = []
        for worker in range(4):
            mine = ObservationNorm(ObservationNormConfig(), BOX)
            mine.load_state_dict(learner.state_dict())  # what the learner publishes
            before = mine.state_dict()
            deltas.append(mine.delta(rollouts[worker][turn]))
            assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())
        for delta in reversed(deltas):
            learner.merge(delta)
    rows = torch.cat([view.observation[view.valid] for worker in rollouts for view in worker])  # type: ignore[index]
    whole = moments_of(rows)
    moments: Any = learner.moments[0]
    assert float(moments.count) == len(rows)
    torch.testing.assert_close(moments.mean, whole.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(moments.variance, whole.variance, rtol=1e-12, atol=1e-12)
    one = ObservationNorm(ObservationNormConfig(), BOX)
    for views in rollouts:
        for view in views:
            one.update(view)
    torch.testing.assert_close(learner(rows), one(rows))


def test_reward_statistics_of_workers_merge_to_those_of_one() -> None:
    views = [rollout(seed, num_envs=1) for seed in range(4)]
    joined = RolloutView(*(torch.cat([getattr(view, name) for view in views], 1) for name in RolloutView._fields))
    one, learner = RewardNorm(RewardNormConfig(gamma=0.9), BOX), RewardNorm(RewardNormConfig(gamma=0.9), BOX)
    one.update_rewards(joined)
    workers = [RewardNorm(RewardNormConfig(gamma=0.9), BOX) for _ in views]
    for worker, view in zip(workers, views, strict=True):
        learner.merge(worker.delta(view))
        assert float(worker.moments.count) == 0.0
    torch.testing.assert_close(learner.moments.value, one.moments.value, rtol=1e-12, atol=1e-12)


def test_rewards_of_sampled_rows_are_scaled_by_the_statistics_of_the_moment() -> None:
    norm = RewardNorm(RewardNormConfig(gamma=0.0, epsilon=1e-12, clip=3.0), BOX)
    assert norm.map_reward(torch.tensor([2.0, -9.0])).tolist() == [2.0, -3.0]
    flags = torch.tensor([[True], [True]])
    norm.update_rewards(RolloutView(torch.zeros(2, 1, 3), torch.tensor([[1.0], [5.0]]), ~flags, ~flags, flags))
    # Returns 1 and 5: standard deviation 2.
    torch.testing.assert_close(norm.map_reward(torch.tensor([2.0, -4.0, 99.0])), torch.tensor([1.0, -2.0, 3.0]))


@pytest.mark.parametrize(
    "transform", [Transform(), ObservationNorm(ObservationNormConfig(loc=(0.0,), scale=(1.0,)), BOX)]
)
def test_transform_without_moving_statistics_has_no_delta(transform: Transform) -> None:
    view = rollout(0)
    assert transform.delta(view) == {}
    transform.merge({})
    transform.update(view)


def test_given_moments_normalise_from_the_first_row_and_stay() -> None:
    norm = ObservationNorm(ObservationNormConfig(loc=(1.0, 2.0, 3.0), scale=(2.0,)), BOX)
    rows = torch.tensor([[3.0, 2.0, -1.0]])
    assert norm(rows).tolist() == [[1.0, 0.0, -2.0]]
    norm.update(rollout(0))
    assert norm(rows).tolist() == [[1.0, 0.0, -2.0]]
    back: Any = norm.inverse(norm(rows))
    assert back.tolist() == rows.tolist()
