"""What a buffer gives: rows that were copied out together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlruntime.storages.layout import RowLayout

if TYPE_CHECKING:
    from tensordict import TensorDict


class Batch:
    """Rows in memory of their own. ``batch["next.reward"]`` is a view of one column; nothing is copied until ``to``.

    Attributes:
        layout: where the columns lie in a row.
        positions: ``[n]`` int64, the position of each row, for `ReplayBuffer.update_priorities`.
        weight: ``[n]`` float32 importance weights of a prioritised draw, or None.
        leading: dimensions before those of a value: ``(n,)``, or ``(slices, steps)``.
        extra: columns that were made as rows were read; they come before stored ones of the same name.
    """

    __slots__ = ("_names", "_rows", "extra", "layout", "leading", "positions", "weight")

    def __init__(
        self,
        layout: RowLayout,
        rows: np.ndarray,
        positions: np.ndarray,
        *,
        weight: np.ndarray | None = None,
        leading: tuple[int, ...] | None = None,
        extra: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.layout, self.positions = layout, positions
        self.leading = (len(positions),) if leading is None else leading
        self._rows = rows if leading is None else rows.reshape(leading)
        self._names: Sequence[str] | None = None
        self.weight = None if weight is None else torch.from_numpy(weight)
        self.extra = {name: column.reshape(*self.leading, *column.shape[1:]) for name, column in (extra or {}).items()}

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, name: str) -> Tensor:
        """Return ``[*leading, ...]``; the elements of a row are neighbours, the rows are not.

        Raises:
            KeyError: there is no such column.
        """
        if self.extra and name in self.extra:
            return self.extra[name]
        if self._names is not None:
            raise KeyError(name)
        return self.layout.by_name[name].as_tensor(self._rows[name])

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        """Return the names of the columns."""
        if self._names is not None:
            return list(self._names)
        return [*self.layout.by_name, *(name for name in self.extra if name not in self.layout.by_name)]

    @property
    def rows(self) -> np.ndarray:
        """The packed rows as they were copied, ``[*leading]`` of `RowLayout.struct`."""
        return self._rows

    def with_columns(self, columns: Mapping[str, Tensor]) -> Batch:
        """Return these rows with other columns ``[*leading, ...]``, and no others.

        Raises:
            ValueError: one isn't of as many rows.
        """
        rank = len(self.leading)
        for name, column in columns.items():
            if tuple(column.shape[:rank]) != self.leading:
                raise ValueError(f"the column {name!r} has the shape {list(column.shape)} in {list(self.leading)} rows")
        changed = type(self)(self.layout, self._rows, self.positions)
        changed.leading, changed.weight = self.leading, self.weight
        changed.extra, changed._names = dict(columns), list(columns)
        return changed

    def to(self, device: torch.device | str) -> dict[str, Tensor]:
        """Return all columns on ``device``: the packed rows travel as one copy, which has arrived on return."""
        if device == "cpu" or torch.device(device).type == "cpu":
            return self._columns()
        names = self.keys()
        columns = {name: self.extra[name].to(device) for name in names if name in self.extra}
        if len(columns) < len(names):
            count = len(self)
            packed = torch.from_numpy(self._rows.reshape(-1).view(np.uint8).reshape(count, self.layout.row_bytes))
            packed = packed.to(device)
            for name in names:
                if name not in columns:
                    field = self.layout.by_name[name]
                    size = int(np.prod(field.shape)) * field.torch_dtype.itemsize
                    flat = packed[:, field.offset : field.offset + size]
                    columns[name] = flat.view(field.torch_dtype).view(*self.leading, *field.shape)
        return {name: columns[name] for name in names}

    def _columns(self) -> dict[str, Tensor]:
        """Return all columns as views."""
        if self._names is not None:
            return {name: self.extra[name] for name in self._names}
        rows = self._rows
        stored = {
            field.name: torch.from_numpy(rows[field.name]) if field.is_plain else field.as_tensor(rows[field.name])
            for field in self.layout.fields
        }
        return {**stored, **self.extra} if self.extra else stored

    def to_tensordict(self) -> TensorDict:
        """Return a TensorDict of batch size ``leading`` whose tensors are views; dots of names become levels.

        Besides the columns it has ``position``, and ``weight`` where the draw was prioritised.
        """
        from tensordict import TensorDict

        columns: dict[str, Any] = self._columns()
        columns["position"] = torch.from_numpy(self.positions).view(self.leading)
        if self.weight is not None:
            columns["weight"] = self.weight.view(self.leading)
        batch: TensorDict = TensorDict(columns, list(self.leading)).unflatten_keys(".")
        return batch
