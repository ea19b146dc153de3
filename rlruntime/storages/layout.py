"""Where the columns of a packed row lie.

All numbers of a row are neighbours in memory, so that a random row costs one or two cache misses and not one a column.
Fields are ordered by the size of their elements, largest first, and a row's size is a multiple of eight bytes: every
element is aligned, and a row is copied as whole words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rlruntime.errors import CheckpointError, ConfigError

WORD_BYTES = 8
_NUMPY_NAMES = {
    "bool": "bool",
    "uint8": "uint8",
    "int8": "int8",
    "int16": "int16",
    "uint16": "uint16",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "float16": "float16",
    "bfloat16": "int16",  # NumPy has none: it holds the bits
    "float32": "float32",
    "float64": "float64",
}
"""NumPy's type of the memory of each type that a column may have, by torch's name."""

Column = np.ndarray | Tensor


@dataclass(frozen=True)
class RowField:
    """One column.

    Attributes:
        name: the key; levels of nested rows are joined by dots, as in ``next.reward``.
        shape: of one row's value.
        dtype: torch's name of the type, such as ``float32``.
        offset: bytes from the start of the row.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @cached_property
    def torch_dtype(self) -> torch.dtype:
        """Type of the column's tensors."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Type of the column's memory."""
        return np.dtype(_NUMPY_NAMES[self.dtype])

    @cached_property
    def is_plain(self) -> bool:
        """Whether NumPy has the type itself."""
        return self.dtype != "bfloat16"

    def as_tensor(self, column: np.ndarray) -> Tensor:
        """Return a view of this field's memory as a tensor of its type."""
        tensor = torch.from_numpy(column)
        return tensor if self.is_plain else tensor.view(self.torch_dtype)

    def as_memory(self, column: Column) -> np.ndarray:
        """Return ``column`` with the type of this field's memory.

        Raises:
            ConfigError: it has another shape, or a type that can't become this one without losing its kind.
        """
        if column.shape[1:] != self.shape:
            raise ConfigError(
                f"a row's {self.name!r} has the shape {list(self.shape)} in this buffer",
                value=list(column.shape[1:]),
                remedy="give every row the same shape",
            )
        if not isinstance(column, np.ndarray):
            return self._memory_of_tensor(column)
        if column.dtype == self.numpy_dtype and self.is_plain:
            return column
        if not self.is_plain:
            return self._memory_of_tensor(torch.from_numpy(np.ascontiguousarray(column)))
        if not np.can_cast(column.dtype, self.numpy_dtype, "same_kind"):
            raise self._wrong_type(column.dtype.name)
        return column

    def _memory_of_tensor(self, column: Tensor) -> np.ndarray:
        if column.dtype != self.torch_dtype:
            if not torch.can_cast(column.dtype, self.torch_dtype):
                raise self._wrong_type(str(column.dtype).removeprefix("torch."))
            column = column.to(self.torch_dtype)
        if column.requires_grad:
            column = column.detach()
        if not column.is_cpu:
            column = column.cpu()
        if self.torch_dtype == torch.bfloat16:
            column = column.view(torch.int16)
        memory: np.ndarray = column.numpy()
        return memory

    def _wrong_type(self, name: str) -> ConfigError:
        return ConfigError(
            f"a row's {self.name!r} is {self.dtype} in this buffer",
            value=name,
            remedy="convert it before it is written",
        )


@dataclass(frozen=True)
class RowLayout:
    """The fields of a row, and its size.

    Attributes:
        fields: in the order in which the first batch gave them.
        row_bytes: a multiple of eight.
    """

    fields: tuple[RowField, ...]
    row_bytes: int
    _last: ClassVar[list[tuple[str, tuple[int, ...], np.dtype[Any] | None]]] = []

    @cached_property
    def struct(self) -> np.dtype[Any]:
        """The row as a structured type; its fields bear the columns' names."""
        return np.dtype(
            {
                "names": [field.name for field in self.fields],
                "formats": [(field.numpy_dtype, field.shape) for field in self.fields],
                "offsets": [field.offset for field in self.fields],
                "itemsize": self.row_bytes,
            }
        )

    @cached_property
    def by_name(self) -> dict[str, RowField]:
        """The fields by name."""
        return {field.name: field for field in self.fields}

    @cached_property
    def _expected(self) -> list[tuple[RowField, str, tuple[int, ...], np.dtype[Any] | None]]:
        """Each field with its name, and the shape and type of an array that is its memory as it stands."""
        return [
            (field, field.name, field.shape, field.numpy_dtype if field.is_plain else None) for field in self.fields
        ]

    @property
    def words(self) -> int:
        """Eight-byte words of a row."""
        return self.row_bytes // WORD_BYTES

    def named(self, name: str, *, field: str) -> RowField:
        """Return the column of a setting that names it.

        Args:
            name: the column.
            field: the setting, for the error.

        Raises:
            ConfigError: there is none of this name, or it holds a type that NumPy can't compute with.
        """
        found = self.by_name.get(name)
        if found is None:
            known = ", ".join(self.by_name)
            raise ConfigError("the rows have no such column", field=field, value=name, remedy=f"name one of {known}")
        if not found.is_plain:
            raise ConfigError(f"a column of {found.dtype} can't be computed with", field=field, value=name)
        return found

    def number(self, name: str, *, field: str, integers: bool = False) -> RowField:
        """Return the column of one number a row of a setting that names it.

        Raises:
            ConfigError: see `named`; or it holds more than a number a row, or none of ``integers``.
        """
        found = self.named(name, field=field)
        if math.prod(found.shape) != 1:
            raise ConfigError("the column must hold one number a row", field=field, value=name)
        if integers and found.numpy_dtype.kind not in "iu":
            raise ConfigError(f"the column {name!r} must hold integers", field=field, value=found.dtype)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        fields = [[f.name, list(f.shape), f.dtype, f.offset] for f in self.fields]
        return {"rowBytes": self.row_bytes, "fields": fields}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> RowLayout:
        """Return the layout that `to_json` described.

        Raises:
            CheckpointError: the document describes none.
        """
        try:
            fields = tuple(
                RowField(str(name), tuple(int(n) for n in shape), str(dtype), int(offset))
                for name, shape, dtype, offset in document["fields"]
            )
            layout = RowLayout(fields, int(document["rowBytes"]))
            planned = _plan([(field.name, field.shape, field.dtype) for field in fields])
        except (KeyError, TypeError, ValueError):
            raise CheckpointError("the layout of the stored rows can't be read") from None
        if planned != layout:
            raise CheckpointError("the layout of the stored rows is not one that this version makes")
        return layout

    def matched(self, rows: Mapping[str, Any]) -> tuple[list[np.ndarray], int]:
        """Return the columns of ``rows`` in the order of the fields, as memory, and the number of rows.

        Raises:
            ConfigError: a key is missing or unknown, a shape or a type differs, columns are of different lengths.
        """
        if type(rows) is not dict or rows.keys() != self.by_name.keys():
            rows = flat_columns(rows)
            self._check_names(rows)
        if len(as_before := self._as_before(rows)) == len(self.fields):
            return as_before, len(as_before[0])
        columns: list[np.ndarray] = []
        num_rows = -1
        for field, name, shape, dtype in self._expected:
            column = rows[name]
            if type(column) is np.ndarray and column.dtype is dtype and column.ndim:
                found = column.shape
                fits = found[1:] == shape
            else:  # asked for last: whether something is a Tensor takes long to say
                if not (type(column) is Tensor or isinstance(column, Column)) or not column.ndim:
                    raise _not_a_column(name, column)
                found, fits = column.shape, False
            if found[0] != num_rows:
                if num_rows >= 0:
                    raise _uneven(self.fields[0].name, num_rows, name, found[0])
                num_rows = found[0]
            columns.append(column if fits else field.as_memory(column))
        if all(column is rows[name] for column, (_, name, _, _) in zip(columns, self._expected, strict=True)):
            shapes = [(name, (num_rows, *shape), dtype) for _, name, shape, dtype in self._expected]
            object.__setattr__(self, "_last", shapes)
        return columns, num_rows

    def _as_before(self, rows: Mapping[str, Any]) -> list[np.ndarray]:
        """Return the columns as they are, as long as they are arrays of the shapes and types of the last such rows: of
        short batches, which are written one after the other, looking at each by itself would be most of the cost.
        """
        columns = []
        for name, shape, dtype in self._last:
            column = rows[name]
            if type(column) is not np.ndarray or column.dtype is not dtype or column.shape != shape:
                break
            columns.append(column)
        return columns

    def _check_names(self, rows: Mapping[str, Any]) -> None:
        known = set(self.by_name)
        missing, unknown = sorted(known - set(rows)), sorted(set(rows) - known)
        if missing or unknown:
            told = [f"lack {', '.join(missing)}"] * bool(missing) + [f"add {', '.join(unknown)}"] * bool(unknown)
            raise ConfigError(
                f"these rows {' and '.join(told)} compared with those that the buffer holds",
                remedy="give every row the same keys",
            )


def plan_layout(rows: Mapping[str, Any]) -> tuple[RowLayout, int]:
    """Return the layout of rows like these, and how many these are.

    Raises:
        ConfigError: a value is no array or tensor, has no dimension of rows, or has a type that no column can have.
    """
    columns = flat_columns(rows)
    if not columns:
        raise ConfigError("rows without any key can't be stored")
    described: list[tuple[str, tuple[int, ...], str]] = []
    lengths: dict[str, int] = {}
    for name, column in columns.items():
        if not isinstance(column, (np.ndarray, Tensor)) or not column.ndim:
            raise _not_a_column(name, column)
        dtype = column.dtype.name if isinstance(column, np.ndarray) else str(column.dtype).removeprefix("torch.")
        if dtype not in _NUMPY_NAMES:
            raise ConfigError(
                f"a column can't hold values of the type {dtype}",
                value=name,
                remedy="convert it, or use a List storage",
            )
        described.append((name, tuple(column.shape[1:]), dtype))
        lengths[name] = len(column)
        first = described[0][0]
        if lengths[name] != lengths[first]:
            raise _uneven(first, lengths[first], name, lengths[name])
    return _plan(described), lengths[described[0][0]]


def flat_columns(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested rows (a dict, or a TensorDict of one batch dimension) as one dict with dotted names.

    Raises:
        ConfigError: a TensorDict has more batch dimensions, or none; a key is no string.
    """
    batch_size = getattr(rows, "batch_size", None)
    if batch_size is not None and len(batch_size) != 1:
        raise ConfigError(
            "rows need exactly one batch dimension",
            value=list(batch_size),
            remedy="reshape a rollout [T, B] time first to [T * B], and tell a sampler of slices numEnvs: B",
        )
    flat: dict[str, Any] = {}
    _flatten(rows, "", flat)
    return flat


def _flatten(rows: Mapping[str, Any], prefix: str, flat: dict[str, Any]) -> None:
    for key, value in rows.items():
        if not isinstance(key, str):
            raise ConfigError("a column's key must be a string", value=key)
        if isinstance(value, Mapping) or hasattr(value, "batch_size"):
            _flatten(value, f"{prefix}{key}.", flat)
        elif f"{prefix}{key}" in flat:
            raise ConfigError("two columns have the same name", value=f"{prefix}{key}")
        else:
            flat[f"{prefix}{key}"] = value


def _plan(described: list[tuple[str, tuple[int, ...], str]]) -> RowLayout:
    """Return the layout of columns given by name, shape and torch's name of the type."""
    sizes = {name: np.dtype(_NUMPY_NAMES[dtype]).itemsize for name, _, dtype in described}
    placed: dict[str, RowField] = {}
    offset = 0
    for name, shape, dtype in sorted(described, key=lambda column: -sizes[column[0]]):
        placed[name] = RowField(name, shape, dtype, offset)
        offset += math.prod(shape) * sizes[name]
    row_bytes = max(-(-offset // WORD_BYTES), 1) * WORD_BYTES
    return RowLayout(tuple(placed[name] for name, _, _ in described), row_bytes)


def _not_a_column(name: str, value: Any) -> ConfigError:
    return ConfigError(
        f"{name!r} must be an array or a tensor with one entry a row",
        value=value,
        remedy="give [rows, ...], or use add() for a single row",
    )


def _uneven(first: str, first_rows: int, other: str, other_rows: int) -> ConfigError:
    return ConfigError(f"{first!r} has {first_rows} rows and {other!r} has {other_rows}")
