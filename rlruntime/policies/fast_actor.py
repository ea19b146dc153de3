"""Acting with small networks on the CPU, in NumPy.

For a few rows and two layers of 64 units the arithmetic takes a few microseconds, and PyTorch's dispatch of each
operation as long again. NumPy calls on preallocated arrays, which are views of the very parameters that learn, take
about half the time. The numbers agree with PyTorch's to float32 rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.distributions import Categorical, DiagonalGaussian
from rlruntime.policies.networks import MLP, tanh

_MAX_MULTIPLICATIONS = 1 << 17  # per layer; a larger product is better left to PyTorch's threads and kernels


def _relu(array: np.ndarray, out: np.ndarray) -> None:
    np.maximum(array, 0.0, out=out)


_ACTIVATIONS: dict[Callable[[torch.Tensor], torch.Tensor], Callable[..., object]] = {
    tanh: np.tanh,
    torch.relu: _relu,
}


class FastActor:
    """The action parameters of an actor-critic for exactly ``num_rows`` rows.

    Args:
        policy: one that `fast_actor` has found fit.
        num_rows: `B`.
    """

    def __init__(self, policy: ActorCritic, num_rows: int) -> None:
        encoder = policy.actor_encoder
        assert isinstance(encoder, MLP)
        self._activation = _ACTIVATIONS[encoder.activation]
        layers = [*encoder.layers, policy.actor_head]
        self._layers = [(_array(layer.weight).T, _array(layer.bias)) for layer in layers]
        self._buffers = [np.empty((num_rows, bias.size), np.float32) for _, bias in self._layers]
        log_std = getattr(policy.distribution, "log_std", None)
        self._log_std = None if log_std is None else _array(log_std)

    def __call__(self, observation: np.ndarray, out: np.ndarray) -> None:
        """Write the parameters ``[B, P]`` for ``observation [B, n]`` into ``out``."""
        rows, activation = observation, self._activation
        *hidden, (head_weight, head_bias) = self._layers
        for (weight, bias), buffer in zip(hidden, self._buffers, strict=False):
            np.dot(rows, weight, out=buffer)
            np.add(buffer, bias, out=buffer)
            activation(buffer, out=buffer)
            rows = buffer
        if self._log_std is None:
            head = self._buffers[-1]
            np.dot(rows, head_weight, out=head)
            np.add(head, head_bias, out=out)
        else:
            size = head_bias.size
            np.dot(rows, head_weight, out=self._buffers[-1])
            np.add(self._buffers[-1], head_bias, out=out[:, :size])
            out[:, size:] = self._log_std


def fast_actor(policy: ActorCritic, num_rows: int) -> FastActor | None:
    """Return a fast actor, or None unless the policy is a small MLP on float vectors, untransformed, on the CPU."""
    encoder = policy.actor_encoder
    fit = (
        type(encoder) is MLP
        and encoder.flatten.plain
        and encoder.activation in _ACTIVATIONS
        and not policy.transforms
        and policy.deferrable
        and type(policy.distribution) in (Categorical, DiagonalGaussian)
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
