"""`ReplayMixture`: batches from several buffers, such as demonstrations beside what the policy did itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlruntime.errors import CheckpointError, ConfigError
from rlruntime.storages.batch import Batch
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.layout import RowLayout
from rlruntime.storages.lists import ListStorage
from rlruntime.storages.samplers import check_batch_size

STATE_FORMAT = 1
_NO_COLUMNS = RowLayout((), 8)


class ReplayMixture:
    """Several buffers that are drawn from together; rows are written into each by itself.

    Of a batch each buffer gives its share, rounded up or down at random so that it is met exactly on average. A batch
    has the column ``source``, the number of the buffer that a row is from, int64; its positions say that too, so that
    priorities go back to the buffers that take any.

    Args:
        buffers: by name, in the order of their numbers; none of them with prefetch.
        weights: share of each buffer, in any unit; all alike by default. May be changed as training goes on.
        batch_size: rows of a batch; None where every `sample` says it.
        seed: of the rounding.

    Raises:
        ConfigError: no buffer, weights that are none, parts that don't go together.
    """

    def __init__(
        self,
        buffers: Mapping[str, ReplayBuffer],
        weights: Mapping[str, float] | None = None,
        *,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self.buffers = dict(buffers)
        self.weights = dict.fromkeys(self.buffers, 1.0) if weights is None else dict(weights)
        self.batch_size = batch_size
        self.rng = np.random.Generator(np.random.PCG64(seed))
        if not self.buffers:
            raise ConfigError("a mixture needs at least one buffer")
        together = {buffer.sampler.rows_together for buffer in self.buffers.values()}
        if len(together) > 1:
            raise ConfigError("the buffers of a mixture must draw slices or groups of one length", value=together)
        self._together = together.pop()
        for name, buffer in self.buffers.items():
            if buffer.prefetch:
                raise ConfigError(
                    "a buffer of a mixture can't draw ahead: how many rows it gives isn't known before",
                    field=name,
                    value=buffer.prefetch,
                    remedy="set prefetch to 0",
                )
            if isinstance(buffer.storage, ListStorage):
                raise ConfigError("a List storage has no columns to mix", field=name, remedy="use a Tensor storage")
        self._shares()

    @property
    def names(self) -> list[str]:
        """The buffers by number."""
        return list(self.buffers)

    def __len__(self) -> int:
        """Return the number of rows at hand in all buffers."""
        return sum(len(buffer) for buffer in self.buffers.values())

    def sample(self, batch_size: int | None = None) -> Batch:
        """Return rows in memory of their own, those of the first buffer first.

        Args:
            batch_size: overrides the mixture's.

        Raises:
            TooFewRowsError: a buffer has too few rows for its share.
            ConfigError: the buffers hold different columns.
        """
        size = self.batch_size if batch_size is None else batch_size
        if size is None:
            raise ConfigError("how many rows to sample isn't said", remedy="give batch_size here or to the mixture")
        check_batch_size(size, self._together)
        borders = np.floor(np.cumsum(self._shares()) * (size // self._together) + self.rng.random()).astype(int)
        borders[-1] = size // self._together
        counts = np.diff(borders, prepend=0) * self._together
        numbers = np.flatnonzero(counts)
        buffers = list(self.buffers.values())
        parts = [buffers[number].sample(int(counts[number])) for number in numbers]
        return self._joined(parts, numbers)

    def update_priorities(self, positions: np.ndarray, priorities: np.ndarray | Tensor) -> None:
        """Set the priority of rows in those buffers that take any.

        Args:
            positions: ``[n]``, those of a batch.
            priorities: ``[n]``, or one for each slice of the batch.

        Raises:
            TypeError: no buffer has priorities.
        """
        if isinstance(priorities, Tensor):
            priorities = priorities.detach().cpu().numpy()
        if not any(buffer.sampler.has_priorities for buffer in self.buffers.values()):
            raise TypeError("no buffer of the mixture has priorities; use a Prioritized sampler")
        positions = np.asarray(positions).reshape(-1, self._together)
        priorities = np.asarray(priorities).reshape(len(positions), -1)
        sources = positions[:, 0] % len(self.buffers)
        for number, buffer in enumerate(self.buffers.values()):
            own = sources == number
            if buffer.sampler.has_priorities and own.any():
                buffer.update_priorities((positions[own] // len(self.buffers)).reshape(-1), priorities[own].reshape(-1))

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state of all buffers, the weights and the randomness."""
        states = {name: buffer.state_dict() for name, buffer in self.buffers.items()}
        return self._state(states)

    def snapshot(self) -> dict[str, Any]:
        """Return `state_dict` in memory that the buffers keep; see `ReplayBuffer.snapshot`."""
        return self._state({name: buffer.snapshot() for name, buffer in self.buffers.items()})

    def _state(self, states: dict[str, Any]) -> dict[str, Any]:
        rng = self.rng.bit_generator.state
        return {"format": STATE_FORMAT, "rng": rng, "weights": dict(self.weights), "buffers": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what ``state_dict`` described.

        Raises:
            CheckpointError: it is of another format, of other buffers, or of rows that don't fit.
        """
        if state.get("format") != STATE_FORMAT:
            raise CheckpointError("the mixture of the checkpoint has an unknown format", value=state.get("format"))
        if list(state["buffers"]) != self.names:
            raise CheckpointError(f"the checkpoint has the buffers {list(state['buffers'])}, this mixture {self.names}")
        for name, buffer in self.buffers.items():
            buffer.load_state_dict(state["buffers"][name])
        self.weights = dict(state["weights"])
        self.rng.bit_generator.state = state["rng"]

    def close(self) -> None:
        """Close all buffers; may be called twice."""
        for buffer in self.buffers.values():
            buffer.close()

    def _shares(self) -> np.ndarray:
        if self.weights.keys() != self.buffers.keys():
            raise ConfigError(
                f"there must be a weight for each of {', '.join(self.buffers)}", field="weights", value=self.weights
            )
        weights = np.array([self.weights[name] for name in self.buffers], np.float64)
        if not (weights.min() >= 0 and 0 < weights.sum() < np.inf):
            raise ConfigError("weights must be at least 0, and not all 0", field="weights", value=self.weights)
        shares: np.ndarray = weights / weights.sum()
        return shares

    def _joined(self, parts: Sequence[Batch], numbers: np.ndarray) -> Batch:
        """Return batches as one, whose columns lie by themselves."""
        names = dict.fromkeys(name for part in parts for name in part)
        columns = {name: _joined_column(name, parts) for name in names}
        rows_of = [len(part) for part in parts]
        source = np.repeat(numbers, rows_of)
        positions = np.concatenate([part.positions for part in parts]) * len(self.buffers) + source
        leading = (sum(part.leading[0] for part in parts), *parts[0].leading[1:])
        weight = None
        if any(part.weight is not None for part in parts):
            weights = [torch.ones(len(part)) if part.weight is None else part.weight for part in parts]
            weight = torch.cat(weights).numpy()
        joined = Batch(
            _NO_COLUMNS, np.zeros(len(source), _NO_COLUMNS.struct), positions, weight=weight, leading=leading
        )
        return joined.with_columns({**columns, "source": torch.from_numpy(source).view(leading)})


def _joined_column(name: str, parts: Sequence[Batch]) -> Tensor:
    if not all(name in part for part in parts):
        raise ConfigError("a column is held by some buffers of a mixture, and not by others", value=name)
    columns = [part[name] for part in parts]
    kinds = {(column.dtype, column.shape[len(part.leading) :]) for column, part in zip(columns, parts, strict=True)}
    if len(kinds) > 1:
        raise ConfigError(f"the buffers of a mixture hold different kinds of {name!r}", value=kinds)
    return torch.cat(columns)
