"""`ReplayBuffer`: a storage, who writes it, and who draws from it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlruntime.errors import CheckpointError, ConfigError
from rlruntime.registry import build
from rlruntime.spec.training.storages import ReplayBufferConfig, UniformSamplerConfig
from rlruntime.storages import mapped, prioritized, slices  # noqa: F401  (they register what configs name)
from rlruntime.storages.batch import Batch
from rlruntime.storages.lists import ListStorage
from rlruntime.storages.n_step import NStep
from rlruntime.storages.samplers import Draw, Sampler, UniformSampler
from rlruntime.storages.storage import ArrayStorage
from rlruntime.storages.writers import ImmutableWriter, RoundRobinWriter, Writer

STATE_FORMAT = 1
GATHER_TIMEOUT_S = 120.0


@dataclass
class _Ahead:
    """A batch that was drawn ahead, and whose rows are being copied."""

    batch_size: int
    draw: Draw
    gathered: Future[Batch | None]


class ReplayBuffer:
    """Rows to learn from; safe to use from several threads.

    Everything is drawn by the thread that calls `sample`. With ``prefetch`` a batch is drawn that many calls before it
    is given, and a thread copies its rows meanwhile; `extend` waits for such copies, so that what a batch holds never
    depends on how fast they are.

    Args:
        storage: where rows lie; allocated at the first batch.
        sampler: which rows are drawn; by default any, with seed 0.
        writer: where new rows go; by default in place of the oldest.
        batch_size: rows of a batch; None where every `sample` says it.
        n_step: sums rewards over several steps as rows are read.
        prefetch: batches that are drawn ahead.

    Raises:
        ConfigError: parts that don't go together.
    """

    def __init__(
        self,
        storage: ArrayStorage,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        *,
        batch_size: int | None = None,
        n_step: NStep | None = None,
        prefetch: int = 0,
    ) -> None:
        self.storage = storage
        self.sampler = UniformSampler(UniformSamplerConfig(), seed=0) if sampler is None else sampler
        self.writer = RoundRobinWriter() if writer is None else writer
        self.n_step, self.batch_size, self.prefetch = n_step, batch_size, prefetch
        followers = [self.sampler] * self.sampler.needs_order + [n_step] * (n_step is not None)
        if followers and not self.writer.keeps_order:
            names = type(followers[0]).__name__, type(self.writer).__name__
            raise ConfigError(f"{names[0]} can't follow {names[1]}", remedy="use a RoundRobin writer")
        self.writer.check(storage)
        if self.sampler.consumes and prefetch:
            raise ConfigError(
                "rows that are consumed can't be drawn ahead: they would be lost with this process",
                field="prefetch",
                value=prefetch,
                remedy="set it to 0",
            )
        self._lock = threading.RLock()
        self._ahead: deque[_Ahead] = deque()
        self._executor: ThreadPoolExecutor | None = None

    @classmethod
    def from_config(cls, config: ReplayBufferConfig, *, seed: int, field: str = "replay") -> ReplayBuffer:
        """Return the buffer that ``config`` describes.

        Args:
            seed: of the sampler.
            field: path of the config in the manifest, for errors.

        Raises:
            ConfigError: an unknown part, a config that it refuses, parts that don't go together.
        """
        return cls(
            build("storage", config.storage, field=f"{field}.storage"),
            build("sampler", config.sampler, seed, field=f"{field}.sampler"),
            build("writer", config.writer, field=f"{field}.writer"),
            batch_size=config.batch_size,
            n_step=None if config.n_step is None else NStep(config.n_step),
            prefetch=config.prefetch,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Travel to another process; batches that were drawn ahead stay here."""
        return {**self.__dict__, "_lock": None, "_ahead": None, "_executor": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._ahead, self._executor = threading.RLock(), deque(), None

    def __len__(self) -> int:
        """Return the number of rows at hand."""
        with self.storage.reading():
            return self.storage.window.size

    @property
    def num_written(self) -> int:
        """Rows written ever, those that were written over included."""
        with self.storage.reading():
            return self.storage.window.end

    def extend(self, rows: Any) -> np.ndarray:
        """Write rows: a dict of arrays or tensors ``[n, ...]``, nested or with dotted keys, or a TensorDict ``[n]``.
        A List storage takes a list of objects.

        Returns:
            the position of each row, ``[n]`` int64; -1 for a row that the writer left out.

        Raises:
            ConfigError: the rows don't fit those that are held.
        """
        columns, num_rows = self.storage.matched(rows)
        if num_rows == 0:
            return np.zeros(0, np.int64)
        with self._lock:
            self._finish_copies()
            with self.storage.writing():
                return self.writer.write(self.storage, columns, num_rows)

    def add(self, row: Any) -> int:
        """Write one row, without the dimension of rows; return its position."""
        rows = [row] if isinstance(self.storage, ListStorage) else _with_row_dimension(row)
        return int(self.extend(rows)[0])

    def sample(self, batch_size: int | None = None) -> Batch:
        """Return rows in memory of their own.

        Args:
            batch_size: overrides the buffer's; not possible with prefetch.

        Raises:
            TooFewRowsError: the sampler needs more rows than there are.
        """
        size = self.batch_size if batch_size is None else batch_size
        if size is None:
            raise ConfigError("how many rows to sample isn't said", remedy="give batch_size here or to the buffer")
        with self._lock:
            if self.sampler.consumes:
                return self._consume(size)
            if not self.prefetch:
                with self.storage.reading():
                    return self._gather(self._draw(size))
            if self._ahead and self._ahead[0].batch_size != size:
                raise ConfigError(
                    f"the next batch of {self._ahead[0].batch_size} rows is drawn already",
                    value=size,
                    remedy="sample one size with prefetch",
                )
            while len(self._ahead) <= self.prefetch:
                self._draw_ahead(size)
            ahead = self._ahead.popleft()
        batch = ahead.gathered.result(GATHER_TIMEOUT_S)
        if batch is None:
            with self._lock, self.storage.reading():
                return self._gather(self._draw(size))
        return batch

    def update_priorities(self, positions: np.ndarray, priorities: np.ndarray | Tensor) -> None:
        """Set the priority of rows.

        Args:
            positions: ``[n]``, those of a batch; rows that were written over since are left out.
            priorities: ``[n]`` of at least 0, such as the magnitude of the temporal-difference error.

        Raises:
            TypeError: the sampler has no priorities.
            ValueError: a priority is negative or no number.
        """
        if isinstance(priorities, Tensor):
            priorities = priorities.detach().cpu().numpy()
        with self._lock, self.storage.reading():
            self.sampler.update_priorities(self.storage, positions, priorities)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of everything: rows, writer, sampler with its randomness, batches drawn ahead.

        It is a tree of dicts, lists, arrays and scalars, as checkpoints hold.
        """
        with self._lock:
            self._finish_copies()
            with self.storage.reading():
                return {
                    "format": STATE_FORMAT,
                    "storage": self.storage.state_dict(),
                    "writer": {"type": type(self.writer).__name__, "state": self.writer.state_dict()},
                    "sampler": {"type": type(self.sampler).__name__, "state": self.sampler.state_dict()},
                    "ahead": [_batch_state(ahead, batch, self.storage) for ahead, batch in self._copied()],
                }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what ``state_dict`` described; the next batches are those that it would have given.

        Raises:
            CheckpointError: it is of another format, another sampler or writer, or of rows that don't fit. The buffer
                is then as it was.
        """
        if state.get("format") != STATE_FORMAT:
            raise CheckpointError(
                "the replay buffer of the checkpoint has an unknown format", value=state.get("format")
            )
        for name, part in (("writer", self.writer), ("sampler", self.sampler)):
            if state[name]["type"] != type(part).__name__ and not isinstance(part, ImmutableWriter):
                raise CheckpointError(
                    f"the replay buffer of the checkpoint has the {name} {state[name]['type']}, "
                    f"this one has {type(part).__name__}"
                )
        with self._lock:
            self._finish_copies()
            self.storage.check_state(state["storage"])
            with self.storage.writing():
                self.storage.load_state_dict(state["storage"])
                self.writer.load_state_dict(state["writer"]["state"], self.storage)
                self.sampler.load_state_dict(state["sampler"]["state"], self.storage)
                if self.n_step is not None:
                    self.n_step.restart()
            self._ahead = deque(_batch_from_state(item, self.storage) for item in state["ahead"])

    def close(self) -> None:
        """End the copying thread. The rows stay; may be called twice."""
        with self._lock:
            executor, self._executor = self._executor, None
            if executor is not None:
                executor.shutdown()

    def _draw(self, size: int) -> Draw:
        draw = self.sampler.draw(self.storage, size)
        if self.n_step is not None:
            self.n_step.follow(self.storage)
        return draw

    def _consume(self, size: int) -> Batch:
        """Return rows, and let go of them last: a process that ends before has taken none."""
        with self.storage.writing():
            draw = self._draw(size)
            batch = self._gather(draw)
            end = self.storage.window.end
            self.storage.move_window(int(draw.positions[-1]) + 1, end)
        return batch

    def _gather(self, draw: Draw) -> Batch:
        """Return the rows of a draw; within ``reading()``."""
        rows = self.storage.gather(draw.positions)
        extra = None if self.n_step is None else self.n_step.apply(self.storage, draw.positions, rows)
        return self.storage.batch(rows, draw.positions, weight=draw.weight, leading=draw.leading, extra=extra)

    def _draw_ahead(self, size: int) -> None:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="replay-copy")
        with self.storage.reading():
            draw = self._draw(size)
        self._ahead.append(_Ahead(size, draw, self._executor.submit(self._gather_beside, draw)))

    def _gather_beside(self, draw: Draw) -> Batch | None:
        """Return the rows of a draw, or None where another process has written over some of them."""
        with self.storage.reading():
            if (
                self.storage.is_shared
                and draw.positions.min(initial=self.storage.window.end) < self.storage.window.start
            ):
                return None
            return self._gather(draw)

    def _copied(self) -> list[tuple[_Ahead, Batch]]:
        """Return the batches drawn ahead that will be given."""
        batches = [(ahead, ahead.gathered.result(GATHER_TIMEOUT_S)) for ahead in self._ahead]
        return [(ahead, batch) for ahead, batch in batches if batch is not None]

    def _finish_copies(self) -> None:
        """Wait for copies under way, so that they hold the rows of the time when they were drawn."""
        for ahead in self._ahead:
            ahead.gathered.exception(GATHER_TIMEOUT_S)


def _with_row_dimension(row: Mapping[str, Any]) -> dict[str, Any]:
    if getattr(row, "batch_size", None) == torch.Size([]):
        return {str(key): value for key, value in row.unsqueeze(0).items()}  # type: ignore[attr-defined]
    lifted: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            lifted[key] = _with_row_dimension(value)
        else:
            lifted[key] = value[None] if isinstance(value, Tensor) else np.asarray(value)[None]
    return lifted


def _batch_state(ahead: _Ahead, batch: Batch, storage: ArrayStorage) -> dict[str, Any]:
    """Return a batch that was drawn ahead with its rows, which may have been written over since."""
    return {
        "batchSize": ahead.batch_size,
        "positions": batch.positions.copy(),
        "weight": None if batch.weight is None else batch.weight.numpy().copy(),
        "leading": list(batch.leading),
        "rows": storage.packed(batch.rows),
        "extra": {name: column.clone() for name, column in batch.extra.items()},
    }


def _batch_from_state(item: Mapping[str, Any], storage: ArrayStorage) -> _Ahead:
    positions, weight = np.array(item["positions"]), item["weight"]
    draw = Draw(positions, None if weight is None else np.array(weight), tuple(item["leading"]))
    extra = {name: column.clone() for name, column in item["extra"].items()}
    rows = storage.unpacked(item["rows"])
    gathered: Future[Batch | None] = Future()
    gathered.set_result(storage.batch(rows, positions, weight=draw.weight, leading=draw.leading, extra=extra))
    return _Ahead(item["batchSize"], draw, gathered)
