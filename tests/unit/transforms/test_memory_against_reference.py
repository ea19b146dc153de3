"""What transforms remember, beside a plain account of each copy's episode, for any lengths and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rlruntime.envs.protocol import EnvSpaces, StepSlot, allocate_slot
from rlruntime.spec.training.transforms import (
    ActionHistoryConfig,
    CatFramesConfig,
    RewardSumConfig,
    StepCounterConfig,
    TimeMaxPoolConfig,
)
from rlruntime.transforms.environment import TransformedEnv
from rlruntime.transforms.episodes import RewardSum, StepCounter
from rlruntime.transforms.frames import ActionHistory, CatFrames, TimeMaxPool

SHAPE = (2, 3)
SPACES = EnvSpaces(spaces.Box(-9, 9, SHAPE, np.float32), spaces.Discrete(5))


class Scripted:
    """A vector environment whose rows are given: where each copy begins an episode, what it shows, what it brings."""

    backend = "Scripted"

    def __init__(self, begins: np.ndarray, seed: int) -> None:
        steps, self.num_envs = begins.shape
        rng = np.random.default_rng(seed)
        self.spaces, self.begins, self.time = SPACES, begins, 0
        self.shown = rng.integers(-9, 10, (steps, self.num_envs, *SHAPE)).astype(np.float32)
        self.rewards = np.where(begins, 0, rng.integers(-3, 4, begins.shape)).astype(np.float32)

    def reset(self, seeds: Sequence[int], out: StepSlot) -> None:
        self.time = 0
        self._write(out)

    def step(self, actions: np.ndarray, out: StepSlot) -> None:
        self.time += 1
        self._write(out)

    def snapshot(self) -> list[bytes] | None:
        return [str(self.time).encode()] * self.num_envs

    def restore(self, snapshots: Sequence[bytes]) -> None:
        self.time = int(snapshots[0])

    def close(self) -> None:
        """Do nothing."""

    def _write(self, out: StepSlot) -> None:
        np.copyto(out.observation, self.shown[self.time])  # type: ignore[arg-type]
        out.reward[:] = self.rewards[self.time]
        out.valid[:] = ~self.begins[self.time]


@st.composite
def scripts(draw: st.DrawFn) -> np.ndarray:
    num_envs, steps = draw(st.integers(1, 3)), draw(st.integers(2, 12))
    flags = draw(st.lists(st.booleans(), min_size=num_envs * (steps - 1), max_size=num_envs * (steps - 1)))
    later = np.array(flags, np.bool_).reshape(steps - 1, num_envs)
    return np.concatenate([np.ones((1, num_envs), np.bool_), later])


@settings(max_examples=40, deadline=None)
@given(scripts(), st.integers(1, 4), st.sampled_from([0, 1, -1, -2]), st.sampled_from(["Repeat", "Zeros"]), st.data())
def test_memory_is_that_of_each_copys_own_episode(
    begins: np.ndarray, frames: int, dim: int, padding: Any, data: st.DataObject
) -> None:
    env = Scripted(begins, seed=7)
    keys = ("observation",)
    behind = TransformedEnv(
        env,
        [
            StepCounter(StepCounterConfig(), SPACES.observation),
            RewardSum(RewardSumConfig(), SPACES.observation),
            ActionHistory(ActionHistoryConfig(length=2), SPACES.observation),
            lambda seen: CatFrames(
                CatFramesConfig(frames=frames, dim=dim, padding=padding, keys=keys), seen.observation
            ),
        ],
    )
    pool = TransformedEnv(Scripted(begins, 7), [TimeMaxPool(TimeMaxPoolConfig(frames=frames), SPACES.observation)])
    steps, num_envs = begins.shape
    cut = data.draw(st.integers(0, steps - 1))  # where the environment is put into a snapshot and back
    actions = np.random.default_rng(1).integers(0, 5, (steps, num_envs))
    slot, pooled = allocate_slot(behind.spaces, num_envs), allocate_slot(pool.spaces, num_envs)
    first = np.zeros(num_envs, np.int64)
    for time in range(steps):
        if time == 0:
            behind.reset(range(num_envs), slot)
            pool.reset(range(num_envs), pooled)
        else:
            behind.step(actions[time], slot)
            pool.step(actions[time], pooled)
        if time == cut:
            snapshot = behind.snapshot()
            assert snapshot is not None
            behind.restore(snapshot)
        seen: Any = slot.observation
        for copy in range(num_envs):
            first[copy] = time if begins[time, copy] else first[copy]
            start = int(first[copy])
            assert seen["step_count"][copy] == time - start
            assert seen["episode_reward"][copy] == env.rewards[start + 1 : time + 1, copy].sum()
            taken = [-1, -1, *actions[start + 1 : time + 1, copy].tolist()][-2:]
            assert seen["action_history"][copy].tolist() == taken
            shown = [env.shown[t, copy] for t in range(start, time + 1)]
            before = shown[0] if padding == "Repeat" else np.zeros(SHAPE, np.float32)
            window = [*[before] * frames, *shown][-frames:]
            np.testing.assert_array_equal(seen["observation"][copy], np.concatenate(window, dim))
            np.testing.assert_array_equal(pooled.observation[copy], np.max(shown[-frames:], axis=0))  # type: ignore[index]
