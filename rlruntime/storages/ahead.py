"""Batches that are drawn before they are asked for, and copied by a thread meanwhile.

They are drawn by whoever asks for batches, so that which rows they hold doesn't depend on the thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlruntime.errors import ConfigError
from rlruntime.storages.batch import Batch
from rlruntime.storages.samplers import Draw
from rlruntime.storages.storage import ArrayStorage

GATHER_TIMEOUT_S = 120.0


@dataclass
class Ahead:
    """A batch that was drawn ahead, and whose rows are being copied; None where they were written over."""

    batch_size: int
    draw: Draw
    gathered: Future[Batch | None]


class AheadQueue:
    """The batches drawn ahead, next one first.

    Args:
        depth: how many there are.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._queue: deque[Ahead] = deque()
        self._executor: ThreadPoolExecutor | None = None

    def next(self, batch_size: int, draw: Callable[[], Draw], gather: Callable[[Draw], Batch | None]) -> Ahead:
        """Return the next batch, after drawing as many others as are ahead.

        Args:
            batch_size: rows of a batch.
            draw: chooses the rows of one.
            gather: copies them; called in the thread.

        Raises:
            ConfigError: it was drawn in another size.
        """
        if self._queue and self._queue[0].batch_size != batch_size:
            raise ConfigError(
                f"the next batch of {self._queue[0].batch_size} rows is drawn already",
                value=batch_size,
                remedy="sample one size with prefetch",
            )
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="replay-copy")
        while len(self._queue) <= self.depth:
            drawn = draw()
            self._queue.append(Ahead(batch_size, drawn, self._executor.submit(gather, drawn)))
        return self._queue.popleft()

    def finish_copies(self) -> None:
        """Wait for copies under way, so that they hold the rows of the time when they were drawn."""
        for ahead in self._queue:
            ahead.gathered.exception(GATHER_TIMEOUT_S)

    def state_dict(self, storage: ArrayStorage) -> list[Any]:
        """Return the batches that will be given, with their rows, which may have been written over since."""
        batches = [(ahead, ahead.gathered.result(GATHER_TIMEOUT_S)) for ahead in self._queue]
        return [_batch_state(ahead, batch, storage) for ahead, batch in batches if batch is not None]

    def load_state_dict(self, state: Iterable[Mapping[str, Any]], storage: ArrayStorage) -> None:
        """Hold the batches that ``state_dict`` returned."""
        self._queue = deque(_batch_from_state(item, storage) for item in state)

    def close(self) -> None:
        """End the thread; may be called twice, and another use starts it anew."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()


def _batch_state(ahead: Ahead, batch: Batch, storage: ArrayStorage) -> dict[str, Any]:
    return {
        "batchSize": ahead.batch_size,
        "positions": batch.positions.copy(),
        "weight": None if batch.weight is None else batch.weight.numpy().copy(),
        "leading": list(batch.leading),
        "rows": storage.packed(batch.rows),
        "extra": {name: column.flatten(0, len(batch.leading) - 1).clone() for name, column in batch.extra.items()},
    }


def _batch_from_state(item: Mapping[str, Any], storage: ArrayStorage) -> Ahead:
    positions, weight = np.array(item["positions"]), item["weight"]
    draw = Draw(positions, None if weight is None else np.array(weight), tuple(item["leading"]))
    extra = {name: column.clone() for name, column in item["extra"].items()}
    rows = storage.unpacked(item["rows"])
    gathered: Future[Batch | None] = Future()
    gathered.set_result(storage.batch(rows, positions, weight=draw.weight, leading=draw.leading, extra=extra))
    return Ahead(item["batchSize"], draw, gathered)
