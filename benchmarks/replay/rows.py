"""What every case of this benchmark measures: the same rows, in the same amounts, in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

CAPACITY, HELD = 1_000_000, 400_000
BATCH, SHORT_BATCH = 256, 16
OBSERVATION, ACTION = 17, 6
_WARM_UP, _SECONDS = 200, 1.0


def columns(num_rows: int) -> dict[str, np.ndarray]:
    """Return rows as an off-policy learner of HalfCheetah has them, float32."""
    rng = np.random.default_rng(0)
    return {
        "observation": rng.standard_normal((num_rows, OBSERVATION)).astype(np.float32),
        "action": rng.standard_normal((num_rows, ACTION)).astype(np.float32),
        "reward": rng.standard_normal(num_rows).astype(np.float32),
        "done": np.zeros(num_rows, np.float32),
        "next_observation": rng.standard_normal((num_rows, OBSERVATION)).astype(np.float32),
    }


def rows_per_second(call: Callable[[], Any], rows: int) -> float:
    """Return the rows that a second of calls handles, each of which handles ``rows``."""
    for _ in range(_WARM_UP):
        call()
    times, begun = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < _SECONDS:
        for _ in range(50):
            call()
        times += 50
    return rows * times / elapsed


def rates(write: Callable[[], Any], sample: Callable[[], Any], batch: int = BATCH) -> dict[str, float]:
    """Return the rates of writing ``batch`` rows a call and of sampling `BATCH`, from as many rows for every case."""
    for _ in range(HELD // batch):
        write()
    sampled = rows_per_second(sample, BATCH)
    for _ in range((CAPACITY - HELD) // batch + 1):  # from here on new rows take the place of old ones
        write()
    return {"write": rows_per_second(write, batch), "sample": sampled}
