"""Backpropagation (Rumelhart, Hinton and Williams 1986) written out for multi-layer perceptrons on the CPU.

Recording and walking an automatic graph takes as long as the arithmetic of the networks that most control problems are
learned with, and so does the memory that each operation takes for its result. Here both are gone: nothing requires a
gradient, and every result lies in memory that is kept. The numbers agree with automatic differentiation's to float32
rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlruntime.policies.networks import MLP, tanh, tanh_without_gradient
from rlruntime.policies.observations import ObservationTensor
from rlruntime.policies.products import Layer, Products

_WRITTEN_OUT = (tanh, torch.relu)


def is_written_out(encoder: nn.Module) -> bool:
    """Whether `Tower` can take the encoder's place: it is an MLP with at least a layer, with tanh or ReLU, on the CPU,
    and all of it learns.
    """
    return (
        type(encoder) is MLP
        and len(encoder.layers) > 0
        and encoder.activation in _WRITTEN_OUT
        and all(parameter.requires_grad and parameter.device.type == "cpu" for parameter in encoder.parameters())
    )


class Scratch:
    """Memory for matrices that nobody needs once a pass is over: towers that work one after the other share it, so that
    more of it stays in the processor's caches.
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[str, tuple[int, ...]], list[Tensor]] = {}
        self._views: dict[tuple[str, tuple[int, ...]], list[Tensor]] = {}

    def matrices(self, use: str, widths: tuple[int, ...], num_rows: int, like: Tensor) -> list[Tensor]:
        """Return matrices ``[num_rows, width]`` for a use, of the kind of ``like``; what they hold is undefined."""
        key = use, widths
        views = self._views.get(key)
        if views is None or views[0].shape[0] != num_rows:
            memory = self._memory.get(key)
            if memory is None or memory[0].shape[0] < num_rows:
                memory = self._memory[key] = [like.new_empty((num_rows, width)) for width in widths]
            views = self._views[key] = [matrix[:num_rows] for matrix in memory]
        return views


class Tower:
    """The layers of one encoder that `is_written_out`, and what its last forward pass left in them.

    Parameters and their ``.grad`` must stay where they are in memory. What is returned lies in memory that the next
    call of the same kind writes over.

    Args:
        encoder: whose parameters are used.
        products: multiplies matrices.
        scratch: may be shared with towers that work in the same thread; then gradients, and the features of one that is
            for inference, last until another's next pass.
        for_inference: there will be no backward pass.
    """

    def __init__(
        self, encoder: nn.Module, products: Products, scratch: Scratch, *, for_inference: bool = False
    ) -> None:
        assert isinstance(encoder, MLP)
        self.flatten = encoder.flatten
        self._is_tanh = encoder.activation is tanh
        self._layers = [Layer.of(layer) for layer in encoder.layers if isinstance(layer, nn.Linear)]
        self._widths = tuple(layer.bias.shape[0] for layer in self._layers)
        self._products, self._scratch = products, scratch
        self._results = scratch if for_inference else Scratch()
        self._activations: list[Tensor] = []

    @property
    def output(self) -> Tensor:
        """Features ``[N, H]`` of the last forward pass."""
        return self._activations[-1]

    def gradient_memory(self, num_rows: int) -> Tensor:
        """Return memory ``[num_rows, H]`` for the gradient by the features that `backward` is given."""
        return self._memory("gradients", num_rows)[-1]

    def forward(self, observation: ObservationTensor) -> Tensor:
        """Return features ``[N, H]``."""
        return self.forward_rows(self.flatten(observation))

    def forward_rows(self, rows: Tensor) -> Tensor:
        """Return features ``[N, H]`` of rows that are flat already."""
        results = self._results.matrices("results", self._widths, rows.shape[0], self._layers[0].bias)
        activations, features = [rows], rows
        for layer, out in zip(self._layers, results, strict=True):
            if self._is_tanh:
                doubled = torch.addmm(layer.bias, features, layer.weight_t, beta=2, alpha=2, out=out)
                features = tanh_without_gradient(doubled)
            else:
                features = self._products.linear_relu(features, layer, out)
            activations.append(features)
        self._activations = activations
        return features

    def backward(self, d_features: Tensor) -> None:
        """Write every parameter's ``.grad``, given the gradient ``[n, H]`` by the features of the first `n` rows of the
        last forward pass; those of the others are 0.
        """
        num_rows, activations = d_features.shape[0], self._activations
        if num_rows != activations[0].shape[0]:
            activations = [activation[:num_rows] for activation in activations]
        products, gradients, gradient = self._products, self._memory("gradients", num_rows), d_features
        for number in range(len(self._layers) - 1, -1, -1):
            layer, inputs, outputs = self._layers[number], activations[number], activations[number + 1]
            gradient = self._through_activation(gradient, outputs, gradients[number])
            write_gradients(products, layer, inputs, gradient)
            if number:
                gradient = products.input_gradient(gradient, layer, gradients[number - 1])

    def input_gradient(self, d_features: Tensor, columns: slice, rows: Tensor | None = None) -> Tensor:
        """Return the gradient ``[N, columns]`` by some columns of the flat rows; no ``.grad`` is written.

        Args:
            d_features: ``[N, H]``; ``[n, H]`` with ``rows``. It may be expanded from fewer numbers.
            columns: which ones.
            rows: numbers ``[n]`` of the rows that count; None stands for all.
        """
        num_rows = self._activations[0].shape[0]
        gradient, gradients = d_features, self._memory("gradients", num_rows)
        for number in range(len(self._layers) - 1, -1, -1):
            outputs = self._activations[number + 1]
            if rows is not None:
                width = self._widths[number : number + 1]
                (memory,) = self._scratch.matrices("selected", width, num_rows, outputs)
                outputs = torch.index_select(outputs, 0, rows, out=memory[: len(rows)])
            gradient = self._through_activation(gradient, outputs, gradients[number][: outputs.shape[0]])
            if number:
                out = gradients[number - 1][: outputs.shape[0]]
                gradient = self._products.input_gradient(gradient, self._layers[number], out)
        return self._products.column_gradient(gradient, self._layers[0], columns)

    def _through_activation(self, gradient: Tensor, outputs: Tensor, out: Tensor) -> Tensor:
        """Write ``gradient * (1 - outputs^2)`` of tanh, ``gradient * (outputs > 0)`` of ReLU, into ``out``."""
        if self._is_tanh:
            result: Tensor = torch.ops.aten.tanh_backward.grad_input(gradient, outputs, grad_input=out)
        else:
            result = torch.ops.aten.threshold_backward.grad_input(gradient, outputs, 0, grad_input=out)
        return result

    def _memory(self, use: str, num_rows: int) -> list[Tensor]:
        return self._scratch.matrices(use, self._widths, num_rows, self._layers[0].bias)


def linear(products: Products, layer: Layer, inputs: Tensor) -> Tensor:
    """Return a layer's outputs in memory of their own."""
    return products.linear(inputs, layer, inputs.new_empty((inputs.shape[0], layer.bias.shape[0])))


def through_linear(products: Products, layer: Layer, inputs: Tensor, gradient: Tensor, out: Tensor) -> Tensor:
    """Write a layer's gradients and return that of its inputs, for which ``out`` is memory."""
    write_gradients(products, layer, inputs, gradient)
    return products.input_gradient(gradient, layer, out)


def write_gradients(products: Products, layer: Layer, inputs: Tensor, gradient: Tensor) -> None:
    """Write the ``.grad`` of a layer's weight and bias."""
    assert layer.weight_grad is not None
    products.weight_gradient(gradient, inputs, layer.weight_grad)
    torch.sum(gradient, 0, out=layer.bias_grad)
