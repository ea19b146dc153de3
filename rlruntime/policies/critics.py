"""Critics: values ``Q(s, a)`` of observations and continuous actions, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rlruntime.policies.build import build_encoder
from rlruntime.policies.gradients import zero_gradients
from rlruntime.policies.networks import orthogonal_
from rlruntime.policies.observations import ObservationTensor, space_leaves
from rlruntime.policies.perceptron import Scratch, Tower, is_written_out
from rlruntime.policies.policy import Policy, output_size
from rlruntime.policies.products import Layer, make_products
from rlruntime.seeding import stream_seed

_CRITIC_STREAM = "critic"
_OBSERVATION_KEY, _ACTION_KEY = "observation", "action"


class Critics(nn.Module):
    """`C` networks of one kind over observation and action, each with a linear head of one number.

    What they see is a flat Dict: the leaves of what the policy's transforms make of an observation (``observation``
    where that is a single array), and ``action [N, A]`` in the policy's units.

    Attributes:
        action_key: under which the action is seen; underscores are added where an observation bears the name.
        encoders, heads: by number.
    """

    def __init__(self, encoders: Sequence[nn.Module], observation_key: str | None, action_key: str) -> None:
        super().__init__()
        self.observation_key, self.action_key = observation_key, action_key
        self.encoders = nn.ModuleList(encoders)
        self.heads = nn.ModuleList(orthogonal_(nn.Linear(output_size(encoder), 1), 1.0) for encoder in encoders)
        self.eval()

    def train(self, mode: bool = True) -> Critics:
        """Stay in evaluation mode, as policies do."""
        super().train(False)
        return self

    def inputs(self, observation: ObservationTensor, action: Tensor) -> dict[str, Tensor]:
        """Return what the networks see."""
        flat = action.reshape(action.shape[0], -1)
        if self.observation_key is not None:
            assert isinstance(observation, Tensor)
            return {self.observation_key: observation, self.action_key: flat}
        assert isinstance(observation, dict)
        return {**observation, self.action_key: flat}

    def forward(self, observation: ObservationTensor, action: Tensor, count: int | None = None) -> Tensor:
        """Return values ``[C, N]``.

        Args:
            observation: ``[N, ...]`` that went through `Policy.preprocess`.
            action: ``[N, ...]`` in the policy's units.
            count: of the first critics alone.
        """
        inputs = self.inputs(observation, action)
        values = [_value(encoder, head, inputs) for encoder, head in self.towers(count)]
        return torch.stack(values)

    def towers(self, count: int | None = None) -> list[tuple[nn.Module, nn.Linear]]:
        """Return encoder and head of each critic, or of the first ``count``."""
        pairs = list(zip(self.encoders, self.heads, strict=True))[:count]
        return [(encoder, head) for encoder, head in pairs if isinstance(head, nn.Linear)]


def build_critics(policy: Policy, *, num_critics: int, seed: int) -> Critics:
    """Build critics of the policy's network, with parameters from the ``critic`` stream of ``seed``.

    Raises:
        ConfigError: the network can't work with the observation and the action side by side.
    """
    leaves: dict[str, gym.Space[Any]] = dict(space_leaves(policy.encoder_space))
    single = not isinstance(policy.encoder_space, gym.spaces.Dict)
    if single:
        leaves = {_OBSERVATION_KEY: leaves[""]}
    action_key = _ACTION_KEY
    while action_key in leaves:
        action_key = f"_{action_key}"
    size = int(np.prod(policy.distribution.action_shape))
    space = gym.spaces.Dict({**leaves, action_key: gym.spaces.Box(-1.0, 1.0, (size,), np.float32)})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, _CRITIC_STREAM))
        encoders = [build_encoder(policy.network, space) for _ in range(num_critics)]
        critics = Critics(encoders, _OBSERVATION_KEY if single else None, action_key)
    return critics.to(policy.device)


class CriticGradient(Protocol):
    """Forward and backward passes of critics; `backward` and `action_gradient` belong to the last `forward`."""

    def infer(self, observation: ObservationTensor, action: Tensor) -> Tensor:
        """Return values ``[C, N]``; nothing is kept."""

    def forward(self, observation: ObservationTensor, action: Tensor) -> Tensor:
        """Return values ``[C, N]``, without a graph, for `backward`."""

    def backward(self, d_value: Tensor) -> None:
        """Write into every parameter's ``.grad`` the gradient of a loss with this gradient ``[C, N]`` by the values."""

    def forward_action(self, observation: ObservationTensor, action: Tensor, count: int | None = None) -> Tensor:
        """Return values ``[C, N]``, or those of the first ``count`` critics, for `action_gradient`."""

    def action_gradient(self, d_value: Tensor) -> Tensor:
        """Return the gradient ``[N, A]`` by the actions, given that by the values; no ``.grad`` changes."""


def make_critic_gradient(critics: Critics, scratch: Scratch | None = None) -> CriticGradient:
    """Return the quickest gradient that fits; they agree to float32 rounding. Every ``.grad`` must exist.

    Args:
        critics: networks.
        scratch: memory shared with others that work in turns with these; None gives them some of their own.
    """
    written_out = all(is_written_out(encoder) for encoder in critics.encoders)
    return PerceptronCritics(critics, scratch) if written_out else AutogradCritics(critics)


class AutogradCritics:
    """By automatic differentiation, for any network."""

    def __init__(self, critics: Critics) -> None:
        self._critics = critics
        self._parameters = [parameter for parameter in critics.parameters() if parameter.requires_grad]
        self._values: Tensor | None = None
        self._action: Tensor | None = None

    @torch.no_grad()
    def infer(self, observation: ObservationTensor, action: Tensor) -> Tensor:
        """See `CriticGradient.infer`."""
        values: Tensor = self._critics(observation, action)
        return values

    @torch.enable_grad()
    def forward(self, observation: ObservationTensor, action: Tensor) -> Tensor:
        """See `CriticGradient.forward`."""
        values: Tensor = self._critics(observation, action)
        self._values = values
        return values.detach()

    def backward(self, d_value: Tensor) -> None:
        """See `CriticGradient.backward`."""
        if self._values is None:
            raise RuntimeError("backward needs a forward pass before it")
        values, self._values = self._values, None
        zero_gradients(self._parameters)
        values.backward(d_value)  # type: ignore[no-untyped-call]

    @torch.enable_grad()
    def forward_action(self, observation: ObservationTensor, action: Tensor, count: int | None = None) -> Tensor:
        """See `CriticGradient.forward_action`."""
        self._action = action.detach().requires_grad_()
        values: Tensor = self._critics(observation, self._action, count)
        self._values = values
        return values.detach()

    def action_gradient(self, d_value: Tensor) -> Tensor:
        """See `CriticGradient.action_gradient`."""
        if self._values is None or self._action is None:
            raise RuntimeError("action_gradient needs a forward pass before it")
        values, action = self._values, self._action
        self._values = self._action = None
        gradient: Tensor = torch.autograd.grad(values, action, d_value)[0]
        return gradient


class PerceptronCritics:
    """Written out, for perceptrons (see `rlruntime.policies.perceptron`); parameters must stay where they are."""

    def __init__(self, critics: Critics, scratch: Scratch | None = None) -> None:
        self._critics = critics
        pairs = critics.towers()
        products, scratch = make_products(pairs[0][1].weight), scratch or Scratch()
        self._heads = [Layer.of(head) for _, head in pairs]
        self._towers = [Tower(encoder, products, scratch) for encoder, _ in pairs]
        self._inference_towers = [Tower(encoder, products, scratch, for_inference=True) for encoder, _ in pairs]
        self._action_columns = _columns_of(critics.action_key, self._towers[0])

    def infer(self, observation: ObservationTensor, action: Tensor) -> Tensor:
        """See `CriticGradient.infer`."""
        return self._values(self._inference_towers, observation, action)

    def forward(self, observation: ObservationTensor, action: Tensor) -> Tensor:
        """See `CriticGradient.forward`."""
        return self._values(self._towers, observation, action)

    def backward(self, d_value: Tensor) -> None:
        """See `CriticGradient.backward`."""
        for head, tower, gradient in zip(self._heads, self._towers, d_value.unbind(), strict=True):
            assert head.weight_grad is not None
            torch.mv(tower.output.t(), gradient, out=head.weight_grad[0])
            torch.sum(gradient, 0, keepdim=True, out=head.bias_grad)
            tower.backward(torch.outer(gradient, head.weight[0], out=tower.gradient_memory(len(gradient))))

    def forward_action(self, observation: ObservationTensor, action: Tensor, count: int | None = None) -> Tensor:
        """See `CriticGradient.forward_action`."""
        return self._values(self._towers[:count], observation, action)

    def action_gradient(self, d_value: Tensor) -> Tensor:
        """See `CriticGradient.action_gradient`. Only rows whose gradient isn't 0 are computed: where the least critic
        counts, each row goes through one of them.
        """
        num_rows = d_value.shape[1]
        size = self._action_columns.stop - self._action_columns.start
        total = d_value.new_zeros((num_rows, size))
        for head, tower, gradient in zip(self._heads, self._towers, d_value.unbind(), strict=False):
            rows = gradient.nonzero().squeeze(1)
            some = None if len(rows) == num_rows else rows
            unit = tower.input_gradient(head.weight.expand(len(rows), -1), self._action_columns, some)
            total.index_add_(0, rows, unit.mul_(gradient.index_select(0, rows).unsqueeze(1)))
        return total

    def _values(self, towers: list[Tower], observation: ObservationTensor, action: Tensor) -> Tensor:
        rows = towers[0].flatten(self._critics.inputs(observation, action))
        values = torch.empty((len(towers), rows.shape[0]), dtype=rows.dtype)
        for head, tower, value in zip(self._heads, towers, values.unbind(), strict=False):
            torch.addmv(head.bias, tower.forward_rows(rows), head.weight[0], out=value)
        return values


def _value(encoder: nn.Module, head: nn.Linear, inputs: dict[str, Tensor]) -> Tensor:
    return functional.linear(encoder(inputs), head.weight, head.bias).squeeze(-1)


def _columns_of(key: str, tower: Tower) -> slice:
    """Return where the columns of a leaf lie in flat rows."""
    start = 0
    for name, size in tower.flatten.sizes.items():
        if name == key:
            return slice(start, start + size)
        start += size
    raise KeyError(key)
