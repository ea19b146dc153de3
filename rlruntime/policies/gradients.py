"""From the gradient of a policy's heads to that of its parameters.

Losses give the gradient by what the network put out in closed form. What is left is the network itself: by PyTorch's
automatic differentiation for any of them, or written out for the multi-layer perceptrons that most control problems
are learned with, where recording and walking the graph takes as long as the arithmetic.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.distributions import ActionDistribution
from rlruntime.policies.networks import MLP, tanh, tanh_without_gradient
from rlruntime.policies.observations import ObservationTensor


class Gradient(Protocol):
    """One forward and one backward pass, in turn."""

    def forward(self, observation: ObservationTensor) -> tuple[Tensor, Tensor]:
        """Return action parameters ``[N, P]`` and values ``[N]``, without a graph."""

    def backward(self, d_params: Tensor, d_value: Tensor) -> None:
        """Write into every parameter's ``.grad`` the gradient of a loss with these gradients by the last outputs."""


def make_gradient(policy: ActorCritic) -> Gradient:
    """Return the quickest gradient that fits the policy; they agree to float32 rounding. Every ``.grad`` must exist."""
    encoders = (policy.actor_encoder, policy.critic_encoder)
    written_out = (
        policy.actor_head.weight.device.type == "cpu"
        and all(type(encoder) is MLP and encoder.activation is tanh for encoder in encoders)
        and all(parameter.requires_grad for parameter in policy.parameters())
    )
    return PerceptronGradient(policy) if written_out else AutogradGradient(policy)


class AutogradGradient:
    """By automatic differentiation, for any network."""

    def __init__(self, policy: ActorCritic) -> None:
        self._policy = policy
        self._parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        self._outputs: tuple[Tensor, Tensor] | None = None

    def forward(self, observation: ObservationTensor) -> tuple[Tensor, Tensor]:
        """See `Gradient.forward`."""
        self._outputs = self._policy.params_and_values(observation)
        params, value = self._outputs
        return params.detach(), value.detach()

    def backward(self, d_params: Tensor, d_value: Tensor) -> None:
        """See `Gradient.backward`."""
        if self._outputs is None:
            raise RuntimeError("backward needs a forward pass before it")
        (params, value), self._outputs = self._outputs, None
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        # The inner product with known gradients has those gradients. (torch.autograd.backward with two tensors does
        # the same, and imports torch's compiler on its first call, which takes as long as torch itself.)
        product = torch.dot(params.flatten(), d_params.flatten()) + torch.dot(value, d_value)
        product.backward()  # type: ignore[no-untyped-call]


class PerceptronGradient:
    """Backpropagation (Rumelhart, Hinton and Williams 1986) written out for towers of linear layers and tanh, on the
    CPU.
    """

    def __init__(self, policy: ActorCritic) -> None:
        self._policy = policy
        self._actor = _Tower(policy.actor_encoder)
        self._critic = self._actor if policy.shared else _Tower(policy.critic_encoder)

    @torch.no_grad()
    def forward(self, observation: ObservationTensor) -> tuple[Tensor, Tensor]:
        """See `Gradient.forward`."""
        policy = self._policy
        rows = policy.preprocess(observation)
        features = self._actor.forward(rows)
        judged = features if policy.shared else self._critic.forward(rows)
        head = torch.addmm(policy.actor_head.bias, features, policy.actor_head.weight.t())
        value = torch.addmv(policy.critic_head.bias, judged, policy.critic_head.weight[0])
        return policy.distribution.complete(head), value

    @torch.no_grad()
    def backward(self, d_params: Tensor, d_value: Tensor) -> None:
        """See `Gradient.backward`."""
        policy = self._policy
        d_head = _through_completion(policy.distribution, d_params, policy.actor_head.out_features)
        d_values = d_value.unsqueeze(1)
        d_features = _through_linear(policy.actor_head, self._actor.output, d_head)
        d_judged = _through_linear(policy.critic_head, self._critic.output, d_values)
        if policy.shared:
            self._actor.backward(d_features.add_(d_judged))
        else:
            self._actor.backward(d_features)
            self._critic.backward(d_judged)


class _Tower:
    """The layers of one encoder, and what the last forward pass left in them."""

    def __init__(self, encoder: nn.Module) -> None:
        assert isinstance(encoder, MLP)
        self._flatten = encoder.flatten
        self._layers = [layer for layer in encoder.layers if isinstance(layer, nn.Linear)]
        self._activations: list[Tensor] = []

    @property
    def output(self) -> Tensor:
        return self._activations[-1]

    def forward(self, rows: ObservationTensor) -> Tensor:
        activations: list[Tensor] = [self._flatten(rows)]
        for layer in self._layers:
            doubled = torch.addmm(layer.bias, activations[-1], layer.weight.t(), beta=2, alpha=2)
            activations.append(tanh_without_gradient(doubled))
        self._activations = activations
        return activations[-1]

    def backward(self, gradient: Tensor) -> None:
        for number in range(len(self._layers) - 1, -1, -1):
            layer, inputs, outputs = self._layers[number], self._activations[number], self._activations[number + 1]
            gradient = _through_tanh(gradient, outputs)
            _write_gradients(layer, inputs, gradient)
            if number:
                gradient = gradient.mm(layer.weight)


def _through_tanh(gradient: Tensor, outputs: Tensor) -> Tensor:
    """Return ``gradient * (1 - outputs^2)``."""
    result: Tensor = torch.ops.aten.tanh_backward(gradient, outputs)
    return result


def _through_linear(layer: nn.Linear, inputs: Tensor, gradient: Tensor) -> Tensor:
    """Write a layer's gradients and return that of its inputs."""
    _write_gradients(layer, inputs, gradient)
    return gradient.mm(layer.weight)


def _write_gradients(layer: nn.Linear, inputs: Tensor, gradient: Tensor) -> None:
    torch.mm(gradient.t(), inputs, out=layer.weight.grad)
    torch.sum(gradient, 0, out=layer.bias.grad)


def _through_completion(distribution: ActionDistribution, d_params: Tensor, num_head: int) -> Tensor:
    """Write the gradients of the distribution's own parameters and return that of the head."""
    log_std = getattr(distribution, "log_std", None)
    if log_std is None:
        return d_params
    torch.sum(d_params[:, num_head:], 0, out=log_std.grad)
    return d_params[:, :num_head]
