"""What a buffer gives: rows that were copied out together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
        extra: columns that a read step added; they come before stored ones of the same name.
    """

    __slots__ = ("_rows", "extra", "layout", "leading", "positions", "weight")

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
        self.weight = None if weight is None else torch.from_numpy(weight)
        self.extra = {name: column.reshape(self.leading) for name, column in (extra or {}).items()}

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, name: str) -> Tensor:
        """Return ``[*leading, ...]``; the elements of a row are neighbours, the rows are not."""
        if self.extra and name in self.extra:
            return self.extra[name]
        return self.layout.by_name[name].as_tensor(self._rows[name])

    def __contains__(self, name: object) -> bool:
        return name in self.extra or name in self.layout.by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        """Return the names of the columns."""
        return [*self.layout.by_name, *(name for name in self.extra if name not in self.layout.by_name)]

    @property
    def rows(self) -> np.ndarray:
        """The packed rows, ``[*leading]`` of `RowLayout.struct`."""
        return self._rows

    def to(self, device: torch.device | str) -> dict[str, Tensor]:
        """Return all columns on ``device``: the packed rows travel as one copy, which has arrived on return."""
        if torch.device(device).type == "cpu":
            return {name: self[name] for name in self.keys()}
        count = len(self)
        packed = torch.from_numpy(self._rows.reshape(-1).view(np.uint8).reshape(count, self.layout.row_bytes))
        packed = packed.to(device)
        columns = {}
        for field in self.layout.fields:
            size = int(np.prod(field.shape)) * field.torch_dtype.itemsize
            flat = packed[:, field.offset : field.offset + size]
            columns[field.name] = flat.view(field.torch_dtype).view(*self.leading, *field.shape)
        return {**columns, **{name: column.to(device) for name, column in self.extra.items()}}

    def to_tensordict(self) -> TensorDict:
        """Return a TensorDict of batch size ``leading`` whose tensors are views; dots of names become levels.

        Besides the columns it has ``position``, and ``weight`` where the draw was prioritised.
        """
        from tensordict import TensorDict

        columns: dict[str, Any] = {name: self[name] for name in self.keys()}
        columns["position"] = torch.from_numpy(self.positions).view(self.leading)
        if self.weight is not None:
            columns["weight"] = self.weight.view(self.leading)
        batch: TensorDict = TensorDict(columns, list(self.leading)).unflatten_keys(".")
        return batch
