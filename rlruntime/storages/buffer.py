"""`ReplayBuffer`: a storage, who writes it, and who draws from it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlruntime.errors import CheckpointError, ConfigError
from rlruntime.registry import build
from rlruntime.seeding import HINDSIGHT, stream_seed
from rlruntime.spec.training.storages import ReplayBufferConfig, UniformSamplerConfig
from rlruntime.storages import groups, mapped, prioritized_slices, staleness  # noqa: F401  (they register their names)
from rlruntime.storages.ahead import GATHER_TIMEOUT_S, AheadQueue
from rlruntime.storages.batch import Batch
from rlruntime.storages.hindsight import Hindsight
from rlruntime.storages.layout import flat_columns, plan_layout
from rlruntime.storages.lists import ListStorage
from rlruntime.storages.n_step import NStep
from rlruntime.storages.samplers import Draw, Sampler, UniformSampler, check_batch_size
from rlruntime.storages.storage import ArrayStorage, KeptRows
from rlruntime.storages.writers import ImmutableWriter, RoundRobinWriter, Writer

STATE_FORMAT = 1
ColumnTransform = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]
"""Maps columns to columns: names to tensors, which it leaves as they are."""


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
        hindsight: gives rows other goals as they are read.
        prefetch: batches that are drawn ahead.
        write_transforms: what is stored is what they make of the columns ``[n, ...]`` of new rows, one after the other.
        read_transforms: a batch is what they make of its columns ``[n, ...]``, or ``[slices, steps, ...]``. They run
            where `sample` is called, prefetched or not: what they know then is what counts. Their state isn't the
            buffer's; whoever made them saves it.

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
        hindsight: Hindsight | None = None,
        prefetch: int = 0,
        write_transforms: Sequence[ColumnTransform] = (),
        read_transforms: Sequence[ColumnTransform] = (),
    ) -> None:
        self.storage = storage
        self.sampler = UniformSampler(UniformSamplerConfig(), seed=0) if sampler is None else sampler
        self.writer = RoundRobinWriter() if writer is None else writer
        self.n_step, self.hindsight = n_step, hindsight
        self.batch_size, self.prefetch = batch_size, prefetch
        self.write_transforms, self.read_transforms = tuple(write_transforms), tuple(read_transforms)
        self._check_parts()
        self.writer.check(storage)
        self._start_anew()

    @classmethod
    def from_config(
        cls,
        config: ReplayBufferConfig,
        *,
        seed: int,
        field: str = "replay",
        write_transforms: Sequence[ColumnTransform] = (),
        read_transforms: Sequence[ColumnTransform] = (),
    ) -> ReplayBuffer:
        """Return the buffer that ``config`` describes.

        Args:
            seed: of the sampler, such as that of the stream `rlruntime.seeding.SAMPLER`; what else draws has its own
                made of it.
            field: path of the config in the manifest, for errors.
            write_transforms, read_transforms: see the class.

        Raises:
            ConfigError: an unknown part, a config that it refuses, parts that don't go together; ``config`` names
                transforms, which need spaces to be built, and none are given.
        """
        named = {
            "write": (config.transforms.write, write_transforms),
            "read": (config.transforms.read, read_transforms),
        }
        for side, (components, built) in named.items():
            if components and not built:
                raise ConfigError(
                    "transforms are built for the spaces of an environment, which a buffer doesn't know",
                    field=f"{field}.transforms.{side}",
                    remedy=f"build them, and give {side}_transforms",
                )
        hindsight = None
        if config.hindsight is not None:
            hindsight = Hindsight(config.hindsight, stream_seed(seed, HINDSIGHT), field=f"{field}.hindsight")
        storage = build("storage", config.storage, field=f"{field}.storage")
        sampler = build("sampler", config.sampler, seed, field=f"{field}.sampler")
        writer = build("writer", config.writer, field=f"{field}.writer")
        try:
            return cls(
                storage,
                sampler,
                writer,
                batch_size=config.batch_size,
                n_step=None if config.n_step is None else NStep(config.n_step),
                hindsight=hindsight,
                prefetch=config.prefetch,
                write_transforms=write_transforms,
                read_transforms=read_transforms,
            )
        except ConfigError as error:
            raise error.within(field) from None

    def _check_parts(self) -> None:
        if self.batch_size is not None:
            check_batch_size(self.batch_size, self.sampler.rows_together)
        followers: list[Any] = [part for part in (self.n_step, self.hindsight) if part is not None]
        if self.sampler.needs_order:
            followers.insert(0, self.sampler)
        if followers and not self.writer.keeps_order:
            names = type(followers[0]).__name__, type(self.writer).__name__
            raise ConfigError(f"{names[0]} can't follow {names[1]}", field="writer", remedy="use a RoundRobin writer")
        if self.sampler.consumes and self.prefetch:
            raise ConfigError(
                "rows that are consumed can't be drawn ahead: they would be lost with this process",
                field="prefetch",
                value=self.prefetch,
                remedy="set it to 0",
            )
        if self.hindsight is not None and self.n_step is not None:
            raise ConfigError(
                "rewards of another goal can't be summed over steps that pursued the old one",
                field="hindsight",
                remedy="leave out nStep",
            )
        if self.hindsight is not None and self.sampler.rows_together > 1:
            raise ConfigError(
                "rows that come together would get different goals",
                field="hindsight",
                remedy="use a sampler of single rows",
            )
        if isinstance(self.storage, ListStorage) and (self.write_transforms or self.read_transforms):
            raise ConfigError(
                "transforms change columns, and a List storage has none", field="storage", remedy="use a Tensor storage"
            )

    def _start_anew(self) -> None:
        self._lock = threading.RLock()
        self._ahead = AheadQueue(self.prefetch)
        self._kept = KeptRows()

    def __getstate__(self) -> dict[str, Any]:
        """Travel to another process; batches that were drawn ahead stay here."""
        return {**self.__dict__, "_lock": None, "_ahead": None, "_kept": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_anew()

    def __len__(self) -> int:
        """Return the number of rows at hand."""
        with self.storage.reading():
            return self.storage.window.size

    @property
    def num_written(self) -> int:
        """Rows written ever, those that were written over included."""
        with self.storage.reading():
            return self.storage.window.end

    def check_columns(self, rows: Mapping[str, Any]) -> None:
        """Refuse rows that lack a column which a setting of the sampler, the writer, `nStep` or hindsight names; else
        that shows at the first draw. Nothing is written.

        Args:
            rows: as `extend` takes them; how many doesn't matter.

        Raises:
            ConfigError: they do.
        """
        layout, _ = plan_layout(self._as_written(rows))
        for name, part in (
            ("sampler.config", self.sampler),
            ("writer.config", self.writer),
            ("nStep", self.n_step),
            ("hindsight", self.hindsight),
        ):
            try:
                if part is not None:
                    part.check_columns(layout)
            except ConfigError as error:
                raise error.within(name) from None

    def extend(self, rows: Any) -> np.ndarray:
        """Write rows: a dict of arrays or tensors ``[n, ...]``, nested or with dotted keys, or a TensorDict ``[n]``.
        A List storage takes a list of objects.

        Returns:
            the position of each row, ``[n]`` int64; -1 for a row that the writer left out.

        Raises:
            ConfigError: the rows don't fit those that are held.
        """
        storage = self.storage
        matched, num_rows = storage.matched(self._as_written(rows))
        if num_rows == 0:
            return np.zeros(0, np.int64)
        with self._lock:
            self._ahead.finish_copies()
            storage.enter_writing()
            try:
                return self.writer.write(storage, matched, num_rows)
            finally:
                storage.leave_writing()

    def _as_written(self, rows: Any) -> Any:
        """Return rows behind the transforms of the write side."""
        if not self.write_transforms:
            return rows
        columns = {name: _tensor(column) for name, column in flat_columns(rows).items()}
        return _transformed(columns, self.write_transforms)

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
        batch = self._next(size)
        if self.read_transforms:
            batch = batch.with_columns(_transformed(batch.to("cpu"), self.read_transforms))
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

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """Return everything: rows, writer, sampler with its randomness, batches drawn ahead.

        It is a tree of dicts, lists, arrays and scalars, as checkpoints hold.

        Args:
            copy: False for views of the rows in place of a copy. They are good until rows are written, by whatever
                process: for a checkpoint that is on the disk before this process goes on.
        """
        return self._state(None, copy=copy)

    def snapshot(self) -> dict[str, Any]:
        """Return `state_dict` in memory that the buffer keeps: it costs a copy of the rows written since the last one.

        It holds until the next call, which changes it: nothing may read it then. The memory is that of the rows at
        hand, once more.
        """
        return self._state(self._kept, copy=True)

    def _state(self, kept: KeptRows | None, *, copy: bool) -> dict[str, Any]:
        with self._lock:
            self._ahead.finish_copies()
            with self.storage.reading():
                state = {
                    "format": STATE_FORMAT,
                    "storage": self.storage.state_dict(kept, copy=copy),
                    "writer": {"type": type(self.writer).__name__, "state": self.writer.state_dict()},
                    "sampler": {"type": type(self.sampler).__name__, "state": self.sampler.state_dict(self.storage)},
                    "ahead": self._ahead.state_dict(self.storage),
                }
                if self.hindsight is not None:
                    state["hindsight"] = self.hindsight.state_dict()
                return state

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
            self._ahead.finish_copies()
            self.storage.check_state(state["storage"])
            with self.storage.writing():
                self.storage.load_state_dict(state["storage"])
                self.writer.load_state_dict(state["writer"]["state"], self.storage)
                self.sampler.load_state_dict(state["sampler"]["state"], self.storage)
                if self.n_step is not None:
                    self.n_step.restart()
                if self.hindsight is not None:
                    self.hindsight.restart(state.get("hindsight"))
            self._ahead.load_state_dict(state["ahead"], self.storage)

    def close(self) -> None:
        """End the copying thread. The rows stay; may be called twice."""
        with self._lock:
            self._ahead.close()

    def _next(self, size: int) -> Batch:
        """Return the next batch as it was stored, but for what is made of several rows."""
        with self._lock:
            if self.sampler.consumes:
                return self._consume(size)
            if not self.prefetch:
                with self.storage.reading():
                    return self._gather(self._draw(size))
            ahead = self._ahead.next(size, lambda: self._drawn(size), self._gather_beside)
        batch = ahead.gathered.result(GATHER_TIMEOUT_S)
        if not self.sampler.may_give(ahead.draw, batch) or batch is None:
            with self._lock, self.storage.reading():
                return self._gather(self._draw(size))
        return batch

    def _draw(self, size: int) -> Draw:
        """Choose rows, and all else that chance has to say of them; within ``reading()``."""
        draw = self.sampler.draw(self.storage, size)
        if self.n_step is not None:
            self.n_step.follow(self.storage)
        if self.hindsight is not None:
            draw = replace(draw, goals=self.hindsight.choose(self.storage, draw.positions))
        return draw

    def _drawn(self, size: int) -> Draw:
        with self.storage.reading():
            return self._draw(size)

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
        extra: dict[str, Tensor] | None = None
        if self.n_step is not None:
            extra = self.n_step.apply(self.storage, draw.positions, rows)
        elif self.hindsight is not None:
            extra = self.hindsight.apply(self.storage, draw, rows)
        return self.storage.batch(rows, draw.positions, weight=draw.weight, leading=draw.leading, extra=extra)

    def _gather_beside(self, draw: Draw) -> Batch | None:
        """Return the rows of a draw, or None where another buffer of the same rows has written over some."""
        with self.storage.reading():
            start, end = self.storage.window
            if draw.positions.min(initial=end) < start:
                return None
            return self._gather(draw)


def _transformed(columns: dict[str, Tensor], transforms: Sequence[ColumnTransform]) -> dict[str, Tensor]:
    for transform in transforms:
        columns = dict(transform(columns))
    return columns


def _tensor(column: Any) -> Tensor:
    """Return a column as a tensor of the same memory, of a copy where that can't be written."""
    if isinstance(column, np.ndarray) and not column.flags.writeable:
        column = column.copy()
    return torch.as_tensor(column)


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
