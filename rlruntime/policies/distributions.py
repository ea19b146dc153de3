"""Action distributions over the output of a policy head.

`N` rows, `P` parameters a row (logits, or means and logarithms of standard deviations). A distribution draws its
noise for a whole rollout at once, samples by one cheap operation from noise and parameters, and gives the closed-form
gradient of log-probability and entropy by its parameters. The same noise makes a uniformly random action.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlruntime.errors import ConfigError

_MASKED_LOGIT = -1e8  # finite, so that 0 * log(0) stays 0; exp of it is exactly 0


class Evaluation(NamedTuple):
    """Log-probability and entropy of `N` rows, and what their gradient needs.

    Attributes:
        log_prob: ``[N]`` of the actions, in nats.
        entropy: ``[N]`` in nats.
        saved: intermediate tensors for `ActionDistribution.gradient`.
    """

    log_prob: Tensor
    entropy: Tensor
    saved: tuple[Tensor, ...]


class ActionDistribution(nn.Module, ABC):
    """A family of distributions over one action space.

    Attributes:
        num_params: `P`, width of the policy head.
        noise_shape: shape of the noise of one action.
        action_shape: shape of one action, ``()`` for Discrete.
        action_dtype: dtype actions are stored in.
    """

    num_params: int
    noise_shape: tuple[int, ...]
    action_shape: tuple[int, ...]
    action_dtype: torch.dtype

    def complete(self, head: Tensor) -> Tensor:
        """Return parameters ``[N, P']``: the head's output ``[N, P]`` and what this module adds of its own."""
        return head

    def complete_backward(self, d_params: Tensor) -> Tensor:
        """Return the gradient ``[N, P]`` by the head's output, given that by the parameters; write the ``.grad`` of
        this module's own parameters.
        """
        return d_params

    def array_completion(self) -> Callable[[np.ndarray, np.ndarray], None] | None:
        """Return what writes `complete` of an array into another, None where `complete` changes nothing.

        It looks at this module's parameters where they lie now.
        """
        return None

    def draw_noise(self, leading: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        """Return noise ``leading + noise_shape`` for `sample`."""
        noise = torch.empty((*leading, *self.noise_shape), device=device)
        self.fill_noise(noise, generator)
        return noise

    @abstractmethod
    def fill_noise(self, out: Tensor, generator: torch.Generator) -> None:
        """Write noise for `sample` into ``out [..., *noise_shape]``."""

    @abstractmethod
    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        """Write a sample for each row of ``params`` and ``noise`` into ``out [N, ...]``."""

    def sample_array(self, params: np.ndarray, noise: np.ndarray, out: np.ndarray) -> None:
        """Do what `sample` does to arrays, without a mask."""
        self.sample(torch.from_numpy(params), torch.from_numpy(noise), None, torch.from_numpy(out))

    @abstractmethod
    def sample_uniform(self, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        """Write a uniformly random action of those that are allowed for each row of ``noise`` into ``out [N, ...]``.

        The noise is that of `sample`; a dimension of a box without bounds has a standard normal instead.
        """

    def uniform(self, generator: torch.Generator, mask: Tensor | None, out: Tensor) -> None:
        """Do what `sample_uniform` does with noise that is drawn for it."""
        leading = tuple(out.shape[: out.ndim - len(self.action_shape)])
        self.sample_uniform(self.draw_noise(leading, generator, out.device), mask, out)

    @abstractmethod
    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return the most probable action of each row, ``[N, ...]``."""

    @abstractmethod
    def evaluate(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Evaluation:
        """Return log-probability and entropy of each row; differentiable by ``params``."""

    @abstractmethod
    def gradient(self, evaluation: Evaluation, d_log_prob: Tensor, d_entropy: float) -> Tensor:
        """Return the gradient ``[N, P']`` by the parameters of ``sum(d_log_prob * log_prob + d_entropy * entropy)``."""

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """Return actions as the environment takes them, of the same leading shape."""
        return action

    def to_env_tensor(self, action: Tensor) -> Tensor:
        """Do what `to_env` does to a tensor on this module's device."""
        return action


class Categorical(ActionDistribution):
    """Discrete actions, by the Gumbel-max trick."""

    def __init__(self, space: gym.spaces.Discrete) -> None:
        super().__init__()
        self.num_params = int(space.n)
        self.noise_shape = (self.num_params,)
        self.action_shape = ()
        self.action_dtype = torch.int64

    def fill_noise(self, out: Tensor, generator: torch.Generator) -> None:
        _fill_gumbel(out, generator)

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        torch.argmax(masked(params, mask) + noise, -1, out=out)

    def sample_array(self, params: np.ndarray, noise: np.ndarray, out: np.ndarray) -> None:
        (params + noise).argmax(-1, out=out)

    def sample_uniform(self, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        torch.argmax(masked(noise, mask), -1, out=out)

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return masked(params, mask).argmax(-1)

    def evaluate(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Evaluation:
        log_probs = masked(params, mask).log_softmax(-1)
        probs = log_probs.exp()
        index = action.unsqueeze(-1)
        entropy = -(probs * log_probs).sum(-1)
        return Evaluation(log_probs.gather(-1, index).squeeze(-1), entropy, (log_probs, probs, index))

    def gradient(self, evaluation: Evaluation, d_log_prob: Tensor, d_entropy: float) -> Tensor:
        log_probs, probs, index = evaluation.saved
        by_row = d_log_prob.unsqueeze(-1)
        gradient = probs * -by_row
        gradient.scatter_add_(-1, index, by_row)
        if d_entropy != 0.0:
            gradient.addcmul_(probs, log_probs + evaluation.entropy.unsqueeze(-1), value=-d_entropy)
        return gradient


class MultiCategorical(ActionDistribution):
    """MultiDiscrete actions: independent categories, whose logits lie side by side."""

    def __init__(self, space: gym.spaces.MultiDiscrete) -> None:
        super().__init__()
        self.sizes = [int(n) for n in space.nvec.reshape(-1)]
        self.parts = [Categorical(gym.spaces.Discrete(n)) for n in self.sizes]
        self.num_params = sum(self.sizes)
        self.noise_shape = (self.num_params,)
        self.action_shape = tuple(space.nvec.shape)
        self.action_dtype = torch.int64

    def _split(self, tensor: Tensor | None) -> tuple[Tensor, ...] | tuple[None, ...]:
        return (None,) * len(self.sizes) if tensor is None else tensor.split_with_sizes(self.sizes, -1)

    def _unflatten(self, flat: Tensor) -> Tensor:
        return flat.reshape(*flat.shape[:-1], *self.action_shape)

    def fill_noise(self, out: Tensor, generator: torch.Generator) -> None:
        _fill_gumbel(out, generator)

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        perturbed = masked(params, mask) + noise
        choices = [part.argmax(-1) for part in perturbed.split_with_sizes(self.sizes, -1)]
        out.copy_(self._unflatten(torch.stack(choices, -1)))

    def sample_uniform(self, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        self.sample(torch.zeros_like(noise), noise, mask, out)

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        choices = [part.argmax(-1) for part in masked(params, mask).split_with_sizes(self.sizes, -1)]
        return self._unflatten(torch.stack(choices, -1))

    def evaluate(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Evaluation:
        actions = action.reshape(*action.shape[: action.ndim - len(self.action_shape)], -1).unbind(-1)
        pieces = zip(self.parts, params.split_with_sizes(self.sizes, -1), actions, self._split(mask), strict=True)
        parts = [part.evaluate(logits, chosen, allowed) for part, logits, chosen, allowed in pieces]
        log_prob = torch.stack([part.log_prob for part in parts]).sum(0)
        entropy = torch.stack([part.entropy for part in parts]).sum(0)
        saved = tuple(tensor for part in parts for tensor in (*part.saved, part.log_prob, part.entropy))
        return Evaluation(log_prob, entropy, saved)

    def gradient(self, evaluation: Evaluation, d_log_prob: Tensor, d_entropy: float) -> Tensor:
        gradients = []
        for number, part in enumerate(self.parts):
            *saved, log_prob, entropy = evaluation.saved[5 * number : 5 * number + 5]
            gradients.append(part.gradient(Evaluation(log_prob, entropy, tuple(saved)), d_log_prob, d_entropy))
        return torch.cat(gradients, -1)


class BoxDistribution(ActionDistribution):
    """Box actions in the policy's units, in which -1 and 1 are the bounds of a dimension.

    A dimension without bounds (or with bounds whose distance float32 doesn't hold) stays in the environment's units.
    Actions beyond the bounds are clipped on their way to the environment, never in what is learned from.

    Attributes:
        size: `A`, numbers of an action.
    """

    low: Tensor
    high: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__()
        self.action_shape = tuple(space.shape)
        self.size = math.prod(self.action_shape)
        self.noise_shape = (self.size,)
        self.action_dtype = torch.float32
        low, high = (torch.from_numpy(bound) for bound in _float32_bounds(space))
        bounded = (high - low).isfinite()
        centre = torch.where(bounded, (low + high) / 2, 0.0)
        scale = torch.where(bounded, (high - low) / 2, 1.0)
        self.is_bounded = bool(bounded.all())
        self._is_bounded_at = bounded.reshape(-1)
        self._arrays = tuple(bound.numpy().copy() for bound in (low, high, centre, scale))
        self.register_buffer("low", low)
        self.register_buffer("high", high)
        self.register_buffer("centre", centre)
        self.register_buffer("scale", scale)

    def sample_uniform(self, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        uniform = torch.erf(noise * math.sqrt(0.5))  # 2 Phi(z) - 1 of a standard normal z
        if not self.is_bounded:
            uniform = torch.where(self._is_bounded_at.to(noise.device), uniform, noise)
        out.view(noise.shape).copy_(uniform)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        low, high, centre, scale = self._arrays
        return np.asarray(np.clip(centre + scale * action, low, high))

    def to_env_tensor(self, action: Tensor) -> Tensor:
        return torch.clamp(self.centre + self.scale * action, self.low, self.high)

    def shaped(self, flat: Tensor) -> Tensor:
        """Return numbers ``[N, A]`` as actions ``[N, ...]``."""
        return flat.reshape(*flat.shape[:-1], *self.action_shape)


class DiagonalGaussian(BoxDistribution):
    """Independent normals with a mean from the head and a standard deviation that doesn't depend on the state."""

    def __init__(self, space: gym.spaces.Box, initial_log_std: float = 0.0) -> None:
        super().__init__(space)
        self.num_params = self.size
        self.log_std = nn.Parameter(torch.full((self.size,), initial_log_std))

    def complete(self, head: Tensor) -> Tensor:
        return torch.cat([head, self.log_std.expand_as(head)], -1)

    def complete_backward(self, d_params: Tensor) -> Tensor:
        torch.sum(d_params[:, self.size :], 0, out=self.log_std.grad)
        return d_params[:, : self.size]

    def array_completion(self) -> Callable[[np.ndarray, np.ndarray], None]:
        log_std, size = self.log_std.detach().numpy(), self.size

        def complete(head: np.ndarray, out: np.ndarray) -> None:
            out[:, :size] = head
            out[:, size:] = log_std

        return complete

    def fill_noise(self, out: Tensor, generator: torch.Generator) -> None:
        out.normal_(generator=generator)

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        mean, log_std = params.chunk(2, -1)
        torch.addcmul(mean, log_std.exp(), noise, out=out.view(mean.shape))

    def sample_array(self, params: np.ndarray, noise: np.ndarray, out: np.ndarray) -> None:
        flat = out.reshape(noise.shape)
        np.multiply(np.exp(params[..., self.size :]), noise, out=flat)
        flat += params[..., : self.size]

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        mean, _ = params.chunk(2, -1)
        return self.shaped(mean)

    def evaluate(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Evaluation:
        mean, log_std = params.chunk(2, -1)
        inverse_std = (-log_std).exp()
        standardised = (action.reshape(mean.shape) - mean) * inverse_std
        log_prob = (standardised.square() * -0.5 - log_std).sum(-1) - 0.5 * math.log(2 * math.pi) * self.size
        entropy = log_std.sum(-1) + 0.5 * (1 + math.log(2 * math.pi)) * self.size
        return Evaluation(log_prob, entropy, (standardised, inverse_std))

    def gradient(self, evaluation: Evaluation, d_log_prob: Tensor, d_entropy: float) -> Tensor:
        standardised, inverse_std = evaluation.saved
        by_row = d_log_prob.unsqueeze(-1)
        d_mean = by_row * standardised * inverse_std
        d_log_std = by_row * (standardised.square() - 1.0) + d_entropy
        return torch.cat([d_mean, d_log_std], -1)


def make_distribution(space: gym.Space[Any]) -> ActionDistribution:
    """Return the distribution for an action space.

    Raises:
        ConfigError: the space is none of Discrete, MultiDiscrete and Box.
    """
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(space)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return MultiCategorical(space)
    if isinstance(space, gym.spaces.Box):
        return DiagonalGaussian(space)
    raise ConfigError(
        f"the action space {type(space).__name__} is not supported",
        field="spec.training.env",
        value=space,
        remedy="use an environment with Discrete, MultiDiscrete or Box actions, or a wrapper that makes it one",
    )


def _float32_bounds(space: gym.spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds as float32, rounded inwards so that a clipped action lies within a float64 space too."""
    with np.errstate(over="ignore"):
        low, high = np.array(space.low, np.float32), np.array(space.high, np.float32)
    low = np.where(low < space.low, np.nextafter(low, np.float32(np.inf)), low)
    high = np.where(high > space.high, np.nextafter(high, np.float32(-np.inf)), high)
    return low.astype(np.float32), high.astype(np.float32)


def _fill_gumbel(out: Tensor, generator: torch.Generator) -> None:
    out.exponential_(generator=generator).log_().neg_()


def masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Return ``logits`` with those of forbidden actions far below all others."""
    return logits if mask is None else logits.masked_fill(~mask, _MASKED_LOGIT)
