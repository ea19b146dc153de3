"""A storage of objects, for rows whose shapes differ: texts, graphs, whole episodes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlruntime.errors import CheckpointError, ConfigError
from rlruntime.registry import register
from rlruntime.spec.training.storages import ListStorageConfig
from rlruntime.storages.batch import Batch
from rlruntime.storages.layout import RowLayout
from rlruntime.storages.storage import ArrayStorage, KeptRows


class ItemBatch(Batch):
    """Objects that were drawn. Where all are dicts with values of the same shape, ``batch[key]`` stacks those."""

    __slots__ = ()

    @property
    def items(self) -> list[Any]:
        """The objects themselves, not copies, ``[n]``."""
        items: list[Any] = self.rows.tolist()
        return items

    def keys(self) -> list[str]:
        """Return the keys of the first object, none where it is no dict."""
        first = self.rows[0] if len(self) else None
        return list(first) if isinstance(first, Mapping) else []

    def __getitem__(self, name: str) -> Tensor:
        """Return ``[n, ...]``."""
        return torch.stack([torch.as_tensor(item[name]) for item in self.rows])

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def _columns(self) -> dict[str, Tensor]:
        return {name: self[name] for name in self.keys()}


@register("storage", "List")
class ListStorage(ArrayStorage):
    """Any objects, by reference; a buffer over it takes a list of them. Checkpoints hold what a tree of state can."""

    Config = ListStorageConfig

    def __init__(self, config: ListStorageConfig) -> None:
        super().__init__(config.capacity)
        self.config = config
        self._columns = [np.full(config.capacity, None, object)]

    def __reduce__(self) -> tuple[Any, ...]:
        if self.window.end:
            raise ConfigError("a List storage that holds rows can't travel to another process")
        return type(self), (self.config,)

    def matched(self, rows: Any) -> tuple[list[np.ndarray], int]:
        """Return a list of objects as `put` takes it.

        Raises:
            ConfigError: it is no list or tuple.
        """
        if not isinstance(rows, (list, tuple)):
            raise ConfigError("a List storage takes a list of rows", value=type(rows).__name__)
        return [_objects(rows)], len(rows)

    def gather(self, positions: np.ndarray) -> np.ndarray:
        """Return the objects at ``positions [n]``."""
        objects: np.ndarray = self._columns[0][positions % self.capacity]
        return objects

    def column(self, name: str) -> np.ndarray:
        """Refuse: there are none."""
        return self.named_column(name, field="")

    def named_column(self, name: str, *, field: str) -> np.ndarray:
        """Refuse: there are none."""
        raise ConfigError("a List storage has no columns", field=field, value=name, remedy="use a Tensor storage")

    def batch(self, rows: np.ndarray, positions: np.ndarray, **seen_as: Any) -> Batch:
        """Return drawn objects as a batch."""
        return ItemBatch(RowLayout((), 0), rows, positions, **seen_as)

    def packed(self, rows: np.ndarray) -> Any:
        """Return copies of objects for a checkpoint."""
        return copy.deepcopy(rows.tolist())

    def unpacked(self, packed: Any) -> np.ndarray:
        """Return what `packed` was given."""
        return _objects(copy.deepcopy(packed))

    def state_dict(self, kept: KeptRows | None = None, *, copy: bool = True) -> dict[str, Any]:
        """Return copies of the objects at hand, oldest first."""
        with self.reading():
            start, end = self.window
            return {"layout": None, "start": start, "end": end, "rows": self.packed(self.gather(np.arange(start, end)))}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a state that `load_state_dict` can't take; see `ArrayStorage.check_state`."""
        super().check_state({**state, "layout": None})
        if not isinstance(state["rows"], list) or len(state["rows"]) != state["end"] - state["start"]:
            raise CheckpointError("the checkpoint holds no list of rows")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold copies of what ``state_dict`` returned, and nothing else."""
        self.check_state(state)
        with self.writing():
            start, end = state["start"], state["end"]
            self._columns[0][:] = None
            self._columns[0][np.arange(start, end) % self.capacity] = self.unpacked(state["rows"])
            self.jump_window(start, end)


def _objects(items: Any) -> np.ndarray:
    """Return a list as ``[n]`` objects, whatever they look like."""
    array = np.full(len(items), None, object)
    for at, item in enumerate(items):
        array[at] = item
    return array
