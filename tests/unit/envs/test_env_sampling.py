"""Actions that checks and snapshot proofs try: never one that the environment's mask forbids."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rlruntime.envs.checks import probe
from rlruntime.envs.sampling import ActionSampler, mask_of
from rlruntime.envs.snapshots import prove_snapshot


class Narrow(gym.Env[Any, Any]):
    """One action out of ten is allowed at a time, and it changes; any other raises."""

    def __init__(self, *, mask_in_info: bool) -> None:
        self.mask_in_info = mask_in_info
        box = gym.spaces.Box(0.0, 10.0, (1,), np.float32)
        masks = gym.spaces.MultiBinary(10)
        self.observation_space = box if mask_in_info else gym.spaces.Dict({"state": box, "action_mask": masks})
        self.action_space = gym.spaces.Discrete(10)
        self.allowed = 0

    def answer(self) -> tuple[Any, dict[str, Any]]:
        mask = np.zeros(10, np.int8)
        mask[self.allowed] = 1
        state = np.array([self.allowed], np.float32)
        return (state, {"action_mask": mask}) if self.mask_in_info else ({"state": state, "action_mask": mask}, {})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.allowed = int(self.np_random.integers(10))
        return self.answer()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action != self.allowed:
            raise ValueError(f"action {action} is forbidden")
        self.allowed = int(self.np_random.integers(10))
        observation, info = self.answer()
        return observation, 0.0, self.allowed == 3, False, info


def test_probe_takes_an_allowed_action_whether_the_mask_is_in_info_or_in_the_observation() -> None:
    assert probe(Narrow(mask_in_info=True)).spaces.action_mask == "info"
    assert probe(Narrow(mask_in_info=False)).spaces.action_mask == "observation"


def test_snapshots_of_an_environment_that_raises_on_forbidden_actions_are_proved() -> None:
    assert prove_snapshot(lambda: Narrow(mask_in_info=True)).restorable
    assert prove_snapshot(lambda: Narrow(mask_in_info=False)).restorable
    vector = prove_snapshot(lambda: gym.vector.SyncVectorEnv([lambda: Narrow(mask_in_info=False)] * 2))
    assert vector.reason == ""
    assert vector.restorable


def test_masked_multi_discrete_actions_are_allowed_in_every_dimension_and_count_from_the_start() -> None:
    class TwoDials(gym.Env[Any, Any]):
        observation_space = gym.spaces.Discrete(1)
        action_space = gym.spaces.MultiDiscrete([3, 2], start=[5, -1])

    sampler = ActionSampler(TwoDials(), seed=0)
    drawn = {tuple(sampler.draw(np.array([True, False, True, False, True])).tolist()) for _ in range(50)}
    assert drawn == {(5, 0), (7, 0)}


def test_samplers_of_one_seed_draw_the_same_and_leave_the_space_of_the_environment_alone() -> None:
    env = gym.make("CartPole-v1")
    env.action_space.seed(7)
    undisturbed = [int(env.action_space.sample()) for _ in range(8)]
    env.action_space.seed(7)
    first, second = ActionSampler(env, seed=1), ActionSampler(env, seed=1)
    assert [first.draw(None) for _ in range(8)] == [second.draw(None) for _ in range(8)]
    assert [int(env.action_space.sample()) for _ in range(8)] == undisturbed
    env.close()


def test_mask_is_found_in_a_dict_observation_before_info() -> None:
    assert mask_of({"action_mask": 1}, {"action_mask": 2}) == 1
    assert mask_of(np.zeros(1), {"action_mask": 2}) == 2
    assert mask_of(np.zeros(1), {}) is None
