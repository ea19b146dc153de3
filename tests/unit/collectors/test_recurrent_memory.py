"""What a policy remembers while it collects, and that it is forgotten where an episode begins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from recurrent_networks import KINDS, show_counts
from torch import Tensor

from rlruntime.collectors.inline import InlineCollector
from rlruntime.collectors.rollout import Rollout, take_columns
from rlruntime.envs.make import make_vector_env
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.build import build_policy
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import EnvConfig
from rlruntime.spec.training.ppo import PPOConfig
from rlruntime.trainers.algorithms.batches import SequenceBatch
from rlruntime.trainers.algorithms.ppo import PPO

COUNTING = EnvConfig(factory="toy_envs:CountingEnv", kwargs={"length": 3, "end": "truncated"}, num_envs=2)


def counting(name: str = "Counter", **arguments: Any) -> InlineCollector:
    env = make_vector_env(COUNTING)
    policy = build_policy(env.spaces, Component(type=f"recurrent_networks:{name}"))
    show_counts(policy)
    return InlineCollector(env, policy, **{"num_steps": 6, **arguments})


def column(tensor: Tensor) -> list[float]:
    assert torch.equal(tensor[:, 0], tensor[:, 1])
    return tensor[:, 0].tolist()


@pytest.mark.parametrize("name", ["Counter", "UnwillingCounter"])
def test_state_is_forgotten_exactly_where_an_episode_begins_and_kept_between_rollouts(name: str) -> None:
    collector = counting(name)
    rollout = collector.collect()
    assert column(rollout.valid) == [True, True, True, False, True, True]
    assert column(rollout.is_init) == [True, False, False, False, True, False]
    # The row that resets sees the final observation, whose value the episode that was cut off goes on with.
    assert column(rollout.params[..., 0]) == [1, 2, 3, 4, 1, 2]
    assert column(rollout.value) == [1, 2, 3, 4, 1, 2, 3]
    assert {key: rows.tolist() for key, rows in rollout.initial_state.items()} == {
        "actor.seen": [[0.0], [0.0]],
        "critic.seen": [[0.0], [0.0]],
    }
    rollout = collector.collect()
    assert column(rollout.valid) == [True, False, True, True, True, False]
    assert column(rollout.params[..., 0]) == [3, 4, 1, 2, 3, 4]
    assert column(rollout.value) == [3, 4, 1, 2, 3, 4, 1]
    assert [rows.tolist() for rows in rollout.initial_state.values()] == [[[2.0], [2.0]]] * 2
    rollout = collector.collect()  # the first rows begin episodes: nothing is remembered
    assert column(rollout.params[..., 0]) == [1, 2, 3, 4, 1, 2]
    assert [rows.tolist() for rows in rollout.initial_state.values()] == [[[0.0], [0.0]]] * 2
    collector.close()


def test_random_steps_are_remembered_like_chosen_ones() -> None:
    collector = counting(random_frames=1)
    rollout = collector.collect()
    assert column(rollout.value) == [1, 2, 3, 4, 1, 2, 3]
    rollout = collector.collect()
    assert column(rollout.params[..., 0]) == [3, 4, 1, 2, 3, 4]
    assert column(rollout.value) == [3, 4, 1, 2, 3, 4, 1]
    collector.close()


def test_new_episodes_at_reset_and_restart_remember_nothing() -> None:
    collector = counting()
    collector.collect()
    state = collector.state_dict()
    collector.reset()
    assert column(collector.collect().params[..., 0]) == [1, 2, 3, 4, 1, 2]
    collector.restart_episodes([5, 6], state)
    assert column(collector.collect().params[..., 0]) == [1, 2, 3, 4, 1, 2]
    collector.close()


def test_a_collector_goes_on_from_its_state_with_what_it_remembered() -> None:
    collector, other = counting(), counting(num_steps=4)
    collector.collect()
    state, snapshots = collector.state_dict(), collector.snapshot()
    assert snapshots is not None
    other.load_state_dict(state)
    other.restore(snapshots)
    collector.collect()  # what was saved doesn't move with it
    rollout = other.collect()
    assert column(rollout.params[..., 0]) == [3, 4, 1, 2]
    assert column(rollout.value) == [3, 4, 1, 2, 3]
    collector.close()
    other.close()


@pytest.mark.parametrize("transforms", [[], [Component(type="ObservationNorm")]], ids=["raw", "normalised"])
@pytest.mark.parametrize("kind", KINDS)
def test_ratio_is_one_and_values_agree_before_the_first_optimiser_step(kind: str, transforms: list[Component]) -> None:
    env = make_vector_env(EnvConfig(id="CartPole-v1", num_envs=4))
    policy = build_policy(env.spaces, Component.model_validate(KINDS[kind]), transforms, seed=1)
    collector = InlineCollector(env, policy, num_steps=40, seed=2)
    algorithm = PPO(PPOConfig(num_steps=40, minibatch_size=80, learning_rate=1e-2), policy)
    for _ in range(4):  # from the second rollout on there is something to remember, and parameters have learned
        rollout = collector.collect()
        batch = algorithm.batch(rollout)
        assert isinstance(batch, SequenceBatch)
        rows = batch.rows
        assert 0 < rollout.num_valid == rows.num_items < 160
        params, value = batch.forward(algorithm.gradient)
        log_prob = policy.distribution.evaluate(params, rows.action, None).log_prob
        ratio = (log_prob - rows.behaviour_log_prob).exp()
        assert float((ratio - 1).abs().max()) < 1e-5
        torch.testing.assert_close(value, rows.behaviour_value, rtol=1e-5, atol=1e-5)
        assert float(log_prob.std()) > 0
        algorithm.update(rollout)
        collector.update_transforms()
    collector.close()


def test_columns_that_are_taken_from_a_rollout_bring_their_state() -> None:
    collector = counting()
    collector.collect()
    rollout = collector.collect()
    policy = collector.policy
    assert isinstance(policy, ActorCritic)
    rollout.initial_state["actor.seen"][1] = 7.0
    part = rollout.columns(1, 2)
    assert part.initial_state["actor.seen"].tolist() == [[7.0]]
    taken = Rollout(policy.spaces, policy.distribution, 6, 1, state_shapes=policy.state_shapes)
    take_columns(rollout, torch.tensor([1]), taken)
    assert taken.initial_state["actor.seen"].tolist() == [[7.0]]
    collector.close()
