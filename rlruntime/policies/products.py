"""Products of matrices on the CPU: the one seam to the kernel that computes them.

PyTorch's own products of float32 matrices are those of the BLAS library that it was built with. Its wheels for x86-64
have MKL, which on processors that aren't Intel's doesn't use instructions of 512 bits. oneDNN, which the wheels have
too, does: there a product of 256 rows, 256 inputs and 256 outputs takes half the time (0.14 instead of 0.30 ms), at
the same accuracy. PyTorch offers oneDNN's product of dense tensors to its compiler, and that operator is what is
called here. Everywhere else, on Intel's processors and on those that take 512 bits in halves, both kernels multiply
equally fast, and BLAS writes into memory that is there and takes transposed matrices as they lie: a whole update is up
to a fifth quicker with it.

Heads and first layers have results of few columns. BLAS, which stores by column, computes the transpose of such a one
in half the time or less.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

_ZEN_4 = 25  # the last family of AMD's processors that takes instructions of 512 bits in halves
# A result with so many columns and at least so many rows is computed as its transpose: sooner by more than it takes to
# copy it back.
_FEW_COLUMNS, _FEW_OUTPUTS, _MANY_ROWS = range(2, 48), range(4, 17), 64
_FEW_MULTIPLICATIONS = 1 << 22  # below, what a call of oneDNN costs is more than it saves


class Layer(NamedTuple):
    """A linear layer's parameters as plain tensors, where they lie.

    Attributes:
        weight: ``[out, in]``.
        weight_t: the same memory as ``[in, out]``.
        bias: ``[out]``.
        weight_grad, bias_grad: their gradients; None where the layer has none.
    """

    weight: Tensor
    weight_t: Tensor
    bias: Tensor
    weight_grad: Tensor | None
    bias_grad: Tensor | None

    @staticmethod
    def of(layer: nn.Linear) -> Layer:
        """Return the parameters of a module; they must stay where they are."""
        weight, bias = layer.weight.detach(), layer.bias.detach()
        return Layer(weight, weight.t(), bias, layer.weight.grad, layer.bias.grad)


class Products(Protocol):
    """The products that forward and backward passes of linear layers need.

    ``out`` is memory for the result, which may come to lie elsewhere. Nothing records a graph, since no tensor that is
    handed in requires a gradient.

    Attributes:
        name: of the kernel.
    """

    name: str

    def linear(self, rows: Tensor, layer: Layer, out: Tensor) -> Tensor:
        """Return ``rows weight^T + bias``, ``[N, out]``."""

    def linear_relu(self, rows: Tensor, layer: Layer, out: Tensor) -> Tensor:
        """Return the same with numbers below 0 replaced by 0; what is no number, or infinite, stays so."""

    def input_gradient(self, gradient: Tensor, layer: Layer, out: Tensor) -> Tensor:
        """Return ``gradient weight``, ``[N, in]``."""

    def column_gradient(self, gradient: Tensor, layer: Layer, columns: slice) -> Tensor:
        """Return ``gradient weight``, only some columns of it, ``[N, columns]``."""

    def weight_gradient(self, gradient: Tensor, rows: Tensor, out: Tensor) -> None:
        """Write ``gradient^T rows`` into ``out [out, in]``."""


class BlasProducts:
    """By PyTorch's own functions."""

    name = "blas"

    def linear(self, rows: Tensor, layer: Layer, out: Tensor) -> Tensor:
        """See `Products.linear`."""
        if layer.weight.shape[0] in _FEW_OUTPUTS and rows.shape[0] >= _MANY_ROWS:
            return torch.add(torch.mm(layer.weight, rows.t()).t(), layer.bias, out=out)
        return torch.addmm(layer.bias, rows, layer.weight_t, out=out)

    def linear_relu(self, rows: Tensor, layer: Layer, out: Tensor) -> Tensor:
        """See `Products.linear_relu`."""
        # The ReLU of oneDNN's product, and PyTorch's of a sum, are quicker, and make 0 of what is no number: learning
        # that diverges would go on unseen.
        return self.linear(rows, layer, out).relu_()

    def input_gradient(self, gradient: Tensor, layer: Layer, out: Tensor) -> Tensor:
        """See `Products.input_gradient`."""
        return torch.mm(gradient, layer.weight, out=out)

    def column_gradient(self, gradient: Tensor, layer: Layer, columns: slice) -> Tensor:
        """See `Products.column_gradient`."""
        weight = layer.weight[:, columns]
        if weight.shape[1] in _FEW_COLUMNS and gradient.shape[0] >= _MANY_ROWS:
            return torch.mm(weight.t(), gradient.t()).t()
        return torch.mm(gradient, weight)

    def weight_gradient(self, gradient: Tensor, rows: Tensor, out: Tensor) -> None:
        """See `Products.weight_gradient`."""
        if rows.shape[1] in _FEW_COLUMNS and rows.shape[0] >= _MANY_ROWS:
            out.copy_(torch.mm(rows.t(), gradient).t())
        else:
            torch.mm(gradient.t(), rows, out=out)


class OneDnnProducts(BlasProducts):
    """By oneDNN where a product is large enough, else as `BlasProducts`."""

    name = "onednn"

    def __init__(self) -> None:
        self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def linear(self, rows: Tensor, layer: Layer, out: Tensor) -> Tensor:
        """See `Products.linear`."""
        if rows.shape[0] * layer.weight.numel() < _FEW_MULTIPLICATIONS:
            return super().linear(rows, layer, out)
        result: Tensor = self._multiply(rows, layer.weight, layer.bias, "none", [], "")
        return result

    def input_gradient(self, gradient: Tensor, layer: Layer, out: Tensor) -> Tensor:
        """See `Products.input_gradient`."""
        if gradient.shape[0] * layer.weight.numel() < _FEW_MULTIPLICATIONS:
            return super().input_gradient(gradient, layer, out)
        result: Tensor = self._multiply(gradient, layer.weight_t, None, "none", [], "")
        return result

    def weight_gradient(self, gradient: Tensor, rows: Tensor, out: Tensor) -> None:
        """See `Products.weight_gradient`."""
        if gradient.shape[0] * out.numel() < _FEW_MULTIPLICATIONS:
            super().weight_gradient(gradient, rows, out)
        else:
            out.copy_(self._multiply(gradient.t(), rows.t(), None, "none", [], ""))


def make_products(parameter: Tensor) -> Products:
    """Return the products for layers whose parameters are like ``parameter``."""
    return OneDnnProducts() if parameter.dtype == torch.float32 and kernel_name() == "onednn" else BlasProducts()


@functools.cache
def kernel_name() -> str:
    """Return which kernel computes float32 products on this machine: ``onednn`` or ``blas``."""
    try:
        processor = Path("/proc/cpuinfo").read_text()
    except OSError:
        processor = ""
    return choose_kernel(torch.backends.cpu.get_cpu_capability(), processor) if has_onednn() else "blas"


def choose_kernel(capability: str, processor: str) -> str:
    """Return ``onednn`` for a processor that computes 512 bits at once and is known not to be Intel's, else ``blas``.

    Args:
        capability: as PyTorch calls it, such as ``AVX512``.
        processor: what Linux says of it in ``/proc/cpuinfo``; empty where nothing is known.
    """
    if not capability.startswith("AVX512") or not processor or "GenuineIntel" in processor:
        return "blas"
    family = re.search(r"^cpu family\s*:\s*(\d+)", processor, re.MULTILINE)
    takes_halves = "AuthenticAMD" in processor and family is not None and int(family[1]) <= _ZEN_4
    return "blas" if takes_halves else "onednn"


def has_onednn() -> bool:
    """Whether PyTorch offers oneDNN's product of dense tensors."""
    built_with_it: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return built_with_it and hasattr(torch.ops.mkldnn, "_linear_pointwise")
