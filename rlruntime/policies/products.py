"""Products of matrices on the CPU: the one seam to the kernel that computes them.

PyTorch's own products of float32 matrices are those of the BLAS library that it was built with. Its wheels for x86-64
have MKL, which on processors that aren't Intel's doesn't use instructions of 512 bits. oneDNN, which the wheels have
too, does: there a product of 256 rows, 256 inputs and 256 outputs takes half the time (0.14 instead of 0.30 ms), at
the same accuracy. PyTorch offers oneDNN's product of dense tensors to its compiler, and that operator is what is
called here. Everywhere else, on Intel's processors too, both kernels multiply equally fast, and BLAS writes into memory
that is there and takes transposed matrices as they lie: a whole update is a fifth quicker with it.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

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

    def weight_gradient(self, gradient: Tensor, rows: Tensor, out: Tensor) -> None:
        """Write ``gradient^T rows`` into ``out [out, in]``."""


class BlasProducts:
    """By PyTorch's own functions."""

    name = "blas"

    def linear(self, rows: Tensor, layer: Layer, out: Tensor) -> Tensor:
        """See `Products.linear`."""
        return torch.addmm(layer.bias, rows, layer.weight_t, out=out)

    def linear_relu(self, rows: Tensor, layer: Layer, out: Tensor) -> Tensor:
        """See `Products.linear_relu`."""
        return torch.addmm(layer.bias, rows, layer.weight_t, out=out).relu_()

    def input_gradient(self, gradient: Tensor, layer: Layer, out: Tensor) -> Tensor:
        """See `Products.input_gradient`."""
        return torch.mm(gradient, layer.weight, out=out)

    def weight_gradient(self, gradient: Tensor, rows: Tensor, out: Tensor) -> None:
        """See `Products.weight_gradient`."""
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

    def linear_relu(self, rows: Tensor, layer: Layer, out: Tensor) -> Tensor:
        """See `Products.linear_relu`."""
        # The ReLU of oneDNN's product, and PyTorch's of a sum, are quicker, and make 0 of what is no number: learning
        # that diverges would go on unseen.
        return self.linear(rows, layer, out).relu_()

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
    """Return ``onednn`` for a processor with instructions of 512 bits that is known not to be Intel's, else ``blas``.

    Args:
        capability: as PyTorch calls it, such as ``AVX512``.
        processor: what Linux says of it in ``/proc/cpuinfo``; empty where nothing is known.
    """
    wide = capability.startswith("AVX512")
    return "onednn" if wide and processor and "GenuineIntel" not in processor else "blas"


def has_onednn() -> bool:
    """Whether PyTorch offers oneDNN's product of dense tensors."""
    built_with_it: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return built_with_it and hasattr(torch.ops.mkldnn, "_linear_pointwise")
