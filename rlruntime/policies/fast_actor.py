"""Acting with small networks on the CPU, in NumPy.

For a few rows and two layers of 64 units the arithmetic takes a few microseconds, and PyTorch's dispatch of each
operation as long again. NumPy calls on preallocated arrays, which are views of the very parameters that learn, take
about half the time. The numbers agree with PyTorch's to float32 rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from rlruntime.policies.distributions import Categorical, DiagonalGaussian
from rlruntime.policies.epsilon_greedy import EpsilonGreedy
from rlruntime.policies.networks import MLP, tanh
from rlruntime.policies.policy import Policy
from rlruntime.policies.squashed import Deterministic, SquashedGaussian

_MAX_MULTIPLICATIONS = 1 << 20  # per layer; a larger product is better left to PyTorch's threads and kernels
_DISTRIBUTIONS = (Categorical, DiagonalGaussian, SquashedGaussian, Deterministic, EpsilonGreedy)


def _relu(array: np.ndarray, out: np.ndarray) -> None:
    np.maximum(array, 0.0, out=out)


_ACTIVATIONS: dict[Callable[[torch.Tensor], torch.Tensor], Callable[..., object]] = {
    tanh: np.tanh,
    torch.relu: _relu,
}


class FastActor:
    """The action parameters of a policy for exactly ``num_rows`` rows.

    Args:
        policy: one that `fast_actor` has found fit.
        num_rows: `B`.
    """

    def __init__(self, policy: Policy, num_rows: int) -> None:
        encoder = policy.actor_encoder
        assert isinstance(encoder, MLP)
        self._activation = _ACTIVATIONS[encoder.activation]
        self._tensors = [*encoder.layers.parameters(), *policy.actor_head.parameters()]
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]
        layers = [*encoder.layers, policy.actor_head]
        self._layers = [(_array(layer.weight).T, _array(layer.bias)) for layer in layers]
        self._buffers = [np.empty((num_rows, bias.size), np.float32) for _, bias in self._layers]
        self._complete = policy.distribution.array_completion()

    @property
    def is_current(self) -> bool:
        """Whether the parameters still lie where this actor reads them; an optimiser may have moved them."""
        return [tensor.data_ptr() for tensor in self._tensors] == self._addresses

    def __call__(self, observation: np.ndarray, out: np.ndarray) -> None:
        """Write the parameters ``[B, P]`` for ``observation [B, n]`` into ``out``."""
        rows, activation = observation, self._activation
        *hidden, (head_weight, head_bias) = self._layers
        for (weight, bias), buffer in zip(hidden, self._buffers, strict=False):
            np.dot(rows, weight, out=buffer)
            np.add(buffer, bias, out=buffer)
            activation(buffer, out=buffer)
            rows = buffer
        head = self._buffers[-1]
        np.dot(rows, head_weight, out=head)
        if self._complete is None:
            np.add(head, head_bias, out=out)
        else:
            np.add(head, head_bias, out=head)
            self._complete(head, out)


def fast_actor(policy: Policy, num_rows: int) -> FastActor | None:
    """Return a fast actor, or None unless the policy is a small MLP on float vectors, untransformed, on the CPU."""
    encoder = policy.actor_encoder
    fit = (
        type(encoder) is MLP
        and encoder.flatten.plain
        and encoder.activation in _ACTIVATIONS
        and not policy.transforms
        and policy.deferrable
        and type(policy.distribution) in _DISTRIBUTIONS
        and all(_is_float32_on_cpu(parameter) for parameter in policy.parameters())
        and all(num_rows * _array(layer.weight).size <= _MAX_MULTIPLICATIONS for layer in encoder.layers)
    )
    return FastActor(policy, num_rows) if fit else None


def _is_float32_on_cpu(parameter: torch.Tensor) -> bool:
    return parameter.dtype == torch.float32 and parameter.device.type == "cpu"


def _array(parameter: object) -> np.ndarray:
    assert isinstance(parameter, torch.Tensor)
    array: np.ndarray = parameter.detach().numpy()
    return array
