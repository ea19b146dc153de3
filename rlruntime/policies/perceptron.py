"""Backpropagation (Rumelhart, Hinton and Williams 1986) written out for multi-layer perceptrons on the CPU.

Recording and walking an automatic graph takes as long as the arithmetic of the networks that most control problems are
learned with. Everything here runs without a graph; the numbers agree with automatic differentiation's to float32
rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlruntime.policies.networks import MLP, tanh, tanh_without_gradient
from rlruntime.policies.observations import ObservationTensor
from rlruntime.policies.products import Products

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

    Args:
        encoder: whose parameters are used where they lie at each call.
        products: multiplies matrices.
    """

    def __init__(self, encoder: nn.Module, products: Products) -> None:
        assert isinstance(encoder, MLP)
        self.flatten = encoder.flatten
        self._is_tanh = encoder.activation is tanh
        self._layers = [layer for layer in encoder.layers if isinstance(layer, nn.Linear)]
        self._products = products
        self._activations: list[Tensor] = []

    @property
    def output(self) -> Tensor:
        """Features ``[N, H]`` of the last forward pass."""
        return self._activations[-1]

    def forward(self, observation: ObservationTensor) -> Tensor:
        """Return features ``[N, H]``."""
        return self.forward_rows(self.flatten(observation))

    def forward_rows(self, rows: Tensor) -> Tensor:
        """Return features ``[N, H]`` of rows that are flat already."""
        activations = [rows]
        for layer in self._layers:
            if self._is_tanh:
                doubled = torch.addmm(layer.bias, activations[-1], layer.weight.t(), beta=2, alpha=2)
                activations.append(tanh_without_gradient(doubled))
            else:
                activations.append(self._products.linear_relu(activations[-1], layer.weight, layer.bias))
        self._activations = activations
        return activations[-1]

    def backward(self, d_features: Tensor) -> None:
        """Write every parameter's ``.grad``, given the gradient by the features of the last forward pass."""
        products, gradient = self._products, d_features
        for number in range(len(self._layers) - 1, -1, -1):
            layer, inputs, outputs = self._layers[number], self._activations[number], self._activations[number + 1]
            gradient = self._through_activation(gradient, outputs)
            write_gradients(products, layer, inputs, gradient)
            if number:
                gradient = products.input_gradient(gradient, layer.weight)

    def input_gradient(self, d_features: Tensor, columns: slice) -> Tensor:
        """Return the gradient by some columns of the flat rows; no ``.grad`` is written."""
        gradient = d_features
        for number in range(len(self._layers) - 1, 0, -1):
            gradient = self._through_activation(gradient, self._activations[number + 1])
            gradient = self._products.input_gradient(gradient, self._layers[number].weight)
        gradient = self._through_activation(gradient, self._activations[1])
        return gradient.mm(self._layers[0].weight[:, columns])

    def _through_activation(self, gradient: Tensor, outputs: Tensor) -> Tensor:
        """Return ``gradient * (1 - outputs^2)`` of tanh, ``gradient * (outputs > 0)`` of ReLU."""
        if self._is_tanh:
            result: Tensor = torch.ops.aten.tanh_backward(gradient, outputs)
        else:
            result = torch.ops.aten.threshold_backward(gradient, outputs, 0)
        return result


def through_linear(products: Products, layer: nn.Linear, inputs: Tensor, gradient: Tensor) -> Tensor:
    """Write a layer's gradients and return that of its inputs."""
    write_gradients(products, layer, inputs, gradient)
    return products.input_gradient(gradient, layer.weight)


def write_gradients(products: Products, layer: nn.Linear, inputs: Tensor, gradient: Tensor) -> None:
    """Write the ``.grad`` of a layer's weight and bias."""
    assert layer.weight.grad is not None
    products.weight_gradient(gradient, inputs, layer.weight.grad)
    torch.sum(gradient, 0, out=layer.bias.grad)
