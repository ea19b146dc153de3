"""Rollouts split into trajectories, with every number written out."""

from __future__ import annotations

import torch
from collector_envs import env_config

from rlruntime.collectors.inline import InlineCollector
from rlruntime.collectors.rollout import Rollout
from rlruntime.collectors.trajectories import pack_trajectories, pad_trajectories
from rlruntime.envs.make import make_vector_env
from rlruntime.policies.build import build_policy
from rlruntime.spec.training.component import Component

MLP = Component(type="MLP", config={"hiddenSizes": [4]})


def second_rollout() -> Rollout:
    """Return steps 5 to 9 of two copies with episodes of three steps: ``2 3 r 1 2`` of each, as the reward says."""
    env = make_vector_env(env_config(num_envs=2, length=3))
    collector = InlineCollector(env, build_policy(env.spaces, MLP), num_steps=5)
    collector.collect()
    rollout = collector.collect()
    collector.close()
    return rollout


def test_trajectories_are_packed_by_their_ids_without_rows_that_reset() -> None:
    rollout = second_rollout()
    assert rollout.trajectory_id[:, 0].tolist() == [2, 2, -1, 4, 4]
    assert rollout.is_init[:, 1].tolist() == [False, False, False, True, False]
    packed = pack_trajectories(rollout)
    assert packed.ids.tolist() == [2, 3, 4, 5]
    assert packed.lengths.tolist() == [2, 2, 2, 2]
    assert packed.starts.tolist() == [0, 2, 4, 6]
    assert packed.steps.batch_size == torch.Size([8])
    assert packed.steps["next", "reward"].tolist() == [2, 3, 2, 3, 1, 2, 1, 2]
    assert packed.steps["observation"][:, 0].tolist() == [1, 2, 1, 2, 0, 1, 0, 1]
    assert packed.steps["next", "terminated"].tolist() == [False, True, False, True, False, False, False, False]


def test_whole_trajectories_begin_and_end_in_the_rollout() -> None:
    env = make_vector_env(env_config(num_envs=2, length=3))
    collector = InlineCollector(env, build_policy(env.spaces, MLP), num_steps=9)
    packed = pack_trajectories(collector.collect(), whole=True)
    assert packed.ids.tolist() == [0, 1, 2, 3]  # 4 and 5 have one step yet
    assert packed.lengths.tolist() == [3] * 4
    packed = pack_trajectories(collector.collect(), whole=True)
    assert packed.ids.tolist() == [6, 7]  # 4 and 5 began in the rollout before, 8 and 9 go on
    assert packed.steps["next", "reward"].tolist() == [1, 2, 3, 1, 2, 3]
    collector.close()


def test_padded_trajectories_have_a_mask_and_zeros_behind_their_end() -> None:
    env = make_vector_env(env_config(num_envs=2, length=3))
    collector = InlineCollector(env, build_policy(env.spaces, MLP), num_steps=6)
    padded = pad_trajectories(collector.collect())
    collector.close()
    assert padded.batch_size == torch.Size([4, 3])
    assert padded["mask"].tolist() == [[True] * 3, [True] * 3, [True, True, False], [True, True, False]]
    assert padded["next", "reward"].tolist() == [[1, 2, 3], [1, 2, 3], [1, 2, 0], [1, 2, 0]]
    assert padded["trajectory_id"].tolist() == [[0, 0, 0], [1, 1, 1], [2, 2, -1], [3, 3, -1]]
    assert padded["valid"].tolist() == padded["mask"].tolist()


def test_no_whole_trajectory_makes_an_empty_batch() -> None:
    rollout = second_rollout()
    assert pad_trajectories(rollout, whole=True).batch_size == torch.Size([0, 0])
    packed = pack_trajectories(rollout, whole=True)
    assert packed.ids.tolist() == packed.lengths.tolist() == []
