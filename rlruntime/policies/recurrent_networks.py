"""The built-in networks with memory: LSTM and GRU over a flattened observation."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from rlruntime.policies.networks import ACTIVATIONS, Flatten, linear_layers
from rlruntime.policies.observations import ObservationTensor
from rlruntime.policies.recurrent import State
from rlruntime.registry import register
from rlruntime.spec.training.network import GRUConfig, LSTMConfig


class RecurrentNetwork(nn.Module):
    """Linear layers over the flattened observation, then PyTorch's recurrent layers.

    A sequence is cut where episodes begin, and its pieces run together in one call, packed by their lengths: the same
    numbers as step by step, to float32 rounding. Recurrent weights are orthogonal, biases 0.

    Args:
        layers: the recurrent ones, `nn.LSTM` or `nn.GRU`.
        names: of the tensors of their state, in their order.
    """

    def __init__(
        self,
        config: LSTMConfig | GRUConfig,
        observation_space: gym.Space[object],
        layers: type[nn.LSTM] | type[nn.GRU],
        names: tuple[str, ...],
    ) -> None:
        super().__init__()
        self.shared = config.shared
        self.flatten = Flatten(observation_space)
        self.layers, size = linear_layers(self.flatten.output_size, config.hidden_sizes)
        self.activation = ACTIVATIONS[config.activation]
        self.recurrent = layers(size, config.recurrent_size, config.num_layers)
        for name, parameter in self.recurrent.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)
        self.output_size = config.recurrent_size
        self.names = names
        self.recurrent_state_shapes = dict.fromkeys(names, (config.num_layers, config.recurrent_size))
        self.train(False)

    def train(self, mode: bool = True) -> RecurrentNetwork:
        """Leave the recurrent layers in training mode: they have no dropout, and cuDNN has gradients in it alone."""
        super().train(mode)
        self.recurrent.train()
        return self

    def forward(self, observation: ObservationTensor, state: State, is_init: Tensor) -> tuple[Tensor, State]:
        """Return features ``[N, recurrentSize]`` and the next state; ``state`` is zeros where ``is_init``."""
        rows = self._before(observation).unsqueeze(0)
        output, after = self._run(rows, [state[name].transpose(0, 1).contiguous() for name in self.names])
        return output[0], self._by_name(after)

    def forward_sequence(self, observation: ObservationTensor, state: State, is_init: Tensor) -> tuple[Tensor, State]:
        """Return features ``[T * N, recurrentSize]`` and the state after the last step."""
        inputs = self._before(observation)
        first = is_init[0].view(-1, 1, 1)
        begins = [state[name].masked_fill(first, 0.0).transpose(0, 1).contiguous() for name in self.names]
        if not bool(is_init[1:].any()):
            output, after = self._run(inputs.view(*is_init.shape, -1), begins)
            return output.flatten(0, 1), self._by_name(after)
        pieces = Pieces.of(is_init)
        begins = [
            rows.new_zeros((rows.shape[0], pieces.num_pieces, rows.shape[2])).index_copy(1, pieces.first, rows)
            for rows in begins
        ]
        packed = PackedSequence(inputs.index_select(0, pieces.rows), pieces.batch_sizes)
        packed_output, after = self._run(packed, begins)
        features = packed_output.data.index_select(0, pieces.places)
        return features, self._by_name([rows.index_select(1, pieces.last) for rows in after])

    def _before(self, observation: ObservationTensor) -> Tensor:
        features: Tensor = self.flatten(observation)
        for layer in self.layers:
            features = self.activation(functional.linear(features, layer.weight, layer.bias))  # type: ignore[arg-type]
        return features

    def _run(self, inputs: Tensor | PackedSequence, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        begins = state[0] if len(state) == 1 else tuple(state)
        if state[0].device.type == "cpu":
            output, after = self.recurrent(inputs, begins)
        else:
            with warnings.catch_warnings():
                # cuDNN would rather have all weights in an order of its own; they are views of the optimiser's.
                warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")
                output, after = self.recurrent(inputs, begins)
        return output, [after] if isinstance(after, Tensor) else list(after)

    def _by_name(self, state: list[Tensor]) -> State:
        return {name: rows.transpose(0, 1) for name, rows in zip(self.names, state, strict=True)}


@register("network", "LSTM")
class LSTM(RecurrentNetwork):
    """Long short-term memory (Hochreiter and Schmidhuber 1997)."""

    Config = LSTMConfig

    def __init__(self, config: LSTMConfig, observation_space: gym.Space[object]) -> None:
        super().__init__(config, observation_space, nn.LSTM, ("hidden", "cell"))


@register("network", "GRU")
class GRU(RecurrentNetwork):
    """Gated recurrent units (Cho et al. 2014, arXiv:1406.1078)."""

    Config = GRUConfig

    def __init__(self, config: GRUConfig, observation_space: gym.Space[object]) -> None:
        super().__init__(config, observation_space, nn.GRU, ("hidden",))


class Pieces(NamedTuple):
    """A sequence ``[T, N]`` cut where episodes begin, as pieces that are packed: the longest first, side by side.

    Attributes:
        rows: ``[T * N]``, of each place in the pack the row it holds, time first.
        places: ``[T * N]``, of each row its place.
        batch_sizes: ``[L]`` on the CPU, pieces that are longer than each number of steps.
        first, last: ``[N]``, the piece that each column begins and ends with.
        num_pieces: pieces.
    """

    rows: Tensor
    places: Tensor
    batch_sizes: Tensor
    first: Tensor
    last: Tensor
    num_pieces: int

    @classmethod
    def of(cls, is_init: Tensor) -> Pieces:
        """Cut at every step where ``is_init [T, N]``."""
        num_steps, num_rows = is_init.shape
        total, device = num_steps * num_rows, is_init.device
        begins = is_init.t().clone()
        begins[:, 0] = True
        begins = begins.reshape(total)  # by column from here on
        piece = begins.cumsum(0) - 1
        starts = begins.nonzero().squeeze(1)
        lengths = torch.diff(starts, append=torch.tensor([total], device=device))
        count = len(lengths)
        rank = torch.empty_like(lengths)
        rank[lengths.argsort(descending=True, stable=True)] = torch.arange(count, device=device)
        within = torch.arange(total, device=device) - starts[piece]
        ranked = rank[piece]
        columns = (within * count + ranked).argsort()
        rows = columns % num_steps * num_rows + columns // num_steps
        places = torch.empty_like(rows)
        places[rows] = torch.arange(total, device=device)
        by_column = ranked.view(num_rows, num_steps)
        return cls(rows, places, torch.bincount(within).cpu(), by_column[:, 0], by_column[:, -1], count)
