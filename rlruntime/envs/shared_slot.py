"""One step of all copies in memory that processes share: actions in, a `StepSlot` out.

The memory has no name (a memory file, or an unlinked temporary file where the system has none), so nothing is left
behind however a process ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from rlruntime.envs.protocol import EnvSpaces, Observation, StepSlot, leaf_dtype, leaf_shape

_ALIGN = 64


@dataclass(frozen=True)
class SharedField:
    """One array: ``[B, ...]`` at a byte offset."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int


@dataclass(frozen=True)
class SharedLayout:
    """Where the arrays lie; the same in every process.

    Attributes:
        fields: the arrays; those of the observation are called ``observation`` or ``observation:<key>``.
        size: bytes in all.
    """

    fields: tuple[SharedField, ...]
    size: int


def plan_shared_layout(spaces: EnvSpaces, num_envs: int) -> SharedLayout:
    """Return the layout for these spaces. Integer actions are int64, as the policy counts them."""
    arrays: list[tuple[str, tuple[int, ...], np.dtype[Any]]] = []
    action = spaces.action
    action_dtype = np.dtype(action.dtype) if isinstance(action, gs.Box) else np.dtype(np.int64)
    arrays.append(("action", leaf_shape(action), action_dtype))
    if isinstance(spaces.observation, gs.Dict):
        for key, leaf in spaces.observation.spaces.items():
            arrays.append((f"observation:{key}", leaf_shape(leaf), leaf_dtype(leaf)))
    else:
        arrays.append(("observation", leaf_shape(spaces.observation), leaf_dtype(spaces.observation)))
    arrays.append(("reward", (), np.dtype(np.float32)))
    arrays += [(name, (), np.dtype(np.bool_)) for name in ("terminated", "truncated", "valid")]
    if spaces.action_mask:
        arrays.append(("action_mask", (spaces.action_mask_size,), np.dtype(np.bool_)))
    fields, offset = [], 0
    for name, shape, dtype in arrays:
        fields.append(SharedField(name, (num_envs, *shape), dtype.str, offset))
        size = int(np.prod((num_envs, *shape))) * dtype.itemsize
        offset += -(-size // _ALIGN) * _ALIGN
    return SharedLayout(tuple(fields), max(offset, _ALIGN))


def open_shared_memory(name: str) -> int:
    """Return the descriptor, for the caller to close, of new shared memory of size 0; ``name`` is for listings only."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def map_arrays(descriptor: int, layout: SharedLayout) -> dict[str, np.ndarray]:
    """Return the arrays by name; the mapping lives as long as they do."""
    memory = mmap.mmap(descriptor, layout.size)
    return {
        field.name: np.ndarray(field.shape, np.dtype(field.dtype), buffer=memory, offset=field.offset)
        for field in layout.fields
    }


def slot_of(arrays: dict[str, np.ndarray], rows: slice) -> StepSlot:
    """Return the slot of some copies, as views."""
    observation: Observation
    if "observation" in arrays:
        observation = arrays["observation"][rows]
    else:
        prefix = "observation:"
        observation = {
            name.removeprefix(prefix): array[rows] for name, array in arrays.items() if name.startswith(prefix)
        }
    mask = arrays.get("action_mask")
    return StepSlot(
        observation=observation,
        reward=arrays["reward"][rows],
        terminated=arrays["terminated"][rows],
        truncated=arrays["truncated"][rows],
        valid=arrays["valid"][rows],
        action_mask=None if mask is None else mask[rows],
    )


def copy_slot(source: StepSlot, target: StepSlot) -> None:
    """Copy all arrays of a slot into another of the same spaces."""
    if isinstance(source.observation, dict):
        assert isinstance(target.observation, dict)
        for key, array in source.observation.items():
            target.observation[key][...] = array
    else:
        assert not isinstance(target.observation, dict)
        target.observation[...] = source.observation
    target.reward[...] = source.reward
    target.terminated[...] = source.terminated
    target.truncated[...] = source.truncated
    target.valid[...] = source.valid
    if source.action_mask is not None:
        assert target.action_mask is not None
        target.action_mask[...] = source.action_mask
