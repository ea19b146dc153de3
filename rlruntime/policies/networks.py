"""The built-in networks: encoders from an observation to features.

An encoder is an ``nn.Module`` with an attribute ``output_size`` whose ``forward(observation)`` maps `N` rows of an
observation (a tensor, or a flat dict of them) to ``[N, output_size]``. One of your own is named in the manifest as
``package.module:Class`` and is called with its config, as keyword arguments or as its ``Config`` model, after the
observation space. Initialisation of the built-in ones is orthogonal with gain sqrt(2), as in Huang et al. 2022, "The
37 implementation details of PPO".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rlruntime.errors import ConfigError
from rlruntime.policies.observations import ObservationTensor, is_image, one_hot, scales_as_bytes, space_leaves
from rlruntime.registry import register
from rlruntime.spec.training.network import CNNConfig, MLPConfig

_FEW_NUMBERS = 4096


def tanh(features: Tensor) -> Tensor:
    """Return the hyperbolic tangent.

    PyTorch's CPU kernel for it takes three times as long as that of the logistic function. Where no gradient is
    recorded, 2 sigma(2 z) - 1 gives the same numbers to within float32's rounding of 1 in half the time.
    """
    if torch.is_grad_enabled() or features.device.type != "cpu" or torch.compiler.is_exporting():
        return torch.tanh(features)
    return tanh_without_gradient(features * 2.0)


def tanh_without_gradient(doubled: Tensor) -> Tensor:
    """Return the hyperbolic tangent of half of ``doubled``, in the memory of ``doubled``."""
    if doubled.numel() <= _FEW_NUMBERS:
        return doubled.mul_(0.5).tanh_()
    return doubled.sigmoid_().mul_(2.0).sub_(1.0)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Tanh": tanh,
    "ReLU": torch.relu,
    "ELU": functional.elu,
    "SiLU": functional.silu,
    "GELU": functional.gelu,
}

_Layer = TypeVar("_Layer", nn.Linear, nn.Conv2d)


class Flatten(nn.Module):
    """Every leaf of an observation as float32 columns: numbers as they are, bytes as 0 to 1, categories one-hot.

    Attributes:
        sizes: columns of each leaf by its key, in the order in which they lie.
        output_size: their sum.
        plain: whether an observation is its columns already.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        self.leaves = space_leaves(space)
        self.sizes = {key: _flat_size(leaf) for key, leaf in self.leaves.items()}
        self.output_size = sum(self.sizes.values())
        self.plain = not isinstance(space, gym.spaces.Dict) and _is_plain_vector(space)

    def forward(self, observation: ObservationTensor) -> Tensor:
        if self.plain and isinstance(observation, Tensor):
            return observation
        parts = observation if isinstance(observation, dict) else {"": observation}
        columns = [_flat(parts[key], leaf) for key, leaf in self.leaves.items()]
        return columns[0] if len(columns) == 1 else torch.cat(columns, -1)


@register("network", "MLP")
class MLP(nn.Module):
    """A multi-layer perceptron over the flattened, concatenated observation."""

    Config = MLPConfig

    def __init__(self, config: MLPConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self.shared = config.shared
        self.flatten = Flatten(observation_space)
        self.layers, self.output_size = linear_layers(self.flatten.output_size, config.hidden_sizes)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, observation: ObservationTensor) -> Tensor:
        features: Tensor = self.flatten(observation)
        for layer in self.layers:
            features = self.activation(functional.linear(features, layer.weight, layer.bias))  # type: ignore[arg-type]
        return features


@register("network", "CNN")
class CNN(nn.Module):
    """Convolutions over each image, then fully connected layers over their output and the rest of the observation.

    Images may be height x width x channels or channels first: the smaller of first and last dimension is taken as the
    channels.
    """

    Config = CNNConfig

    def __init__(self, config: CNNConfig, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        if not len(config.channels) == len(config.kernel_sizes) == len(config.strides):
            raise ConfigError(
                "channels, kernelSizes and strides must have the same length",
                field="spec.training.network.config",
                value=(list(config.channels), list(config.kernel_sizes), list(config.strides)),
                remedy="give one entry for each convolution",
            )
        self.shared = config.shared
        leaves = space_leaves(observation_space)
        self.images = {key: leaf for key, leaf in leaves.items() if is_image(leaf)}
        if not self.images:
            raise ConfigError(
                "the observation has no image, a Box with three dimensions",
                field="spec.training.network.type",
                value="CNN",
                remedy="use type: MLP",
            )
        rest = {key: leaf for key, leaf in leaves.items() if key not in self.images}
        self.rest = Flatten(gym.spaces.Dict(rest)) if rest else None
        self.activation = ACTIVATIONS[config.activation]
        self.stacks = nn.ModuleList(_convolutions(config, leaf) for leaf in self.images.values())
        with torch.no_grad():
            size = sum(
                self._convolve(torch.zeros(1, *leaf.shape or ()), leaf, stack).shape[-1]
                for leaf, stack in zip(self.images.values(), self.stacks, strict=True)
            )
        size += self.rest.output_size if self.rest is not None else 0
        self.layers, self.output_size = linear_layers(size, config.hidden_sizes)

    def _convolve(self, image: Tensor, space: gym.Space[Any], stack: nn.Module) -> Tensor:
        features = _channels_first(image, space).to(torch.float32)
        if scales_as_bytes(space):
            features = features / 255.0
        for convolution in stack.children():
            features = self.activation(convolution(features))
        return features.flatten(1)

    def forward(self, observation: ObservationTensor) -> Tensor:
        parts = observation if isinstance(observation, dict) else {"": observation}
        columns = [
            self._convolve(parts[key], leaf, stack)
            for (key, leaf), stack in zip(self.images.items(), self.stacks, strict=True)
        ]
        if self.rest is not None:
            columns.append(self.rest(parts))
        features = torch.cat(columns, -1) if len(columns) > 1 else columns[0]
        for layer in self.layers:
            features = self.activation(layer(features))
        return features


def orthogonal_(layer: _Layer, gain: float) -> _Layer:
    """Initialise weights orthogonally with ``gain`` and biases with 0; return the layer."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def linear_layers(input_size: int, hidden_sizes: tuple[int, ...]) -> tuple[nn.ModuleList, int]:
    """Return linear layers one behind the other, initialised orthogonally, and the size of the last one's output."""
    sizes = (input_size, *hidden_sizes)
    layers = [orthogonal_(nn.Linear(a, b), math.sqrt(2)) for a, b in pairwise(sizes)]
    return nn.ModuleList(layers), sizes[-1]


def _convolutions(config: CNNConfig, space: gym.Space[Any]) -> nn.Module:
    height, width, channels = _image_size(space)
    stack = nn.Sequential()
    for out_channels, kernel, stride in zip(config.channels, config.kernel_sizes, config.strides, strict=True):
        if min(height, width) < kernel:
            raise ConfigError(
                f"a convolution with kernel {kernel} gets an image of only {height}x{width} pixels",
                field="spec.training.network.config.kernelSizes",
                value=list(config.kernel_sizes),
                remedy="use smaller kernels and strides, or fewer convolutions",
            )
        stack.append(orthogonal_(nn.Conv2d(channels, out_channels, kernel, stride), math.sqrt(2)))
        height, width, channels = (height - kernel) // stride + 1, (width - kernel) // stride + 1, out_channels
    return stack


def _channels_last(space: gym.Space[Any]) -> bool:
    shape = space.shape or ()
    return shape[-1] <= shape[0]


def _image_size(space: gym.Space[Any]) -> tuple[int, int, int]:
    shape = space.shape or ()
    return (shape[0], shape[1], shape[2]) if _channels_last(space) else (shape[1], shape[2], shape[0])


def _channels_first(image: Tensor, space: gym.Space[Any]) -> Tensor:
    return image.permute(0, 3, 1, 2) if _channels_last(space) else image


def _is_plain_vector(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 1 and np.dtype(space.dtype).kind == "f"


def _flat_size(space: gym.Space[Any]) -> int:
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return math.prod(space.shape or ())


def _flat(leaf: Tensor, space: gym.Space[Any]) -> Tensor:
    if isinstance(space, gym.spaces.Discrete):
        return one_hot(leaf - int(space.start), int(space.n))
    if isinstance(space, gym.spaces.MultiDiscrete):
        categories = zip(leaf.flatten(1).unbind(1), space.start.reshape(-1), space.nvec.reshape(-1), strict=True)
        return torch.cat([one_hot(column - int(start), int(size)) for column, start, size in categories], -1)
    flat = leaf.unsqueeze(-1) if leaf.dim() == 1 else leaf.flatten(1)  # of a Box of shape () there is one dimension
    if not flat.is_floating_point():
        flat = flat.to(torch.float32)
    return flat / 255.0 if scales_as_bytes(space) else flat
