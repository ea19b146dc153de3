"""The one protocol of vector environments, and the slot that a step is written into.

`B` is the number of environment copies. Autoreset is Gymnasium's NEXT_STEP: the step after an episode ended ignores its
action, resets that copy, and yields the first observation of the new episode with reward 0 and ``valid`` False. The
observation of the step that ended the episode is thus its true final one. Imports NumPy and Gymnasium, never torch, so
that worker processes start fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import gymnasium as gym
import numpy as np

Observation = np.ndarray | dict[str, np.ndarray]
"""One array ``[B, ...]``, or for Dict spaces a flat dict of them; nested keys are joined with dots (``camera.rgb``)."""


@dataclass(slots=True)
class StepSlot:
    """Where one step of all copies is written; its arrays are views into the caller's memory.

    Attributes:
        observation: ``[B, ...]`` after the step, float32 for floating-point spaces, else the space's own dtype.
        reward: ``[B]`` float32.
        terminated, truncated: ``[B]`` bool; never merged.
        valid: ``[B]`` bool; False for the ignored step that resets.
        action_mask: ``[B, n]`` bool of the actions allowed after the step, or None; `n` is the number of actions
            (Discrete) or their sum over the dimensions (MultiDiscrete).
    """

    observation: Observation
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    action_mask: np.ndarray | None = None


@dataclass(frozen=True)
class EnvSpaces:
    """What the policy sees of an environment.

    Attributes:
        observation: space of one copy, after `observationKeys` and without the action mask; Box, Discrete,
            MultiDiscrete, MultiBinary, or a flat Dict of these with dotted keys.
        action: space of one copy as the environment takes it: Discrete, MultiDiscrete or Box.
        action_mask: where masks come from, or None where the environment has none.
        action_mask_size: `n` of the mask; 0 without one.
    """

    observation: gym.Space[Any]
    action: gym.Space[Any]
    action_mask: Literal["observation", "info"] | None = None
    action_mask_size: int = 0


class VectorEnv(Protocol):
    """Copies of one environment that are stepped together. Not thread-safe.

    Attributes:
        num_envs: `B`.
        spaces: what the policy sees.
        backend: the resolved name, such as ``Loop``.
    """

    num_envs: int
    spaces: EnvSpaces
    backend: str

    def reset(self, seeds: Sequence[int], out: StepSlot) -> None:
        """Reset every copy, copy `i` with ``seeds[i]``, and write first observations (reward 0, ``valid`` False)."""

    def step(self, actions: np.ndarray, out: StepSlot) -> None:
        """Step every copy with ``actions [B, ...]`` and write the outcome.

        Raises:
            EnvironmentFault: a copy raised, its process died or hung, or it returned NaN; names the copy and the step.
        """

    def snapshot(self) -> list[bytes] | None:
        """Return the state of each copy, or None where it can't be had. ``restore`` of it continues bit for bit."""

    def restore(self, snapshots: Sequence[bytes]) -> None:
        """Continue from what ``snapshot`` returned. The observation of that moment is the caller's to keep."""

    def close(self) -> None:
        """Free processes and memory. May be called twice; never hangs, never raises."""


def allocate_slot(spaces: EnvSpaces, num_envs: int) -> StepSlot:
    """Return a slot of its own memory, all zeros."""
    return StepSlot(
        observation=allocate_observation(spaces.observation, (num_envs,)),
        reward=np.zeros(num_envs, np.float32),
        terminated=np.zeros(num_envs, np.bool_),
        truncated=np.zeros(num_envs, np.bool_),
        valid=np.zeros(num_envs, np.bool_),
        action_mask=np.ones((num_envs, spaces.action_mask_size), np.bool_) if spaces.action_mask else None,
    )


def allocate_observation(
    space: gym.Space[Any],
    leading: tuple[int, ...],
    allocate: Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray] = np.zeros,
) -> Observation:
    """Return zeros of shape ``leading + space.shape`` for the space, or for each leaf of a flat Dict space."""
    if isinstance(space, gym.spaces.Dict):
        return {key: allocate(leading + leaf_shape(leaf), leaf_dtype(leaf)) for key, leaf in space.spaces.items()}
    return allocate(leading + leaf_shape(space), leaf_dtype(space))


def leaf_shape(space: gym.Space[Any]) -> tuple[int, ...]:
    """Return the shape of one element: ``()`` for Discrete."""
    return tuple(space.shape or ())


def leaf_dtype(space: gym.Space[Any]) -> np.dtype[Any]:
    """Return the dtype an observation is stored in: float32 for every float, else the space's own."""
    dtype = np.dtype(space.dtype)
    return np.dtype(np.float32) if dtype.kind == "f" else dtype
