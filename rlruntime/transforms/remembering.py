"""The base of transforms that remember something of each copy's episode, in an environment alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlruntime.envs.protocol import EnvSpaces, StepSlot
from rlruntime.errors import CheckpointError, ConfigError
from rlruntime.transforms.base import FIELD, Copies, Leaves, Seat, Transform, space_leaves

WHOLE = "observation"
"""Name of an observation that was no Dict, in the Dict that it becomes a part of."""


class RememberingTransform(Transform):
    """Base of these. What it remembers are buffers ``[B, ...]`` in `state_dict`, and part of environment snapshots.

    A subclass makes them in `bind` with `remember`, finds them in ``held``, and begins anew in
    `after_step` for the copies in ``begins``: those that are reset, and no others.
    """

    seats: frozenset[Seat] = frozenset({"environment"})

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, np.ndarray] = {}

    @property
    def rewrites(self) -> bool:
        return True

    def remember(self, name: str, value: np.ndarray) -> None:
        """Keep ``value [B, ...]`` as a buffer, and in ``held`` as an array that shares its memory."""
        self.register_buffer(name, torch.from_numpy(value))
        self.held[name] = value

    def memory(self) -> Mapping[str, np.ndarray]:
        return self.held

    def load_memory(self, memory: Mapping[str, np.ndarray]) -> None:
        own = self.held
        for name in sorted(own.keys() | memory.keys()):
            theirs, ours = memory.get(name), own.get(name)
            if theirs is None or ours is None or theirs.shape != ours.shape or theirs.dtype != ours.dtype:
                raise CheckpointError(
                    f"the snapshot holds another {type(self).__name__}: its {name} {_words(theirs)}, "
                    f"this one's {_words(ours)}",
                    field=FIELD,
                    remedy="use the transforms that it was made with",
                )
            ours[...] = theirs

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        for name in self.held:  # a copy's arrays and buffers share memory again
            self.held[name] = self.get_buffer(name).numpy()

    def _apply(self, fn: Any, recurse: bool = True) -> RememberingTransform:
        """Stay where environments are, on the CPU."""
        return self


class AddedKey(RememberingTransform):
    """Base of those that add one key to the observation and leave the rest as it is."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key

    def bind(self, spaces: EnvSpaces, copies: Copies) -> EnvSpaces:
        observation, name = spaces.observation, type(self).__name__
        parts = dict(observation.spaces) if isinstance(observation, gym.spaces.Dict) else {WHOLE: observation}
        if self.key in parts:
            raise ConfigError(
                f"{name} would add a key that the observation has already",
                field=FIELD,
                value=self.key,
                remedy="give it another key",
            )
        parts[self.key] = self.start(spaces, copies)
        return EnvSpaces(gym.spaces.Dict(parts), spaces.action, spaces.action_mask, spaces.action_mask_size)

    def start(self, spaces: EnvSpaces, copies: Copies) -> gym.Space[Any]:
        """Make what is remembered of each copy, and return the space of the key."""
        raise NotImplementedError

    def passes(self, space: gym.Space[Any]) -> dict[str, str]:
        return {key or WHOLE: key for key in space_leaves(space)}

    def after_step(self, seen: Leaves, out: Leaves, row: StepSlot, begins: np.ndarray | None) -> None:
        self.follow(row, begins, out[self.key])

    def follow(self, row: StepSlot, begins: np.ndarray | None, out: np.ndarray) -> None:
        """Take in one step of all copies, and write the key's values; see `Transform.after_step`."""
        raise NotImplementedError


def column(num_envs: int, fill: float, dtype: Any) -> np.ndarray:
    """Return ``[B, 1]`` of one number."""
    return np.full((num_envs, 1), fill, dtype)


def _words(array: np.ndarray | None) -> str:
    return "is absent" if array is None else f"is {array.dtype} {array.shape}"
