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


class Tower:
    """The layers of one encoder that `is_written_out`, and what its last forward pass left in them.

    Parameters and their ``.grad`` must stay where they are in memory. What is returned lies in memory that the next
    call of the same kind writes over.

    Args:
        encoder: whose parameters are used.
        products: multiplies matrices.
    """

    def __init__(self, encoder: nn.Module, products: Products) -> None:
        assert isinstance(encoder, MLP)
        self.flatten = encoder.flatten
        self._is_tanh = encoder.activation is tanh
        self._layers = [Layer.of(layer) for layer in encoder.layers if isinstance(layer, nn.Linear)]
        self._products = products
        self._activations: list[Tensor] = []
        self._results: list[Tensor] = []
        self._gradients: list[Tensor] = []
        self._selected: list[Tensor] = []

    @property
    def output(self) -> Tensor:
        """Features ``[N, H]`` of the last forward pass."""
        return self._activations[-1]

    def gradient_memory(self, num_rows: int) -> Tensor:
        """Return memory ``[num_rows, H]`` for the gradient by the features that `backward` is given."""
        return self._gradient_memory(num_rows)[-1]

    def forward(self, observation: ObservationTensor) -> Tensor:
        """Return features ``[N, H]``."""
        return self.forward_rows(self.flatten(observation))

    def forward_rows(self, rows: Tensor) -> Tensor:
        """Return features ``[N, H]`` of rows that are flat already."""
        if not self._results or self._results[0].shape[0] != rows.shape[0]:
            self._results = self._allocate(rows.shape[0])
        activations, features = [rows], rows
        for layer, out in zip(self._layers, self._results, strict=True):
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
        products, gradients, gradient = self._products, self._gradient_memory(num_rows), d_features
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
        gradient, gradients = d_features, self._gradient_memory(self._activations[0].shape[0])
        for number in range(len(self._layers) - 1, -1, -1):
            outputs = self._activations[number + 1]
            if rows is not None:
                outputs = torch.index_select(outputs, 0, rows, out=self._selection_memory()[number][: len(rows)])
            gradient = self._through_activation(gradient, outputs, gradients[number][: outputs.shape[0]])
            if number:
                out = gradients[number - 1][: outputs.shape[0]]
                gradient = self._products.input_gradient(gradient, self._layers[number], out)
        return gradient.mm(self._layers[0].weight[:, columns])

    def _through_activation(self, gradient: Tensor, outputs: Tensor, out: Tensor) -> Tensor:
        """Write ``gradient * (1 - outputs^2)`` of tanh, ``gradient * (outputs > 0)`` of ReLU, into ``out``."""
        if self._is_tanh:
            result: Tensor = torch.ops.aten.tanh_backward.grad_input(gradient, outputs, grad_input=out)
        else:
            result = torch.ops.aten.threshold_backward.grad_input(gradient, outputs, 0, grad_input=out)
        return result

    def _gradient_memory(self, num_rows: int) -> list[Tensor]:
        if not self._gradients or self._gradients[0].shape[0] != num_rows:
            self._gradients = self._allocate(num_rows)
        return self._gradients

    def _selection_memory(self) -> list[Tensor]:
        num_rows = self._activations[0].shape[0]
        if not self._selected or self._selected[0].shape[0] != num_rows:
            self._selected = self._allocate(num_rows)
        return self._selected

    def _allocate(self, num_rows: int) -> list[Tensor]:
        return [layer.bias.new_empty((num_rows, layer.bias.shape[0])) for layer in self._layers]


def through_linear(products: Products, layer: Layer, inputs: Tensor, gradient: Tensor, out: Tensor) -> Tensor:
    """Write a layer's gradients and return that of its inputs, for which ``out`` is memory."""
    write_gradients(products, layer, inputs, gradient)
    return products.input_gradient(gradient, layer, out)


def write_gradients(products: Products, layer: Layer, inputs: Tensor, gradient: Tensor) -> None:
    """Write the ``.grad`` of a layer's weight and bias."""
    assert layer.weight_grad is not None
    products.weight_gradient(gradient, inputs, layer.weight_grad)
    torch.sum(gradient, 0, out=layer.bias_grad)
