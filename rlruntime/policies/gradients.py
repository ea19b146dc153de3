"""From the gradient of a policy's outputs to that of its parameters.

Losses give the gradient by what the network put out in closed form. What is left is the network itself: by PyTorch's
automatic differentiation for any of them, or written out for perceptrons (`rlruntime.policies.perceptron`).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.observations import ObservationTensor
from rlruntime.policies.perceptron import Scratch, Tower, is_written_out, linear, through_linear
from rlruntime.policies.policy import Policy
from rlruntime.policies.products import Layer, make_products


class Gradient(Protocol):
    """One forward and one backward pass of an actor-critic, in turn."""

    def forward(self, observation: ObservationTensor) -> tuple[Tensor, Tensor]:
        """Return action parameters ``[N, P]`` and values ``[N]``, without a graph."""

    def backward(self, d_params: Tensor, d_value: Tensor) -> None:
        """Write into every parameter's ``.grad`` the gradient of a loss with these gradients by the last outputs."""


class ActorGradient(Protocol):
    """One forward and one backward pass of a policy alone, in turn, on rows that went through `Policy.preprocess`."""

    def infer(self, observation: ObservationTensor) -> Tensor:
        """Return action parameters ``[N, P]``; what `backward` needs stays that of the last `forward`."""

    def forward(self, observation: ObservationTensor) -> Tensor:
        """Return action parameters ``[N, P]``, without a graph."""

    def forward_both(self, observation: ObservationTensor, following: ObservationTensor) -> Tensor:
        """Return action parameters ``[2 N, P]`` of `N` rows and of `N` others; `backward` is for the former."""

    def backward(self, d_params: Tensor) -> None:
        """Write into every parameter's ``.grad`` the gradient of a loss with this gradient ``[N, P]`` by what the last
        forward pass returned.
        """


def make_gradient(policy: ActorCritic) -> Gradient:
    """Return the quickest gradient that fits the policy; they agree to float32 rounding. Every ``.grad`` must exist."""
    encoders = (policy.actor_encoder, policy.critic_encoder)
    written_out = all(map(is_written_out, encoders)) and _all_learn(policy)
    return PerceptronGradient(policy) if written_out else AutogradGradient(policy)


def make_actor_gradient(policy: Policy, scratch: Scratch | None = None) -> ActorGradient:
    """Return the quickest gradient that fits the policy; they agree to float32 rounding. Every ``.grad`` must exist.

    Args:
        policy: whose parameters are meant.
        scratch: memory shared with others that work in turns with this one; None gives it some of its own.
    """
    written_out = is_written_out(policy.actor_encoder) and _all_learn(policy)
    return PerceptronActorGradient(policy, scratch) if written_out else AutogradActorGradient(policy)


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
        zero_gradients(self._parameters)
        # The inner product with known gradients has those gradients. (torch.autograd.backward with two tensors does
        # the same, and imports torch's compiler on its first call, which takes as long as torch itself.)
        product = torch.dot(params.flatten(), d_params.flatten()) + torch.dot(value, d_value)
        product.backward()  # type: ignore[no-untyped-call]


class AutogradActorGradient:
    """By automatic differentiation, for any network."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        self._params: Tensor | None = None

    @torch.no_grad()
    def infer(self, observation: ObservationTensor) -> Tensor:
        """See `ActorGradient.infer`."""
        return self._policy.params_of(observation)

    @torch.enable_grad()
    def forward(self, observation: ObservationTensor) -> Tensor:
        """See `ActorGradient.forward`."""
        self._params = self._policy.params_of(observation)
        return self._params.detach()

    def forward_both(self, observation: ObservationTensor, following: ObservationTensor) -> Tensor:
        """See `ActorGradient.forward_both`."""
        return torch.cat([self.forward(observation), self.infer(following)])

    def backward(self, d_params: Tensor) -> None:
        """See `ActorGradient.backward`."""
        if self._params is None:
            raise RuntimeError("backward needs a forward pass before it")
        params, self._params = self._params, None
        zero_gradients(self._parameters)
        params.backward(d_params)  # type: ignore[no-untyped-call]


class PerceptronGradient:
    """Written out, for an actor-critic of perceptrons; parameters must stay where they are in memory."""

    def __init__(self, policy: ActorCritic) -> None:
        self._policy = policy
        self._products = make_products(policy.actor_head.weight)
        scratch = Scratch()
        self._actor = Tower(policy.actor_encoder, self._products, scratch)
        self._critic = self._actor if policy.shared else Tower(policy.critic_encoder, self._products, scratch)
        self._actor_head, self._critic_head = Layer.of(policy.actor_head), Layer.of(policy.critic_head)

    @torch.no_grad()
    def forward(self, observation: ObservationTensor) -> tuple[Tensor, Tensor]:
        """See `Gradient.forward`."""
        policy = self._policy
        rows = policy.preprocess(observation)
        features = self._actor.forward(rows)
        judged = features if policy.shared else self._critic.forward(rows)
        head = linear(self._products, self._actor_head, features)
        value = torch.addmv(self._critic_head.bias, judged, self._critic_head.weight[0])
        return policy.distribution.complete(head), value

    @torch.no_grad()
    def backward(self, d_params: Tensor, d_value: Tensor) -> None:
        """See `Gradient.backward`."""
        products, shared = self._products, self._policy.shared
        d_head = self._policy.distribution.complete_backward(d_params)
        actor, critic = self._actor, self._critic
        memory = actor.gradient_memory(d_head.shape[0])
        d_features = through_linear(products, self._actor_head, actor.output, d_head, memory)
        if not shared:
            actor.backward(d_features)
        memory = torch.empty_like(critic.output) if shared else critic.gradient_memory(d_head.shape[0])
        d_judged = through_linear(products, self._critic_head, critic.output, d_value.unsqueeze(1), memory)
        critic.backward(d_features.add_(d_judged) if shared else d_judged)


class PerceptronActorGradient:
    """Written out, for a policy that is a perceptron; parameters must stay where they are in memory."""

    def __init__(self, policy: Policy, scratch: Scratch | None = None) -> None:
        self._policy = policy
        self._products, scratch = make_products(policy.actor_head.weight), scratch or Scratch()
        self._tower = Tower(policy.actor_encoder, self._products, scratch)
        self._inference_tower = Tower(policy.actor_encoder, self._products, scratch, for_inference=True)
        self._head = Layer.of(policy.actor_head)

    def infer(self, observation: ObservationTensor) -> Tensor:
        """See `ActorGradient.infer`."""
        return self._params(self._inference_tower, self._inference_tower.flatten(observation))

    def forward(self, observation: ObservationTensor) -> Tensor:
        """See `ActorGradient.forward`."""
        return self._params(self._tower, self._tower.flatten(observation))

    def forward_both(self, observation: ObservationTensor, following: ObservationTensor) -> Tensor:
        """See `ActorGradient.forward_both`."""
        flatten = self._tower.flatten
        return self._params(self._tower, torch.cat([flatten(observation), flatten(following)]))

    def backward(self, d_params: Tensor) -> None:
        """See `ActorGradient.backward`."""
        d_head = self._policy.distribution.complete_backward(d_params)
        num_rows, tower = d_head.shape[0], self._tower
        memory = tower.gradient_memory(num_rows)
        tower.backward(through_linear(self._products, self._head, tower.output[:num_rows], d_head, memory))

    def _params(self, tower: Tower, rows: Tensor) -> Tensor:
        return self._policy.distribution.complete(linear(self._products, self._head, tower.forward_rows(rows)))


def zero_gradients(parameters: list[nn.Parameter]) -> None:
    """Zero every ``.grad`` that exists."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.zero_()


def _all_learn(policy: Policy) -> bool:
    return all(parameter.requires_grad and parameter.device.type == "cpu" for parameter in policy.parameters())
