"""One version of the weights in flat memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rlruntime.weights.manifest import Manifest


class Snapshot:
    """The tensors of a manifest as views into one flat tensor.

    Args:
        manifest: what lies where.
        memory: uint8 ``[S]`` on the CPU with ``S >= manifest.size``, aligned to 64 bytes.
    """

    def __init__(self, manifest: Manifest, memory: Tensor) -> None:
        self._memory = memory[: manifest.size]
        self._views: list[Tensor] = []
        for entry in manifest.stored:
            dtype = getattr(torch, entry.dtype)
            count = int(np.prod(entry.shape, dtype=np.int64))
            part = self._memory[entry.offset : entry.offset + count * dtype.itemsize]
            self._views.append(part.view(dtype).view(entry.shape))

    @classmethod
    def allocate(cls, manifest: Manifest) -> Snapshot:
        """Return one in memory of its own, not initialised."""
        return cls(manifest, torch.empty(manifest.size, dtype=torch.uint8))

    @property
    def bytes(self) -> memoryview:
        """Its memory, writable."""
        return self._memory.numpy().data

    def copy_from(self, sources: Sequence[Tensor]) -> None:
        """Take over tensors as ``Manifest.bind`` returns them, from any device."""
        with torch.no_grad():
            torch._foreach_copy_(self._views, list(sources))

    def copy_to(self, targets: Sequence[Tensor]) -> None:
        """Write into tensors as ``Manifest.bind`` returns them, on any device."""
        with torch.no_grad():
            torch._foreach_copy_(list(targets), self._views)
