"""Products of matrices on the CPU: the one seam to the kernel that computes them.

PyTorch's own products of float32 matrices are those of the BLAS library that it was built with. Its wheels for x86-64
have MKL, which on processors that aren't Intel's doesn't use the widest instructions, and oneDNN, which does: at 256
rows and 256 units it takes half the time, at the same accuracy. PyTorch offers oneDNN's product of dense tensors to its
compiler (``torch.ops.mkldnn._linear_pointwise``), and that is what is called here.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

_FEW_MULTIPLICATIONS = 64 * 64 * 64  # below, a call of oneDNN takes longer than the product


class Products(Protocol):
    """The products that forward and backward passes of linear layers need; nothing records a graph.

    Attributes:
        name: of the kernel.
    """

    name: str

    def linear_relu(self, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return ``relu(rows weight^T + bias)``, ``[N, out]``."""

    def input_gradient(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """Return ``gradient weight``, ``[N, in]``."""

    def weight_gradient(self, gradient: Tensor, rows: Tensor, out: Tensor) -> None:
        """Write ``gradient^T rows`` into ``out [out, in]``."""


class BlasProducts:
    """By PyTorch's own functions, on any device."""

    name = "blas"

    def linear_relu(self, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """See `Products.linear_relu`."""
        return torch.addmm(bias, rows, weight.t()).relu_()

    def input_gradient(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """See `Products.input_gradient`."""
        return gradient.mm(weight)

    def weight_gradient(self, gradient: Tensor, rows: Tensor, out: Tensor) -> None:
        """See `Products.weight_gradient`."""
        torch.mm(gradient.t(), rows, out=out)


def make_products(parameter: Tensor) -> Products:
    """Return the products for layers whose parameters are like ``parameter``."""
    return BlasProducts()
