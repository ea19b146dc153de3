"""`Loop`: copies of one environment stepped one after the other in this process.

What it leaves out of a step is what makes it fast: results go straight into the caller's arrays, no ``info`` is merged,
and the outermost wrappers ``TimeLimit`` and ``OrderEnforcing`` are stepped past. Their work is done here for all copies
at once (an episode is truncated when its own count of steps reaches the limit), their state is kept right for
snapshots, and ``reset`` still goes through them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

from rlruntime.envs import faults
from rlruntime.envs.protocol import StepSlot
from rlruntime.envs.quick_spaces import quicken
from rlruntime.envs.snapshots import SnapshotProof, capture, prove_snapshot, restore
from rlruntime.envs.spaces import MASK_KEY, EnvLayout, flat_mask, leaf_value
from rlruntime.errors import CheckpointError

Call = Callable[[Any], tuple[Any, Any, Any, Any, Any]]


class LoopVectorEnv:
    """Copies of one environment, stepped in this process; see `VectorEnv` for the protocol.

    Args:
        make_env: returns a new copy; called once per copy, and twice more when a snapshot is first asked for.
        layout: what the policy sees.
        num_envs: `B`.
        first_copy: index of the first copy in error messages, for a part of a larger set.

    Raises:
        ConfigError: what ``make_env`` raises.
    """

    backend = "Loop"

    def __init__(
        self, make_env: Callable[[], gym.Env[Any, Any]], layout: EnvLayout, num_envs: int, *, first_copy: int = 0
    ) -> None:
        self.num_envs, self.spaces = num_envs, layout.spaces
        self._make_env, self._layout, self._first_copy = make_env, layout, first_copy
        self._envs: list[gym.Env[Any, Any]] = []
        try:
            for _ in range(num_envs):
                env = make_env()
                quicken(env)
                self._envs.append(env)
        except BaseException:
            self.close()
            raise
        self._single_array = not isinstance(layout.spaces.observation, gs.Dict)
        floats = tuple(leaf.key for leaf in layout.leaves if np.dtype(leaf.space.dtype).kind == "f")
        self._finite = faults.FiniteCheck(floats)
        self._mask_source = layout.spaces.action_mask
        self._has_start = bool(np.any(layout.action_start))
        peeled = [_peel(env) for env in self._envs]
        self._steps: list[Call] = [env.step for env, _ in peeled]
        self._resets: list[Call] = [_reset_call(env) for env in self._envs]
        self._limiters = [limiters for _, limiters in peeled]
        self._limits = [min((w._max_episode_steps for w in limiters), default=math.inf) for limiters in self._limiters]
        self._calls = list(self._steps)
        self._pending: list[int] = []
        self._total_steps = 0
        self._episode_start = [0] * num_envs
        self._deadlines: list[float] = [math.inf] * num_envs
        self._next_deadline: float = math.inf
        self._rewards: list[float] = [0.0] * num_envs
        self._proof: SnapshotProof | None = None

    @property
    def envs(self) -> tuple[gym.Env[Any, Any], ...]:
        """The copies, for who draws them; whoever steps one breaks what this class knows of it."""
        return tuple(self._envs)

    def reset(self, seeds: Sequence[int], out: StepSlot) -> None:
        """Reset copy `i` with ``seeds[i]`` and write first observations.

        Raises:
            EnvironmentFault: a copy raised, or its first observation has NaN or infinity.
        """
        if len(seeds) != self.num_envs:
            raise ValueError(f"{self.num_envs} copies need as many seeds, got {len(seeds)}")
        results: list[tuple[Any, Any]] = []
        for i, env in enumerate(self._envs):
            try:
                observation, info = env.reset(seed=int(seeds[i]))
                self._write_row(out, i, observation)
            except Exception as error:
                raise faults.raised_in_reset(self._first_copy + i, error) from error
            results.append((observation, info))
        out.reward.fill(0.0)
        out.terminated.fill(False)
        out.truncated.fill(False)
        out.valid.fill(False)
        self._pending = []
        self._calls = list(self._steps)
        self._total_steps = 0
        self._episode_start = [0] * self.num_envs
        self._set_deadlines()
        if self._mask_source:
            self._write_masks(out, results, ended=())
        self._check_finite(out)

    def step(self, actions: np.ndarray, out: StepSlot) -> None:
        """Step every copy with ``actions [B, ...]`` and write the outcome; see `VectorEnv.step`."""
        calls, rewards = self._calls, self._rewards
        observations: Any = out.observation if self._single_array else None
        ended: list[tuple[int, Any, Any]] = []
        results: list[tuple[Any, Any]] | None = [] if self._mask_source else None
        self._total_steps = total = self._total_steps + 1
        i, env_actions = 0, self._to_env_actions(actions)
        try:
            for i, action in enumerate(env_actions):
                observation, rewards[i], terminated, truncated, info = calls[i](action)
                if observations is not None:
                    observations[i] = observation
                else:
                    self._write_row(out, i, observation)
                if terminated or truncated:
                    ended.append((i, terminated, truncated))
                if results is not None:
                    results.append((observation, info))
            out.reward[:] = rewards
        except Exception as error:
            raise self._explain(i, error) from error
        out.terminated.fill(False)
        out.truncated.fill(False)
        out.valid.fill(True)
        if self._pending:
            self._after_resets(out)
        for i, terminated, truncated in ended:
            out.terminated[i], out.truncated[i] = terminated, truncated
            self._begin_pending(i)
        if total >= self._next_deadline:
            self._apply_time_limits(out)
        if results is not None:
            self._write_masks(out, results, ended=self._pending)
        if not self._finite.passes(out):
            self._check_finite(out)

    def snapshot(self) -> list[bytes] | None:
        """Return each copy's state, or None where the environment's state is not proven to be restorable."""
        if self._proof is None:
            self._proof = prove_snapshot(self._make_env)
        if not self._proof.restorable:
            return None
        pending = frozenset(self._pending)
        blobs: list[bytes] = []
        for i, env in enumerate(self._envs):
            elapsed = self._total_steps - self._episode_start[i]
            for limiter in self._limiters[i]:
                limiter._elapsed_steps = elapsed
            extra = {"elapsed": elapsed, "total": self._total_steps, "pending": i in pending}
            blob = capture(env, extra, baseline=self._proof.baseline, full=self._proof.full)
            if blob is None:
                return None
            blobs.append(blob)
        return blobs

    def restore(self, snapshots: Sequence[bytes]) -> None:
        """Continue from what ``snapshot`` returned, in this or another process.

        Raises:
            CheckpointError: the snapshots are of another number of copies or of another environment.
        """
        if len(snapshots) != self.num_envs:
            raise CheckpointError(
                f"the snapshot holds {len(snapshots)} environment copies, the job has {self.num_envs}"
            )
        self._pending, self._calls = [], list(self._steps)
        for i, env in enumerate(self._envs):
            extra = restore(env, snapshots[i])
            self._total_steps = extra["total"]
            self._episode_start[i] = extra["total"] - extra["elapsed"]
            if extra["pending"]:
                self._begin_pending(i)
        self._set_deadlines()

    def close(self) -> None:
        """Close every copy. May be called twice; never raises."""
        envs, self._envs = self._envs, []
        for env in envs:
            with contextlib.suppress(Exception):  # a copy that can't close must not keep the others from it
                env.close()

    def _to_env_actions(self, actions: np.ndarray) -> list[Any]:
        """Return one action per copy; arrays are fresh, so that a copy may keep its own."""
        if len(actions) != self.num_envs:
            raise ValueError(f"{self.num_envs} copies need as many actions, got shape {actions.shape}")
        layout = self._layout
        if self._has_start:
            actions = actions + layout.action_start
        return list(actions.astype(layout.action_dtype))

    def _write_row(self, out: StepSlot, i: int, observation: Any) -> None:
        target = out.observation
        if isinstance(target, dict):
            for leaf in self._layout.leaves:
                target[leaf.key][i] = leaf_value(observation, leaf.path)
        else:
            target[i] = observation

    def _begin_pending(self, i: int) -> None:
        """The episode of copy `i` ended: its next step resets."""
        self._pending.append(i)
        self._calls[i] = self._resets[i]
        self._deadlines[i] = math.inf

    def _after_resets(self, out: StepSlot) -> None:
        """The copies that were pending were reset by this step."""
        total = self._total_steps
        for i in self._pending:
            out.valid[i] = False
            self._calls[i] = self._steps[i]
            self._episode_start[i] = total
            self._deadlines[i] = total + self._limits[i]
        self._next_deadline = min(self._next_deadline, *(self._deadlines[i] for i in self._pending))
        self._pending = []

    def _set_deadlines(self) -> None:
        """A deadline is the total step at which a copy's episode reaches its time limit."""
        starts = zip(self._episode_start, self._limits, strict=True)
        self._deadlines = [start + limit for start, limit in starts]
        for i in self._pending:
            self._deadlines[i] = math.inf
        self._next_deadline = min(self._deadlines)

    def _apply_time_limits(self, out: StepSlot) -> None:
        total = self._total_steps
        ended = frozenset(self._pending)
        for i, start in enumerate(self._episode_start):
            if total - start >= self._limits[i]:
                out.truncated[i] = True
                if i not in ended:
                    self._begin_pending(i)
        self._next_deadline = min(self._deadlines)

    def _write_masks(self, out: StepSlot, results: list[tuple[Any, Any]], *, ended: Sequence[int]) -> None:
        """Write action masks; where the episode ended none is needed, and all actions count as allowed."""
        masks = out.action_mask
        assert masks is not None
        for i, (observation, info) in enumerate(results):
            if self._mask_source == "observation":
                masks[i] = flat_mask(observation[MASK_KEY])
            elif MASK_KEY in info:
                masks[i] = flat_mask(info[MASK_KEY])
            elif i in ended:
                masks[i] = True
            else:
                raise faults.mask_missing(*self._place(i))
        stuck = np.flatnonzero(~allows_something(masks, self.spaces.action))
        for i in stuck.tolist():
            if i not in ended:
                raise faults.no_action_allowed(*self._place(i))
            masks[i] = True

    def _place(self, i: int) -> tuple[int, int, int]:
        return self._first_copy + i, self._total_steps - self._episode_start[i], self._total_steps

    def _explain(self, i: int, error: Exception) -> Exception:
        if i in self._pending:
            return faults.raised_in_reset(self._first_copy + i, error)
        return faults.raised_in_step(*self._place(i), error)

    def _check_finite(self, out: StepSlot) -> None:
        if not self._finite.passes(out):
            copy, what, values = self._finite.first_offender(out)
            raise faults.not_finite(*self._place(copy), what, values)


def allows_something(masks: np.ndarray, action_space: gym.Space[Any]) -> np.ndarray:
    """Return ``[B]`` bool: whether each mask ``[B, n]`` allows an action, in every dimension of a MultiDiscrete."""
    if isinstance(action_space, gs.MultiDiscrete):
        starts = np.concatenate([[0], np.cumsum(action_space.nvec.reshape(-1))[:-1]])
        return np.asarray(np.logical_or.reduceat(masks, starts, axis=1).all(axis=1))
    return np.asarray(masks.any(axis=1))


def _peel(env: gym.Env[Any, Any]) -> tuple[gym.Env[Any, Any], list[Any]]:
    """Return the environment whose ``step`` is called, and the TimeLimits that were stepped past."""
    limiters: list[Any] = []
    while type(env) in (gym.wrappers.TimeLimit, gym.wrappers.OrderEnforcing):
        assert isinstance(env, gym.Wrapper)
        if isinstance(env, gym.wrappers.TimeLimit):
            limiters.append(env)
        env = env.env
    return env, limiters


def _reset_call(env: gym.Env[Any, Any]) -> Call:
    def reset(_action: Any) -> tuple[Any, Any, Any, Any, Any]:
        observation, info = env.reset()
        return observation, 0.0, False, False, info

    return reset
