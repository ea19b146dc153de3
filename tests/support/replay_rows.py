"""Rows for replay buffers that tell which row they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlruntime.spec.training.storages import TensorStorageConfig, WithoutReplacementSamplerConfig
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.samplers import WithoutReplacementSampler
from rlruntime.storages.storage import TensorStorage


def numbered(first: int, last: int) -> dict[str, Any]:
    """Return rows ``first`` to ``last - 1``: every column says the row's number."""
    number = np.arange(first, last)
    return {
        "observation": np.stack([number, number + 0.5], -1).astype(np.float32),
        "action": number.astype(np.int64),
        "next.reward": number.astype(np.float32),
        "next.terminated": number % 7 == 6,
    }


def tensor_buffer(capacity: int, **parts: Any) -> ReplayBuffer:
    """Return a buffer in memory."""
    return ReplayBuffer(TensorStorage(TensorStorageConfig(capacity=capacity)), **parts)


def in_order() -> WithoutReplacementSampler:
    """Return a sampler that gives the rows from the oldest to the newest, again and again."""
    return WithoutReplacementSampler(WithoutReplacementSamplerConfig(shuffle=False), seed=0)
