"""Settings of the built-in networks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlruntime.spec.base import AsTuple, PositiveInt, SpecModel

Activation = Literal["Tanh", "ReLU", "ELU", "SiLU", "GELU"]
Sizes = Annotated[tuple[PositiveInt, ...], AsTuple]


class MLPConfig(SpecModel):
    """`type: MLP`: a multi-layer perceptron over the flattened, concatenated observation."""

    hidden_sizes: Sizes = Field(default=(64, 64), max_length=16)
    """Width of each hidden layer."""
    activation: Activation = "Tanh"
    """Non-linearity after each hidden layer."""
    shared: bool = False
    """Whether policy and value share the network up to their heads."""


class CNNConfig(SpecModel):
    """`type: CNN`: convolutions over images; parts of a Dict observation that are no image are appended after them."""

    channels: Sizes = Field(default=(32, 64, 64), min_length=1, max_length=16)
    """Output channels of each convolution."""
    kernel_sizes: Sizes = Field(default=(8, 4, 3), min_length=1, max_length=16)
    """Kernel edge of each convolution, in pixels."""
    strides: Sizes = Field(default=(4, 2, 1), min_length=1, max_length=16)
    """Stride of each convolution, in pixels."""
    hidden_sizes: Sizes = Field(default=(512,), max_length=16)
    """Width of each fully connected layer after the convolutions."""
    activation: Activation = "ReLU"
    """Non-linearity after each layer."""
    shared: bool = True
    """Whether policy and value share the network up to their heads."""


class _RecurrentConfig(SpecModel):
    """Settings of the networks with memory."""

    hidden_sizes: Sizes = Field(default=(64,), max_length=16)
    """Width of each fully connected layer before the recurrent ones."""
    activation: Activation = "Tanh"
    """Non-linearity after each fully connected layer."""
    recurrent_size: PositiveInt = 64
    """Width of each recurrent layer, and of its memory."""
    num_layers: Annotated[PositiveInt, Field(le=16)] = 1
    """Recurrent layers, each over the one before."""
    shared: bool = False
    """Whether policy and value share the network up to their heads."""


class LSTMConfig(_RecurrentConfig):
    """`type: LSTM`: a recurrent network with long short-term memory over the flattened, concatenated observation."""


class GRUConfig(_RecurrentConfig):
    """`type: GRU`: a recurrent network with gated recurrent units over the flattened, concatenated observation."""
