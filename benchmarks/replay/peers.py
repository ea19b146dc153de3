"""One measurement of a peer's replay buffer on one thread, as a JSON line; runs in an environment that has the peer."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np
from rows import ACTION, BATCH, CAPACITY, OBSERVATION, SHORT_BATCH, columns, rates


def torchrl(kind: str) -> dict[str, float]:
    """TorchRL, on TensorDicts as it recommends: in memory, mapped, or with priorities."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import (
        LazyMemmapStorage,
        LazyTensorStorage,
        TensorDictPrioritizedReplayBuffer,
        TensorDictReplayBuffer,
    )

    torch.set_num_threads(1)
    storage = (LazyMemmapStorage if kind == "memory-mapped" else LazyTensorStorage)(CAPACITY)
    if kind == "prioritized":
        buffer = TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=storage, batch_size=BATCH)
    else:
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=BATCH)
    rows = TensorDict({name: torch.from_numpy(column) for name, column in columns(BATCH).items()}, [BATCH])

    def sample() -> None:
        batch = buffer.sample()
        if kind == "prioritized":
            batch["td_error"] = torch.rand(BATCH)
            buffer.update_tensordict_priority(batch)

    return rates(lambda: buffer.extend(rows), sample)


def sb3() -> dict[str, float]:
    """Stable-Baselines3, whose buffer takes one row of each environment at a time."""
    import gymnasium as gym
    import torch
    from stable_baselines3.common.buffers import ReplayBuffer

    torch.set_num_threads(1)
    spaces = (gym.spaces.Box(-1, 1, (size,)) for size in (OBSERVATION, ACTION))
    buffer = ReplayBuffer(CAPACITY, *spaces, device="cpu", n_envs=SHORT_BATCH, handle_timeout_termination=False)
    rows, infos = columns(SHORT_BATCH), [{}] * SHORT_BATCH

    def write() -> None:
        buffer.add(rows["observation"], rows["next_observation"], rows["action"], rows["reward"], rows["done"], infos)

    return rates(write, lambda: buffer.sample(BATCH), SHORT_BATCH)


def cpprb(kind: str) -> dict[str, float]:
    """cpprb, whose buffers are in C++: in batches as large as ours, in short ones, or with priorities."""
    from cpprb import PrioritizedReplayBuffer, ReplayBuffer

    batch = SHORT_BATCH if kind == "short" else BATCH
    rows = columns(batch)
    fields: dict[str, Any] = {name: {"shape": column.shape[1:] or 1} for name, column in rows.items()}
    if kind != "prioritized":
        plain = ReplayBuffer(CAPACITY, fields)
        return rates(lambda: plain.add(**rows), lambda: plain.sample(BATCH), batch)
    buffer = PrioritizedReplayBuffer(CAPACITY, fields, alpha=0.6)

    def sample() -> None:
        batch = buffer.sample(BATCH, beta=0.4)
        buffer.update_priorities(batch["indexes"], np.random.rand(BATCH))

    return rates(lambda: buffer.add(**rows), sample)


CASES = {
    "torchrl uniform": ("torchrl", lambda: torchrl("uniform")),
    "torchrl memory-mapped": ("torchrl", lambda: torchrl("memory-mapped")),
    "torchrl prioritized": ("torchrl", lambda: torchrl("prioritized")),
    "sb3 uniform, 16 rows a write": ("stable_baselines3", sb3),
    "cpprb uniform": ("cpprb", lambda: cpprb("uniform")),
    "cpprb uniform, 16 rows a write": ("cpprb", lambda: cpprb("short")),
    "cpprb prioritized": ("cpprb", lambda: cpprb("prioritized")),
}
"""What each case needs, and what it measures."""

if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    print(json.dumps(CASES[sys.argv[1]][1]()))
