"""Batches for learners, from columns."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rlruntime.envs.protocol import EnvSpaces
from rlruntime.policies.critics import Critics
from rlruntime.storages.batch import Batch
from rlruntime.storages.layout import plan_layout

OBSERVATION = spaces.Box(-3.0, 3.0, (3,), np.float32)
BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)


def batch_of(weight: Tensor | None = None, extra: dict[str, Tensor] | None = None, **columns: Any) -> Batch:
    """Return a batch of columns ``[n, ...]``; two underscores in a name stand for a dot."""
    named = {name.replace("__", "."): np.asarray(column) for name, column in columns.items()}
    layout, num_rows = plan_layout(named)
    rows = np.zeros(num_rows, layout.struct)
    for name, column in named.items():
        rows[name] = column
    return Batch(
        layout,
        rows,
        np.arange(num_rows),
        weight=None if weight is None else weight.numpy(),
        extra=extra,
    )


def random_batch(
    space: gym.Space[Any] = BOX, num_rows: int = 32, seed: int = 0, *, weighted: bool = False, **columns: Any
) -> Batch:
    """Return random transitions over `OBSERVATION`, about a third of them terminated; ``columns`` replace others."""
    random = np.random.default_rng(seed)
    shape = (num_rows, 3)
    if isinstance(space, spaces.Discrete):
        actions = random.integers(0, space.n, num_rows)
    else:
        actions = random.uniform(-1, 1, (num_rows, *(space.shape or ()))).astype(np.float32)
    made: dict[str, Any] = {
        "observation": random.normal(size=shape).astype(np.float32),
        "action": actions,
        "next__observation": random.normal(size=shape).astype(np.float32),
        "next__reward": random.normal(size=num_rows).astype(np.float32),
        "next__terminated": random.random(num_rows) < 0.3,
        "next__truncated": random.random(num_rows) < 0.3,
    }
    weight = torch.from_numpy(random.uniform(0.2, 1.0, num_rows).astype(np.float32)) if weighted else None
    return batch_of(weight, **{**made, **columns})


def spaces_of(action: gym.Space[Any] = BOX) -> EnvSpaces:
    """Return spaces with `OBSERVATION`."""
    return EnvSpaces(OBSERVATION, action)


def set_values(critics: Critics, *values: float) -> None:
    """Make each critic say one value, whatever it sees."""
    for (_, head), value in zip(critics.towers(), values, strict=True):
        head.weight.data.zero_()
        head.bias.data.fill_(value)
