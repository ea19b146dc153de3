"""The gradient of a policy with memory: backpropagation through time, by PyTorch's automatic differentiation."""

from __future__ import annotations

import torch
from torch import Tensor

from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.gradients import zero_gradients
from rlruntime.policies.observations import ObservationTensor, flatten_time
from rlruntime.policies.recurrent import State


class SequenceGradient:
    """One forward and one backward pass over whole sequences, in turn."""

    def __init__(self, policy: ActorCritic) -> None:
        self._policy = policy
        self._parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        self._outputs: tuple[Tensor, Tensor] | None = None

    @torch.enable_grad()
    def forward(
        self, observation: ObservationTensor, state: State, is_init: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return action parameters ``[n, P]`` and values ``[n]`` of some rows, without a graph.

        Args:
            observation: ``[T, b, ...]``.
            state: ``[b, ...]`` by name, before the first step.
            is_init: ``[T, b]`` bool.
            rows: ``[n]`` int64, of the ``T * b`` rows, time first, those that are asked for.
        """
        params, value, _ = self._policy.params_and_values_over(flatten_time(observation), state, is_init)
        self._outputs = params.index_select(0, rows), value.index_select(0, rows)
        return self._outputs[0].detach(), self._outputs[1].detach()

    def backward(self, d_params: Tensor, d_value: Tensor) -> None:
        """Write into every parameter's ``.grad`` the gradient of a loss with these gradients by the last outputs."""
        if self._outputs is None:
            raise RuntimeError("backward needs a forward pass before it")
        (params, value), self._outputs = self._outputs, None
        zero_gradients(self._parameters)
        product = torch.dot(params.flatten(), d_params.flatten()) + torch.dot(value, d_value)
        product.backward()  # type: ignore[no-untyped-call]
