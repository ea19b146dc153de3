"""Transforms before and behind the cut, in a collector: what is acted on, what is learned from, and resume."""

from __future__ import annotations

from typing import Any

import torch

from rlruntime.collectors.inline import InlineCollector
from rlruntime.policies.build import build_policy
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import EnvConfig
from rlruntime.transforms.staging import make_transformed_env, split_transforms

TRANSFORMS = [
    {"type": "RewardScaling", "config": {"scale": 0.5}},
    {"type": "FrameSkip", "config": {"frames": 2}},
    {"type": "CatFrames", "config": {"frames": 2}},
    {"type": "StepCounter", "config": {"limit": 30}},
    {"type": "ObservationNorm"},
]
CONFIG = EnvConfig.model_validate({"id": "CartPole-v1", "num_envs": 3, "transforms": TRANSFORMS})
SMALL = Component(type="MLP", config={"hiddenSizes": [8]})


def make_collector() -> InlineCollector:
    env = make_transformed_env(CONFIG)
    policy = build_policy(env.spaces, SMALL, [part.component for part in split_transforms(CONFIG.transforms).policy])
    return InlineCollector(env, policy, num_steps=16)


def test_rollout_holds_what_environments_show_and_rewards_to_learn_from() -> None:
    collector = make_collector()
    rollout = collector.collect()
    observation: Any = rollout.observation
    assert observation["observation"].shape == (17, 3, 8)
    assert observation["step_count"].shape == (17, 3, 1)
    torch.testing.assert_close(rollout.reward, rollout.env_reward * 0.5)
    # Two frames a decision, each worth 1; an episode that ends in the first of them has 1.
    assert set(rollout.env_reward[rollout.valid].tolist()) <= {1.0, 2.0}
    norm: Any = collector.policy.transforms[1]
    assert float(norm.moments[0].count) == 0
    collector.update_transforms()
    assert float(norm.moments[0].count) == rollout.num_valid
    collector.close()


def test_collector_goes_on_from_its_state_bit_for_bit() -> None:
    first = make_collector()
    first.collect()
    state, environments = first.state_dict(), first.env.snapshot()
    assert environments is not None
    second = make_collector()
    second.policy.load_state_dict(first.policy.state_dict())
    second.load_state_dict(state)
    second.env.restore(environments)
    one, two = first.collect(), second.collect()
    for name in ("action", "reward", "terminated", "truncated", "valid", "behaviour_log_prob", "value"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name
    for key, leaf in one.observation.items():  # type: ignore[union-attr]
        assert torch.equal(leaf, two.observation[key]), key  # type: ignore[index]
    first.close()
    second.close()
