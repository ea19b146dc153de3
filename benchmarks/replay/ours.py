"""One measurement of RLJob's replay buffers on one thread, as a JSON line; see the README beside this file."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
from rows import BATCH, SHORT_BATCH, columns, rates, rows_per_second

from rlruntime.spec.training.component import Component
from rlruntime.spec.training.storages import ReplayBufferConfig
from rlruntime.storages.buffer import ReplayBuffer

SLICE = 16
TRAJECTORY = 100


def buffer(capacity: int, storage: str = "Tensor", sampler: str = "Uniform", **config: Any) -> ReplayBuffer:
    """Return a buffer of parts by name."""
    parts = ReplayBufferConfig(
        storage=Component(type=storage, config={"capacity": capacity}),
        sampler=Component(type=sampler, config=config),
        batch_size=BATCH,
    )
    return ReplayBuffer.from_config(parts, seed=0)


def plain(storage: str, batch: int = BATCH) -> dict[str, float]:
    """Measure uniform draws; a batch is there once each of its columns is a tensor."""
    made = buffer(1_000_000, storage)
    rows = columns(batch)

    def sample() -> dict[str, torch.Tensor]:
        return made.sample().to("cpu")

    return rates(lambda: made.extend(rows), sample, batch)


def prioritized() -> dict[str, float]:
    """Measure prioritised draws, each with an update of the priorities of its rows."""
    made = buffer(1_000_000, sampler="Prioritized", alpha=0.6, beta=0.4)
    rows = columns(BATCH)

    def sample() -> None:
        batch = made.sample()
        batch.to("cpu")
        made.update_priorities(batch.positions, np.random.rand(BATCH))

    return rates(lambda: made.extend(rows), sample)


def slices(held: int) -> dict[str, float]:
    """Measure draws of slices from as many rows."""
    made = buffer(held, sampler="Slice", sliceLength=SLICE, endKeys=["done"])
    rows = columns(100 * TRAJECTORY)
    rows["done"][TRAJECTORY - 1 :: TRAJECTORY] = 1.0
    for _ in range(held // len(rows["done"])):
        made.extend(rows)
    return {"sample": rows_per_second(lambda: made.sample().to("cpu"), BATCH)}


CASES = {
    "uniform": lambda: plain("Tensor"),
    "uniform, 16 rows a write": lambda: plain("Tensor", SHORT_BATCH),
    "memory-mapped": lambda: plain("MemoryMapped"),
    "shared": lambda: plain("SharedTensor"),
    "prioritized": prioritized,
    "slices of 100k": lambda: slices(100_000),
    "slices of 10M": lambda: slices(10_000_000),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(CASES[sys.argv[1]]()))
