"""A tree of state to files and back, bit for bit and without pickle.

A tree is made of dicts (string or integer keys), lists and tuples; its leaves are torch tensors, NumPy arrays and
scalars, bytes, bools, integers of any size, floats, strings and None. Tensors and arrays go into
``tensors.safetensors``, bytes into ``environments.bin``, all else into ``state.json``, where an object
``{"$kind": ...}`` stands for what JSON lacks.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors.torch import load as load_safetensors

TENSORS_FILE = "tensors.safetensors"
BYTES_FILE = "environments.bin"
STATE_FILE = "state.json"

_CHUNK_BYTES = 1 << 22
_DTYPE_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_NUMPY_NATIVE = frozenset("?bBhHiIlLqQefd")


@dataclass(frozen=True)
class FileDigest:
    """What a manifest says of a file."""

    sha256: str
    size_bytes: int


class StateTreeError(ValueError):
    """Files that don't make a tree: a reference without its tensor, a tag that isn't known."""


def snapshot_tree(tree: Any) -> Any:
    """Return a copy of a tree that shares no memory with it: tensors on the CPU, detached; arrays copied.

    Raises:
        TypeError: a leaf or a key that a checkpoint can't hold; says where.
    """
    return _snapshot(tree, "state")


def save_state(tree: Any, folder: Path) -> dict[str, FileDigest]:
    """Write a tree into an existing folder and make its files durable; return the digest of each file.

    Raises:
        TypeError: a leaf or a key that a checkpoint can't hold; says where.
        OSError: the folder can't be written.
    """
    parts = _Parts()
    document = parts.encode(tree, "")
    digests = {}
    if parts.tensors:
        digests[TENSORS_FILE] = _write_file(folder / TENSORS_FILE, _safetensors_chunks(parts.tensors))
    if parts.blobs:
        digests[BYTES_FILE] = _write_file(folder / BYTES_FILE, parts.blobs)
    text = json.dumps({"tree": document}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    digests[STATE_FILE] = _write_file(folder / STATE_FILE, [text.encode()])
    return digests


def load_state(folder: Path, *, with_bytes: bool = True) -> Any:
    """Return the tree that ``save_state`` wrote. Tensors are on the CPU.

    Args:
        with_bytes: False leaves opaque bytes out (they become None), for a folder that isn't the run's own.

    Raises:
        StateTreeError, ValueError: the files don't make a tree.
        OSError: a file can't be read.
    """
    contents = {}
    for name in (STATE_FILE, TENSORS_FILE, BYTES_FILE):
        path = folder / name
        if path.exists() and (with_bytes or name != BYTES_FILE):
            contents[name] = path.read_bytes()
    return decode_state(contents, with_bytes=with_bytes)


def decode_state(contents: Mapping[str, bytes], *, with_bytes: bool = True) -> Any:
    """Return the tree whose files have these contents; see ``load_state``."""
    tensors: dict[str, torch.Tensor] = {}
    if TENSORS_FILE in contents:
        try:
            tensors = load_safetensors(contents[TENSORS_FILE])
        except Exception as error:  # the library raises its own class, and others for a header out of bounds
            raise StateTreeError(f"{TENSORS_FILE} is not a safetensors file: {error}") from None
    blobs = contents.get(BYTES_FILE, b"") if with_bytes else None
    if STATE_FILE not in contents:
        raise StateTreeError(f"{STATE_FILE} is missing")
    document = json.loads(contents[STATE_FILE])
    if not isinstance(document, dict) or "tree" not in document:
        raise StateTreeError(f"{STATE_FILE} holds no tree")
    return _Decoder(tensors, blobs).decode(document["tree"])


def _snapshot(node: Any, path: str) -> Any:
    if isinstance(node, torch.Tensor):
        return node.detach().to("cpu", copy=True)
    if isinstance(node, np.ndarray):
        return node.copy()
    if isinstance(node, Mapping):
        return {_checked_key(key, path): _snapshot(value, f"{path}.{key}") for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        items = [_snapshot(value, f"{path}[{index}]") for index, value in enumerate(node)]
        return items if isinstance(node, list) else tuple(items)
    if node is None or isinstance(node, (bool, int, float, str, bytes, np.generic)):
        return node
    raise TypeError(f"{path}: a checkpoint can't hold {type(node).__name__}")


def _checked_key(key: Any, path: str) -> str | int:
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise TypeError(f"{path}: a key must be a string or an integer, not {type(key).__name__} {key!r}")
    return key


@dataclass
class _Parts:
    """What a tree is taken apart into."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    blobs: list[bytes] = field(default_factory=list)
    blob_bytes: int = 0

    def encode(self, node: Any, path: str) -> Any:
        """Return the JSON form of ``node`` and keep its tensors and bytes."""
        if isinstance(node, torch.Tensor):
            return {"$tensor": self._keep(path, _checked_tensor(node, path))}
        if isinstance(node, (np.ndarray, np.generic)):
            return self._encode_numpy(node, path)
        if isinstance(node, bytes):
            self.blobs.append(node)
            self.blob_bytes += len(node)
            return {"$bytes": [self.blob_bytes - len(node), len(node)]}
        if isinstance(node, Mapping):
            return self._encode_mapping(node, path)
        if isinstance(node, (list, tuple)):
            items = [self.encode(value, _join(path, str(index))) for index, value in enumerate(node)]
            return items if isinstance(node, list) else {"$tuple": items}
        if isinstance(node, float) and not math.isfinite(node):
            return {"$float": struct.pack(">d", node).hex()}
        if node is None or isinstance(node, (bool, int, float, str)):
            return node
        raise TypeError(f"{path or 'state'}: a checkpoint can't hold {type(node).__name__}")

    def _encode_mapping(self, node: Mapping[Any, Any], path: str) -> Any:
        encoded = [
            (_checked_key(key, path or "state"), self.encode(value, _join(path, str(key))))
            for key, value in node.items()
        ]
        if all(isinstance(key, str) and not key.startswith("$") for key, _ in encoded):
            return dict(encoded)
        return {"$dict": [[key, value] for key, value in encoded]}

    def _encode_numpy(self, node: np.ndarray | np.generic, path: str) -> Any:
        kind = "$array" if isinstance(node, np.ndarray) else "$scalar"
        array = np.asarray(node, order="C")
        if not array.flags.writeable:
            array = array.copy()  # torch takes no memory that can't be written
        if array.dtype.hasobject:
            raise TypeError(f"{path or 'state'}: a checkpoint can't hold a NumPy array of objects")
        if array.dtype.isnative and array.dtype.char in _NUMPY_NATIVE:
            return {kind: self._keep(path, torch.from_numpy(array)), "dtype": array.dtype.str}
        if array.dtype.fields is not None:
            raise TypeError(f"{path or 'state'}: a checkpoint can't hold a structured NumPy array")
        raw = torch.frombuffer(bytearray(array.tobytes()) or bytearray(1), dtype=torch.uint8)[: array.nbytes]
        return {kind: self._keep(path, raw), "dtype": array.dtype.str, "shape": list(array.shape)}

    def _keep(self, path: str, tensor: torch.Tensor) -> str:
        name = path or "state"
        while name in self.tensors or name == "__metadata__":  # the keys 1 and "1" of one dict; the format's own
            name += "'"
        self.tensors[name] = tensor
        return name


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _checked_tensor(tensor: torch.Tensor, path: str) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.dtype not in _DTYPE_NAMES:
        raise TypeError(f"{path or 'state'}: a checkpoint can't hold a tensor of {tensor.dtype}, {tensor.layout}")
    return tensor.detach().to("cpu").contiguous()


def _safetensors_chunks(tensors: Mapping[str, torch.Tensor]) -> Iterable[bytes | memoryview]:
    """Yield a safetensors file piece by piece, so that it is hashed while it is written and never held twice."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # keeps each one aligned
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for _, tensor in ordered:
        if tensor.numel():
            yield tensor.reshape(-1).view(torch.uint8).numpy().data


def _write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> FileDigest:
    digest = hashlib.sha256()
    size = 0
    with open(path, "wb") as file:
        for chunk in chunks:
            size += _write_chunk(file, memoryview(chunk), digest)
        file.flush()
        os.fsync(file.fileno())
    return FileDigest(digest.hexdigest(), size)


def _write_chunk(file: BinaryIO, chunk: memoryview, digest: Any) -> int:
    for start in range(0, len(chunk), _CHUNK_BYTES):
        piece = chunk[start : start + _CHUNK_BYTES]
        file.write(piece)
        digest.update(piece)
    return len(chunk)


class _Decoder:
    def __init__(self, tensors: Mapping[str, torch.Tensor], blobs: bytes | None) -> None:
        self._tensors = tensors
        self._blobs = blobs
        self._kinds: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "$tensor": lambda node: self._tensor(node["$tensor"]).clone(),
            "$array": self._array,
            "$scalar": lambda node: self._array({**node, "$array": node["$scalar"]})[()],
            "$bytes": self._bytes,
            "$tuple": lambda node: tuple(self.decode(item) for item in node["$tuple"]),
            "$dict": lambda node: {key: self.decode(value) for key, value in node["$dict"]},
            "$float": lambda node: struct.unpack(">d", bytes.fromhex(node["$float"]))[0],
        }

    def decode(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.decode(item) for item in node]
        if not isinstance(node, dict):
            return node
        tag = next(iter(node), "")
        if not tag.startswith("$"):
            return {key: self.decode(value) for key, value in node.items()}
        if tag not in self._kinds:
            raise StateTreeError(f"{STATE_FILE} holds {tag!r}, which this version does not know")
        return self._kinds[tag](node)

    def _tensor(self, name: str) -> torch.Tensor:
        if name not in self._tensors:
            raise StateTreeError(f"{TENSORS_FILE} lacks the tensor {name!r}")
        return self._tensors[name]

    def _array(self, node: Mapping[str, Any]) -> np.ndarray:
        tensor = self._tensor(node["$array"])
        dtype = np.dtype(node["dtype"])
        if "shape" in node:
            return np.frombuffer(tensor.numpy().tobytes(), dtype).reshape(node["shape"]).copy()
        return tensor.numpy().astype(dtype, copy=False)

    def _bytes(self, node: Mapping[str, Any]) -> bytes | None:
        if self._blobs is None:
            return None
        offset, size = node["$bytes"]
        if offset + size > len(self._blobs):
            raise StateTreeError(f"{BYTES_FILE} is too short")
        return self._blobs[offset : offset + size]
