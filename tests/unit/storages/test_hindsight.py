"""Goals replaced by what was reached later in the trajectory, with the reward that this would have brought."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replay_rows import in_order, tensor_buffer

from rlruntime.errors import ConfigError
from rlruntime.spec.training.storages import (
    HindsightConfig,
    NStepConfig,
    PrioritizedSamplerConfig,
    ReplayBufferConfig,
    SliceSamplerConfig,
    UniformSamplerConfig,
)
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.hindsight import Hindsight
from rlruntime.storages.n_step import NStep
from rlruntime.storages.prioritized import PrioritizedSampler
from rlruntime.storages.samplers import Sampler, UniformSampler
from rlruntime.storages.slices import SliceSampler
from rlruntime.trainers.state_tree import load_state, save_state


def walk(lengths: list[int], num_envs: int = 1) -> dict[str, np.ndarray]:
    """Return trajectories on a line: step `t` of trajectory `k` reaches `10 k + t + 1`, and was to reach -1."""
    steps = np.concatenate([np.arange(length) for length in lengths])
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    reached = (10 * numbers + steps + 1).astype(np.float32)[:, None]
    return {
        "observation.desired_goal": np.full((len(steps), 1), -1, np.float32),
        "next.observation.desired_goal": np.full((len(steps), 1), -1, np.float32),
        "next.observation.achieved_goal": reached,
        "action": steps.astype(np.float32),
        "next.reward": np.full(len(steps), -1, np.float32),
        "next.terminated": np.zeros(len(steps), bool),
        "next.truncated": np.concatenate([np.arange(length) == length - 1 for length in lengths]),
    }


def relabelling(seed: int = 1, **config: Any) -> Hindsight:
    merged = {"reward_function": "replay_goals:reward", "share": 1.0, **config}
    return Hindsight(HindsightConfig(**merged), seed)


def buffer_with(hindsight: Hindsight, sampler: Sampler | None = None, **parts: Any) -> ReplayBuffer:
    return tensor_buffer(40, sampler=sampler or in_order(), hindsight=hindsight, **parts)


def test_with_final_the_goal_is_what_the_last_row_of_the_trajectory_reached() -> None:
    buffer = buffer_with(relabelling(strategy="Final"))
    buffer.extend(walk([3, 2]))
    batch = buffer.sample(5)
    for key in ("observation.desired_goal", "next.observation.desired_goal"):
        assert batch[key][:, 0].tolist() == [3, 3, 3, 12, 12]
    assert batch["next.reward"].tolist() == [-1, -1, 0, -1, 0]
    assert batch["relabelled"].tolist() == [True] * 5
    assert batch["next.observation.achieved_goal"][:, 0].tolist() == [1, 2, 3, 11, 12]


def test_with_future_every_row_from_this_one_on_gives_the_goal_as_often() -> None:
    buffer = buffer_with(relabelling(), UniformSampler(UniformSamplerConfig(), seed=2))
    buffer.extend(walk([4, 3]))
    batch = buffer.sample(12_000)
    goal, step = batch["observation.desired_goal"][:, 0], batch["action"]
    first = batch["next.observation.achieved_goal"][:, 0] < 10
    for at in range(4):
        counts = torch.bincount(goal[first & (step == at)].long(), minlength=5)
        assert counts[: at + 1].tolist() == [0] * (at + 1)
        share = 12_000 / 7 / (4 - at)
        assert torch.all((counts[at + 1 :] - share).abs() < 5 * share**0.5 + 5)
    assert set(goal[~first].tolist()) == {11.0, 12.0, 13.0}
    assert torch.equal(batch["next.reward"] == 0, batch["next.observation.achieved_goal"][:, 0] == goal)


def test_a_share_of_the_rows_gets_another_goal_and_the_rest_is_as_it_was_stored() -> None:
    buffer = buffer_with(relabelling(share=0.8, strategy="Final"), UniformSampler(UniformSamplerConfig(), seed=2))
    buffer.extend(walk([5, 5]))
    batch = buffer.sample(10_000)
    relabelled = batch["relabelled"]
    # 8,000 expected, standard deviation 40
    assert abs(int(relabelled.sum()) - 8000) < 5 * 40
    assert torch.equal(batch["observation.desired_goal"][:, 0] == -1, ~relabelled)
    assert torch.all(batch["next.reward"][~relabelled] == -1)
    assert buffer.storage.column("observation.desired_goal")[:10].tolist() == [[-1]] * 10


def test_the_function_gets_goals_and_columns_of_the_relabelled_rows() -> None:
    buffer = buffer_with(relabelling(reward_function="replay_goals:summed", strategy="Final"))
    buffer.extend(walk([3]))
    assert buffer.sample(3)["next.reward"].tolist() == pytest.approx([103.0, 203.1, 303.2])


def test_rows_that_reach_their_new_goal_end_their_episode_where_a_function_says_so() -> None:
    rows = walk([3])
    kept = buffer_with(relabelling(strategy="Final"))
    ended = buffer_with(relabelling(strategy="Final", terminated_function="replay_goals:terminated"))
    for buffer, expected in ((kept, [False, False, False]), (ended, [False, False, True])):
        buffer.extend(rows)
        assert buffer.sample(3)["next.terminated"].tolist() == expected


def test_trajectories_of_environments_that_take_turns_keep_their_own_goals() -> None:
    buffer = buffer_with(relabelling(strategy="Final", num_envs=2))
    columns = [walk([3, 2]), walk([5])]
    columns[1]["next.observation.achieved_goal"] += 100
    buffer.extend({name: np.stack([c[name] for c in columns], 1).reshape(10, *columns[0][name].shape[1:])
                   for name in columns[0]})  # fmt: skip
    goals = buffer.sample(10)["observation.desired_goal"][:, 0].view(5, 2)
    assert goals[:, 0].tolist() == [3, 3, 3, 12, 12]
    assert goals[:, 1].tolist() == [105] * 5


@pytest.mark.parametrize("capacity", [40, 14])
@pytest.mark.parametrize("strategy", ["Final", "Future"])
def test_trajectories_told_by_a_number_keep_their_own_goals_however_their_rows_are_mixed(
    capacity: int, strategy: str
) -> None:
    rng = np.random.default_rng(3)
    rows = walk([6, 9, 1, 8])
    numbers = np.repeat(np.arange(4), [6, 9, 1, 8])
    turns = rng.permutation(numbers)  # whose row comes next
    mixed = np.zeros(24, int)
    for number in range(4):
        mixed[np.flatnonzero(turns == number)] = np.flatnonzero(numbers == number)
    buffer = tensor_buffer(
        capacity, sampler=in_order(), hindsight=relabelling(strategy=strategy, trajectory_key="trajectory")
    )
    for low in range(0, 24, 5):
        at = mixed[low : low + 5]
        buffer.extend({**{name: column[at] for name, column in rows.items()}, "trajectory": numbers[at]})
        buffer.sampler = in_order()
        held = mixed[max(low + len(at) - capacity, 0) : low + len(at)]
        for _ in range(5):
            batch = buffer.sample(len(held))
            goals, trajectory = batch["observation.desired_goal"][:, 0].tolist(), batch["trajectory"].tolist()
            for goal, number, step in zip(goals, trajectory, batch["action"].tolist(), strict=True):
                later = rows["action"][held[numbers[held] == number]]
                reached = {10 * number + other + 1 for other in later if other >= step}
                assert goal in reached
                assert strategy == "Future" or goal == max(reached)


def test_the_newest_row_stands_for_the_end_of_a_trajectory_under_way_at_any_write_position() -> None:
    buffer = tensor_buffer(6, sampler=in_order(), hindsight=relabelling(strategy="Final"))
    rows = walk([20])
    for low in range(0, 20, 4):
        buffer.extend({name: column[low : low + 4] for name, column in rows.items()})
        buffer.sampler = in_order()
        batch = buffer.sample(6)
        assert batch["observation.desired_goal"][:, 0].tolist() == [low + 4] * len(batch)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_goals_continue_from_a_checkpoint_with_priorities(prefetch: int, tmp_path: Path) -> None:
    def make() -> ReplayBuffer:
        sampler = PrioritizedSampler(PrioritizedSamplerConfig(), seed=4)
        return buffer_with(relabelling(share=0.5), sampler, batch_size=8, prefetch=prefetch)

    first, second = make(), make()
    first.extend(walk([5, 9, 4]))
    first.update_priorities(first.sample().positions, np.arange(8.0))
    save_state(first.state_dict(), tmp_path)
    second.load_state_dict(load_state(tmp_path))
    for _ in range(5):
        one, other = first.sample(), second.sample()
        for name in one:
            assert torch.equal(one[name], other[name])
        for buffer in (first, second):
            buffer.extend(walk([3]))
    first.close()
    second.close()


def test_batches_drawn_ahead_hold_the_same_goals_as_batches_drawn_when_asked_for() -> None:
    def goals(prefetch: int) -> list[list[float]]:
        sampler = UniformSampler(UniformSamplerConfig(), seed=2)
        buffer = buffer_with(relabelling(share=0.5), sampler, batch_size=8, prefetch=prefetch)
        buffer.extend(walk([5, 9, 4]))
        drawn = [buffer.sample()["observation.desired_goal"][:, 0].tolist() for _ in range(6)]
        buffer.close()
        return drawn

    assert goals(0) == goals(3)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"achieved_key": "reached"}, "achievedKey: the rows have no such column (got 'reached')"),
        ({"goal_keys": ("next.reward",)}, "goalKeys: the column isn't of the shape of"),
        ({"reward_key": "reward"}, "rewardKey: the rows have no such column (got 'reward')"),
        (
            {"reward_function": "replay_goals:too_few"},
            "rewardFunction: the function returned the shape [6] for 5 rows",
        ),
    ],
)
def test_columns_and_functions_that_do_not_fit_are_refused(config: dict[str, Any], words: str) -> None:
    buffer = buffer_with(relabelling(**config))
    buffer.extend(walk([3, 2]))
    with pytest.raises(ConfigError) as refused:
        buffer.sample(5)
    assert str(refused.value).startswith(words)


def test_parts_that_do_not_go_with_other_goals_are_refused() -> None:
    with pytest.raises(ConfigError, match="hindsight: rewards of another goal can't be summed over steps"):
        buffer_with(relabelling(), n_step=NStep(NStepConfig(steps=3, gamma=0.9)))
    slices = SliceSampler(SliceSamplerConfig(slice_length=2), seed=1)
    with pytest.raises(ConfigError, match="hindsight: rows that come together would get different goals"):
        buffer_with(relabelling(), slices)
    config = ReplayBufferConfig.model_validate({"hindsight": {"rewardFunction": "replay_goals:no_such"}})
    with pytest.raises(ConfigError, match=r"replay\.hindsight\.rewardFunction: .*has no 'no_such'"):
        ReplayBuffer.from_config(config, seed=1)
