"""Distributions over bounded boxes that a hyperbolic tangent keeps within the bounds.

Their noise comes from uniform numbers, one after the other, so that on the CPU it doesn't depend on how many steps it
is drawn for at once.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rlruntime.errors import ConfigError
from rlruntime.policies.distributions import BoxDistribution, Evaluation

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
_LOG_2 = math.log(2.0)
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)
_QUADRATURE_POINTS = 32


class PathwiseSample(NamedTuple):
    """Actions as a function of parameters and noise, and what its gradient needs.

    Attributes:
        action: ``[N, A]`` in the policy's units.
        log_prob: ``[N]`` in nats.
        saved: intermediate tensors for ``pathwise_gradient``.
    """

    action: Tensor
    log_prob: Tensor
    saved: tuple[Tensor, ...]

    def narrow(self, start: int, length: int) -> PathwiseSample:
        """Return ``length`` rows from ``start``, as views."""
        saved = tuple(tensor.narrow(0, start, length) for tensor in self.saved)
        return PathwiseSample(self.action.narrow(0, start, length), self.log_prob.narrow(0, start, length), saved)


class SquashedDistribution(BoxDistribution):
    """What the distributions of this module share."""

    def __init__(self, space: gym.Space[Any], algorithm: str) -> None:
        if not isinstance(space, gym.spaces.Box):
            raise _unsuitable(f"{algorithm} needs Box actions", space, "use algorithm: PPO or DQN")
        super().__init__(space)
        if not self.is_bounded:
            remedy = "bound the action space in the environment, or by a wrapper of your own, or use algorithm: PPO"
            raise _unsuitable(f"{algorithm} needs actions with bounds in every dimension", space, remedy)

    def fill_noise(self, out: Tensor, generator: torch.Generator) -> None:
        fill_normal(out, generator)


class SquashedGaussian(SquashedDistribution):
    r"""The hyperbolic tangent of independent normals (Haarnoja et al. 2018, arXiv:1812.05905, appendix C).

    Mean and logarithm of the standard deviation both come from the head; the latter is held within -20 and 2, beyond
    which its gradient is 0. With :math:`u = \mu + \sigma \epsilon` and :math:`a = \tanh u`,

    .. math:: \log\pi(a) = \sum_i \log N(u_i; \mu_i, \sigma_i) - \log(1 - \tanh^2 u_i), \quad
              \log(1 - \tanh^2 u) = 2 (\log 2 - u - \mathrm{softplus}(-2u)),

    where the latter form is exact for large magnitudes of u too.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__(space, "SAC")
        self.num_params = 2 * self.size

    def _split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        return params[..., : self.size], params[..., self.size :].clamp(LOG_STD_MIN, LOG_STD_MAX)

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        mean, log_std = self._split(params)
        torch.tanh(torch.addcmul(mean, log_std.exp(), noise), out=out.view(mean.shape))

    def sample_array(self, params: np.ndarray, noise: np.ndarray, out: np.ndarray) -> None:
        flat = out.reshape(noise.shape)
        std = np.exp(params[..., self.size :].clip(LOG_STD_MIN, LOG_STD_MAX))
        np.multiply(std, noise, out=flat)
        flat += params[..., : self.size]
        np.tanh(flat, out=flat)

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return the tangent of the mean: the median of each dimension, and what is meant by acting without noise."""
        return self.shaped(torch.tanh(params[..., : self.size]))

    def evaluate(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Evaluation:
        """See `ActionDistribution.evaluate`. The entropy is by Gauss-Hermite quadrature, since it has no closed form;
        the log-probability of an action at a bound is that of the nearest number within it.
        """
        mean, log_std = self._split(params)
        inverse_std = (-log_std).exp()
        inside = 1.0 - torch.finfo(action.dtype).eps / 2
        before = torch.atanh(action.reshape(mean.shape).clamp(-inside, inside))
        standardised = (before - mean) * inverse_std
        log_prob = (-0.5 * standardised.square() - log_std - _HALF_LOG_2_PI - _log_slope(before)).sum(-1)
        points, weights = _quadrature(params)
        expected_log_slope = _log_slope(mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * points) @ weights
        entropy = (log_std + 0.5 + _HALF_LOG_2_PI + expected_log_slope).sum(-1)
        return Evaluation(log_prob, entropy, (params, standardised, inverse_std))

    def gradient(self, evaluation: Evaluation, d_log_prob: Tensor, d_entropy: float) -> Tensor:
        params, standardised, inverse_std = evaluation.saved
        by_row = d_log_prob.unsqueeze(-1)
        d_mean = by_row * standardised * inverse_std
        d_log_std = by_row * (standardised.square() - 1.0)
        if d_entropy != 0.0:
            mean, log_std = self._split(params)
            points, weights = _quadrature(params)
            deviation = log_std.exp().unsqueeze(-1) * points
            slope = -2.0 * torch.tanh(mean.unsqueeze(-1) + deviation)  # of the logarithm of the tangent's slope
            d_mean = d_mean + d_entropy * (slope @ weights)
            d_log_std = d_log_std + d_entropy * (1.0 + (slope * deviation) @ weights)
        return torch.cat([d_mean, self._within(params, d_log_std)], -1)

    def pathwise(self, params: Tensor, noise: Tensor) -> PathwiseSample:
        """Return actions and their log-probabilities for standard normal ``noise [N, A]``, without a graph."""
        mean, log_std = self._split(params)
        deviation = log_std.exp().mul_(noise)
        before = mean + deviation
        action = torch.tanh(before)
        # 2 (u + softplus(-2u)) - log sigma - epsilon^2 / 2, summed; the constants follow.
        terms = functional.softplus(before * -2.0).add_(before).mul_(2.0).sub_(log_std)
        terms.addcmul_(noise, noise, value=-0.5)
        log_prob = terms.sum(-1).sub_(self.size * (_HALF_LOG_2_PI + 2.0 * _LOG_2))
        return PathwiseSample(action, log_prob, (params, deviation))

    def pathwise_gradient(self, sample: PathwiseSample, d_action: Tensor, d_log_prob: float) -> Tensor:
        """Return the gradient ``[N, P]`` by the parameters of ``sum(d_action * action + d_log_prob * log_prob)`` with
        the noise held fixed: the reparameterised gradient (equation 9 of the paper).
        """
        params, deviation = sample.saved
        action = sample.action
        # d log pi / d u = 2 tanh u; d a / d u = 1 - tanh^2 u; d u / d log sigma = sigma epsilon.
        d_before = torch.addcmul(d_action, d_action, action.square(), value=-1.0).add_(action, alpha=2.0 * d_log_prob)
        d_log_std = (d_before * deviation).sub_(d_log_prob)
        return torch.cat([d_before, self._within(params, d_log_std)], -1)

    def _within(self, params: Tensor, d_log_std: Tensor) -> Tensor:
        """Return the gradient by the head's logarithm of the deviation: 0 where it is held."""
        return torch.ops.aten.hardtanh_backward(d_log_std, params[..., self.size :], LOG_STD_MIN, LOG_STD_MAX)  # type: ignore[no-any-return]


class Deterministic(SquashedDistribution):
    """One action for each state, with clipped normal noise where a sample is asked for (Fujimoto et al. 2018,
    arXiv:1802.09477).

    The noise explores and is no part of what is learned: log-probability and entropy are 0, and so are their gradients.

    Attributes:
        exploration_noise: standard deviation, in units in which the bounds are -1 and 1. It travels with the weights.
    """

    noise_scale: Tensor

    def __init__(self, space: gym.Space[Any], exploration_noise: float = 0.1) -> None:
        super().__init__(space, "TD3")
        self.num_params = self.size
        self.register_buffer("noise_scale", torch.tensor(exploration_noise))

    @property
    def exploration_noise(self) -> float:
        """See the class."""
        return float(self.noise_scale)

    @exploration_noise.setter
    def exploration_noise(self, value: float) -> None:
        self.noise_scale.fill_(value)

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        action = torch.addcmul(torch.tanh(params), self.noise_scale, noise)
        torch.clamp(action, -1.0, 1.0, out=out.view(params.shape))

    def sample_array(self, params: np.ndarray, noise: np.ndarray, out: np.ndarray) -> None:
        flat = out.reshape(noise.shape)
        np.tanh(params, out=flat)
        flat += noise * np.float32(self.exploration_noise)
        np.clip(flat, -1.0, 1.0, out=flat)

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return self.shaped(torch.tanh(params))

    def evaluate(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Evaluation:
        zero = params.sum(-1) * 0.0
        return Evaluation(zero, zero, (params,))

    def gradient(self, evaluation: Evaluation, d_log_prob: Tensor, d_entropy: float) -> Tensor:
        (params,) = evaluation.saved
        return torch.zeros_like(params)

    def action_gradient(self, action: Tensor, d_action: Tensor) -> Tensor:
        """Return the gradient ``[N, P]`` by the parameters of ``sum(d_action * action)``, for `mode`'s action."""
        return torch.ops.aten.tanh_backward(d_action, action)  # type: ignore[no-any-return]


def fill_normal(out: Tensor, generator: torch.Generator) -> None:
    """Write standard normals, one for each of the generator's numbers in turn, by the inverse of their distribution.

    ``Tensor.normal_`` makes other numbers when asked for them in other portions. With 24 bits the magnitudes end at
    5.4.
    """
    out.uniform_(generator=generator).mul_(2.0).sub_(1.0).clamp_(min=-1.0 + 2.0**-24)
    out.erfinv_().mul_(math.sqrt(2.0))


def _log_slope(before: Tensor) -> Tensor:
    """Return ``log(1 - tanh(u)^2)``."""
    return 2.0 * (_LOG_2 - before - functional.softplus(-2.0 * before))


def _quadrature(like: Tensor) -> tuple[Tensor, Tensor]:
    """Return points and weights ``[Q]`` for expectations over a standard normal."""
    points, weights = np.polynomial.hermite_e.hermegauss(_QUADRATURE_POINTS)
    weights = weights / math.sqrt(2.0 * math.pi)
    return like.new_tensor(points), like.new_tensor(weights)


def _unsuitable(problem: str, space: gym.Space[Any], remedy: str) -> ConfigError:
    return ConfigError(problem, field="spec.training.env", value=space, remedy=remedy)
