"""What the weights are: names, shapes, dtypes and ties, and where each tensor lies in a snapshot.

Publisher and receivers compare manifests before a byte moves, and each looks at its own weights again at every
publication and acquisition: a parameter that was replaced, resized or untied since is refused, not missed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from rlruntime.errors import ConfigError, shorten
from rlruntime.weights.protocol import Weights

_ALIGN = 64


@dataclass(frozen=True)
class TensorEntry:
    """One tensor.

    Attributes:
        name: ``<model>/<name in its state_dict>``.
        shape: of the tensor.
        dtype: such as ``float32``.
        tied_to: name of the earlier entry whose memory it is; empty where it has its own.
        offset: its first byte in a snapshot; that of the entry it is tied to.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    tied_to: str
    offset: int

    @property
    def kind(self) -> str:
        """Shape, dtype and tie in words."""
        tie = f" tied to {self.tied_to}" if self.tied_to else ""
        return f"{self.dtype}{list(self.shape)}{tie}"


@dataclass(frozen=True)
class Manifest:
    """All tensors of all models, by name.

    Attributes:
        entries: sorted by name, so that models may hold them in any order.
        size: bytes of a snapshot.
    """

    entries: tuple[TensorEntry, ...]
    size: int

    @cached_property
    def stored(self) -> tuple[TensorEntry, ...]:
        """The entries with memory of their own."""
        return tuple(entry for entry in self.entries if not entry.tied_to)

    def bind(self, weights: Weights) -> list[Tensor]:
        """Return the live tensors for ``stored``, in order.

        Raises:
            ConfigError: the weights are no longer as the manifest says.
        """
        manifest, tensors = _inspect(weights)
        if manifest != self:
            raise ConfigError(
                f"the weights are not those agreed on: {self.difference(manifest)}",
                remedy="keep names, shapes, dtypes and ties, or start publisher and receivers anew",
            )
        return [tensors[entry.name] for entry in self.stored]

    def difference(self, other: Manifest) -> str:
        """Return the first difference of what is here, ``other``, in words; empty where there is none."""
        ours = {entry.name: entry.kind for entry in self.entries}
        theirs = {entry.name: entry.kind for entry in other.entries}
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            if ours.get(name) != theirs.get(name):
                agreed, here = ours.get(name, "absent"), theirs.get(name, "absent")
                return f"{name} is {agreed} in the manifest, {here} here"
        return ""

    def to_json(self) -> str:
        """Return it as a JSON document."""
        rows = [[entry.name, entry.shape, entry.dtype, entry.tied_to, entry.offset] for entry in self.entries]
        return json.dumps({"size": self.size, "entries": rows})

    @classmethod
    def from_json(cls, document: str) -> Manifest:
        """Return what ``to_json`` wrote."""
        read = json.loads(document)
        entries = (
            TensorEntry(name, tuple(shape), dtype, tied_to, offset)
            for name, shape, dtype, tied_to, offset in read["entries"]
        )
        return cls(tuple(entries), read["size"])


class Binding:
    """Finds the live tensors of a manifest again and again, as `Manifest.bind` does.

    Describing weights anew takes as long as copying those of a small network. Where all are the very tensors of the
    last time, with the same memory, shapes, strides and types, what was found then holds still.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._names: list[tuple[str, str]] | None = None  # before the first time
        self._seen: list[Tensor] = []
        self._places: list[tuple[object, ...]] = []
        self._tensors: list[Tensor] = []

    def tensors(self, weights: Weights) -> list[Tensor]:
        """Return the live tensors for ``Manifest.stored``, in order; see `Manifest.bind` for the errors."""
        states = [(model, named_tensors(state)) for model, state in weights.items()]
        names = [(model, name) for model, named in states for name in named]
        found = [tensor for _, named in states for tensor in named.values()]
        if names != self._names or not all(map(is_, found, self._seen)) or list(map(_place, found)) != self._places:
            self._tensors = self._manifest.bind(weights)
            self._names, self._seen, self._places = names, found, list(map(_place, found))
        return self._tensors


class ModuleState(Mapping[str, Tensor]):
    """What a module's ``state_dict`` holds, as live tensors by name, looked up anew only where the module has changed:
    a parameter, buffer, part or hook that came, went or is another one. Where a part has code of its own that says what
    its state is, it is asked every time.

    Args:
        module: whose state.
        leave_out: names of it that aren't meant.
    """

    def __init__(self, module: nn.Module, leave_out: Collection[str] = ()) -> None:
        self._module, self._leave_out = module, frozenset(leave_out)
        self._watched: list[_Members] = []
        self._state: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors())

    def __len__(self) -> int:
        return len(self.tensors())

    def tensors(self) -> dict[str, Tensor]:
        """Return them; the dict is the same one until the module has changed."""
        if not self._watched or not all(map(_Members.are_the_same, self._watched)):
            state = self._module.state_dict(keep_vars=True)
            self._state = {name: tensor for name, tensor in state.items() if name not in self._leave_out}
            parts = list(self._module.modules())
            can_be_watched = not any(map(_says_what_its_state_is, parts))
            self._watched = [_Members(held) for part in parts for held in _held(part)] if can_be_watched else []
        return self._state


def describe(weights: Weights) -> Manifest:
    """Return the manifest of these weights.

    Raises:
        ConfigError: there are none, or a state that is no dense tensor with memory.
    """
    return _inspect(weights)[0]


def _inspect(weights: Weights) -> tuple[Manifest, dict[str, Tensor]]:
    tensors = _live_tensors(weights)
    entries: list[TensorEntry] = []
    places: dict[tuple[object, ...], TensorEntry] = {}
    offset = 0
    for name, tensor in sorted(tensors.items()):
        shape = tuple(tensor.shape)
        place = _place(tensor)
        first = places.get(place) if tensor.numel() else None
        tied_to, at = (first.name, first.offset) if first else ("", offset)
        entry = TensorEntry(name, shape, str(tensor.dtype).removeprefix("torch."), tied_to, at)
        entries.append(entry)
        if not first:
            places[place] = entry
            offset += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
    return Manifest(tuple(entries), offset), tensors


def _live_tensors(weights: Weights) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for model, state in weights.items():
        for name, tensor in named_tensors(state).items():
            full_name = f"{model}/{name}"
            if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta:
                raise ConfigError(
                    f"only dense tensors with memory can be published, and {full_name} is none",
                    value=type(tensor).__name__ if not isinstance(tensor, Tensor) else shorten(str(tensor)),
                    remedy="leave it out, by giving a mapping of the tensors that are meant",
                )
            tensors[full_name] = tensor
    if not tensors:
        raise ConfigError("there are no weights to publish", remedy="give at least one model with a tensor")
    return tensors


def named_tensors(state: nn.Module | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the live tensors of one of the models of `Weights`."""
    if isinstance(state, nn.Module):
        return state.state_dict(keep_vars=True)
    return state.tensors() if isinstance(state, ModuleState) else state


def _place(tensor: Tensor) -> tuple[object, ...]:
    """Return what two tensors that are tied have in common."""
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _held(part: nn.Module) -> tuple[Mapping[Any, object], ...]:
    """Return the dicts of a module that decide what its state is."""
    hooks = part._state_dict_hooks, part._state_dict_pre_hooks
    return part._modules, part._parameters, part._buffers, *hooks


def _says_what_its_state_is(part: nn.Module) -> bool:
    kind = type(part)
    own_code = any(
        getattr(kind, name) is not getattr(nn.Module, name)
        for name in ("state_dict", "_save_to_state_dict", "get_extra_state")
    )
    return own_code or bool(part._state_dict_hooks or part._state_dict_pre_hooks)


class _Members:
    """What a dict held once."""

    __slots__ = ("_names", "_now", "_values")

    def __init__(self, now: Mapping[Any, object]) -> None:
        self._now, self._names, self._values = now, list(now), list(now.values())

    def are_the_same(self) -> bool:
        """Whether it holds the same objects under the same names."""
        now, names = self._now, self._names
        if len(now) != len(names):
            return False
        return not names or (list(now) == names and all(map(is_, now.values(), self._values)))
