"""The canonical rollout on an environment that counts, with every number written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from policy_runs import job_of
from torch import Tensor

from rlruntime.collectors.episodes import EpisodeTracker
from rlruntime.collectors.inline import InlineCollector
from rlruntime.envs.make import make_vector_env
from rlruntime.envs.protocol import EnvSpaces, StepSlot
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.build import build_policy
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import EnvConfig

MLP = Component(type="MLP", config={"hiddenSizes": [4]})
T, F = True, False


class ScriptedEnv:
    """A vector environment of two copies that plays a script.

    Each step of the script gives, per copy, what it observes, its reward, and how the step counts: ``-`` goes on, ``t``
    terminates, ``c`` is cut off (truncated), ``r`` is the ignored step that resets or replaces.
    """

    backend = "Scripted"

    def __init__(self, first: Sequence[float], script: Sequence[Sequence[tuple[float, float, str]]]) -> None:
        self.num_envs = len(first)
        self.spaces = EnvSpaces(gym.spaces.Box(-100, 100, (1,), np.float32), gym.spaces.Discrete(2))
        self.first, self.script, self.steps, self.closed = first, script, 0, 0
        self.actions: list[list[int]] = []

    def reset(self, seeds: Sequence[int], out: StepSlot) -> None:
        assert isinstance(out.observation, np.ndarray)
        out.observation[:, 0] = self.first

    def step(self, actions: np.ndarray, out: StepSlot) -> None:
        assert isinstance(out.observation, np.ndarray)
        self.actions.append(actions.tolist())
        for copy, (observation, reward, how) in enumerate(self.script[self.steps]):
            out.observation[copy, 0], out.reward[copy] = observation, reward
            out.terminated[copy], out.truncated[copy], out.valid[copy] = how == "t", how == "c", how != "r"
        self.steps += 1

    def snapshot(self) -> list[bytes] | None:
        return None

    def restore(self, snapshots: Sequence[bytes]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.closed += 1


# Copy 0 terminates after 2 steps, again after 2 more; copy 1 is cut off after 3, and is replaced in mid-episode.
SCRIPT = [
    [(11.0, 1.0, "-"), (21.0, 10.0, "-")],
    [(12.0, 2.0, "t"), (22.0, 20.0, "-")],
    [(30.0, 0.0, "r"), (23.0, 30.0, "c")],
    [(31.0, 3.0, "-"), (40.0, 0.0, "r")],
    [(32.0, 4.0, "t"), (41.0, 40.0, "-")],
    [(50.0, 0.0, "r"), (60.0, 0.0, "r")],
    [(51.0, 5.0, "-"), (61.0, 50.0, "-")],
    [(52.0, 6.0, "-"), (62.0, 60.0, "c")],
]


def collector_of(num_steps: int) -> tuple[InlineCollector, ScriptedEnv]:
    env = ScriptedEnv([10.0, 20.0], SCRIPT)
    return InlineCollector(env, build_policy(env.spaces, MLP), num_steps=num_steps), env


def test_a_rollout_holds_next_step_rows_with_true_final_observations() -> None:
    collector, env = collector_of(4)
    rollout = collector.collect()

    assert isinstance(rollout.observation, Tensor)
    assert rollout.observation[..., 0].tolist() == [[10, 20], [11, 21], [12, 22], [30, 23], [31, 40]]
    assert rollout.reward.tolist() == [[1, 10], [2, 20], [0, 30], [3, 0]]
    assert rollout.terminated.tolist() == [[F, F], [T, F], [F, F], [F, F]]
    assert rollout.truncated.tolist() == [[F, F], [F, F], [F, T], [F, F]]
    assert rollout.valid.tolist() == [[T, T], [T, T], [F, T], [T, F]]
    assert rollout.num_valid == 6
    assert collector.num_frames == 6
    assert rollout.action.tolist() == env.actions


def test_the_next_rollout_begins_with_the_last_observation_of_the_one_before() -> None:
    collector, _ = collector_of(4)
    collector.collect()
    rollout = collector.collect()

    assert isinstance(rollout.observation, Tensor)
    assert rollout.observation[..., 0].tolist() == [[31, 40], [32, 41], [50, 60], [51, 61], [52, 62]]
    assert rollout.valid.tolist() == [[T, T], [F, F], [T, T], [T, T]]
    assert collector.num_frames == 12


def test_episodes_are_counted_across_rollouts_and_a_replaced_copy_drops_what_was_open() -> None:
    collector, _ = collector_of(4)
    collector.collect()
    assert collector.episodes.returns.tolist() == [3.0, 60.0]
    assert collector.episodes.lengths.tolist() == [2, 3]
    collector.collect()
    # Copy 0: 3 + 4 over the border of the rollouts. Copy 1: the 40 before its replacement is gone.
    assert collector.episodes.returns.tolist() == [7.0, 110.0]
    assert collector.episodes.lengths.tolist() == [2, 2]


@pytest.mark.parametrize("num_steps", [1, 2, 8])
def test_episodes_do_not_depend_on_how_steps_are_cut_into_rollouts(num_steps: int) -> None:
    collector, _ = collector_of(num_steps)
    returns: list[float] = []
    for _ in range(8 // num_steps):
        collector.collect()
        returns.extend(collector.episodes.returns.tolist())
    assert sorted(returns) == [3.0, 7.0, 60.0, 110.0]


def test_the_tracker_goes_on_from_its_saved_state() -> None:
    reward, none, ended = np.ones((2, 1), np.float32), np.zeros((2, 1), np.bool_), np.array([[F], [T]])
    first, second = EpisodeTracker(1), EpisodeTracker(1)
    assert len(first.add(reward, none, none, ~none).returns) == 0
    second.load_state_dict(first.state_dict())
    finished = second.add(reward, none, ended, ~none)
    assert finished.returns.tolist() == [4.0]
    assert finished.lengths.tolist() == [4]


def test_a_tensordict_of_a_rollout_has_nested_next_and_shares_its_memory() -> None:
    collector, _ = collector_of(4)
    rollout = collector.collect()
    td = rollout.to_tensordict()

    assert td.batch_size == torch.Size([4, 2])
    keys = {"observation", "action", "behaviour_log_prob", "value", "valid"}
    keys |= {"is_init", "trajectory_id", "policy_version"}
    assert set(td.keys()) == {*keys, "next"}
    assert set(td["next"].keys()) == {"observation", "reward", "terminated", "truncated", "done"}
    assert td["observation"][..., 0].tolist() == [[10, 20], [11, 21], [12, 22], [30, 23]]
    assert td["next", "observation"][..., 0].tolist() == [[11, 21], [12, 22], [30, 23], [31, 40]]
    assert td["next", "done"].tolist() == [[F, F], [T, F], [F, T], [F, F]]
    assert td["observation"].data_ptr() == rollout.observation.data_ptr()  # type: ignore[union-attr]
    by_copy = rollout.to_batch_major()
    assert by_copy.batch_size == torch.Size([2, 4])
    assert by_copy["next", "reward"].tolist() == [[1, 2, 0, 3], [10, 20, 30, 0]]


def test_a_dict_observation_nests_and_masks_come_along() -> None:
    training = job_of("dict").spec.training
    env = make_vector_env(training.env)
    collector = InlineCollector(env, build_policy(env.spaces, MLP), num_steps=6)
    try:
        rollout = collector.collect()
        td, by_copy = rollout.to_tensordict(), rollout.to_batch_major()
    finally:
        collector.close()
    assert set(td["observation"].keys()) == {"arm", "goal", "inventory", "pixels"}
    assert td["observation", "arm", "joints"].shape == (6, 4, 2)
    assert td["next", "observation", "goal"].shape == (6, 4)
    assert td["action"].shape == (6, 4, 2)
    assert td["action_mask"].shape == (6, 4, 5)
    assert td["action_mask"].dtype == torch.bool
    assert by_copy["observation", "arm", "joints"].shape == (4, 6, 2)


def test_the_masked_actions_of_a_rollout_are_allowed_in_every_valid_row() -> None:
    env = make_vector_env(job_of("masked").spec.training.env)
    collector = InlineCollector(env, build_policy(env.spaces, MLP), num_steps=100)
    try:
        rollout = collector.collect()
    finally:
        collector.close()
    assert rollout.action_mask is not None
    allowed = rollout.action_mask[:-1].gather(-1, rollout.action.unsqueeze(-1)).squeeze(-1)
    assert bool(allowed.all())
    assert int((~rollout.action_mask).sum()) > 0


def test_collecting_goes_on_bit_for_bit_from_a_saved_state() -> None:
    config = EnvConfig(id="CartPole-v1", num_envs=3)

    def new() -> InlineCollector:
        env = make_vector_env(config)
        return InlineCollector(env, build_policy(env.spaces, MLP), num_steps=20, seed=5)

    first, second = new(), new()
    try:
        first.collect()
        state, copies = first.state_dict(), first.env.snapshot()
        assert copies is not None
        second.load_state_dict(state)
        second.env.restore(copies)
        one, two = first.collect(), second.collect()
        assert torch.equal(one.observation, two.observation)  # type: ignore[arg-type]
        assert torch.equal(one.action, two.action)
        assert torch.equal(one.behaviour_log_prob, two.behaviour_log_prob)
        assert first.num_frames == second.num_frames
    finally:
        first.close()
        second.close()


def test_rollouts_end_once_the_frames_are_collected() -> None:
    collector, env = collector_of(4)
    assert [rollout.num_valid for rollout in collector.rollouts(7)] == [6, 6]
    collector.close()
    assert env.closed == 1


def test_each_transform_counts_what_it_saw_and_moves_only_between_rollouts() -> None:
    transforms = [Component(type="ObservationNorm", config={"clip": 1000.0}), Component(type="ObservationNorm")]
    env = ScriptedEnv([10.0, 20.0], SCRIPT)
    policy = build_policy(env.spaces, MLP, transforms)
    collector = InlineCollector(env, policy, num_steps=4)
    set_norm(policy, 0, shift=10.0, factor=2.0)

    collector.collect()
    assert moments(policy, 0) == (0.0, 0.0)
    collector.update_transforms()
    collector.update_transforms()  # at most once for each rollout

    # Valid rows: copy 0 saw 10, 11, 30; copy 1 saw 20, 21, 22. The second transform saw (x - 10) * 2.
    assert moments(policy, 0) == (6.0, 19.0)
    assert moments(policy, 1) == (6.0, 18.0)


def test_a_collector_moves_statistics_itself_where_its_caller_did_not() -> None:
    env = ScriptedEnv([10.0, 20.0], SCRIPT)
    policy = build_policy(env.spaces, MLP, [Component(type="ObservationNorm")])
    collector = InlineCollector(env, policy, num_steps=4)
    collector.collect()
    collector.collect()
    assert moments(policy, 0) == (6.0, 19.0)


def set_norm(policy: ActorCritic, number: int, *, shift: float, factor: float) -> None:
    norm: Any = policy.transforms[number]
    norm.shift_0.fill_(shift)
    norm.factor_0.fill_(factor)


def moments(policy: ActorCritic, number: int) -> tuple[float, float]:
    """Return count and mean."""
    norm: Any = policy.transforms[number]
    return float(norm.moments[0].count), float(norm.moments[0].mean)
