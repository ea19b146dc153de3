"""Policy losses of one minibatch of `N` rows, with their closed-form gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rlruntime.losses.checks import require_float, require_rank, require_shape


class ClippedSurrogate(NamedTuple):
    """Outcome of `clipped_surrogate`.

    Attributes:
        loss: scalar, to be minimised.
        gradient: ``[N]``, derivative of ``loss`` by ``log_prob``.
        approx_kl: scalar, estimate of KL(behaviour || current) in nats.
        clip_fraction: scalar, share of rows whose ratio lies outside the clip range.
    """

    loss: Tensor
    gradient: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def clipped_surrogate(
    log_prob: Tensor, behaviour_log_prob: Tensor, advantage: Tensor, *, clip_epsilon: float
) -> ClippedSurrogate:
    r"""Clipped surrogate objective (Schulman et al. 2017, arXiv:1707.06347, equation 7), negated.

    .. math:: L = -\frac{1}{N} \sum_i \min(\rho_i A_i, \mathrm{clip}(\rho_i, 1-\epsilon, 1+\epsilon) A_i), \quad
              \rho_i = \exp(\log\pi(a_i) - \log\mu(a_i))

    Its derivative by a row's log-probability is ``-rho A / N`` where the first term is the smaller one, else 0. The KL
    estimate is Schulman's k3, ``mean(rho - 1 - log rho)`` (http://joschu.net/blog/kl-approx.html).

    Args:
        log_prob: ``[N]`` of the current policy; need not require gradients.
        behaviour_log_prob: ``[N]`` of the policy that acted.
        advantage: ``[N]``.
        clip_epsilon: half-width of the clip range.
    """
    require_rank("log_prob", log_prob, 1)
    for name, tensor in (
        ("log_prob", log_prob),
        ("behaviour_log_prob", behaviour_log_prob),
        ("advantage", advantage),
    ):
        require_float(name, tensor)
        require_shape(name, tensor, log_prob.shape)
    with torch.no_grad():
        log_ratio = log_prob - behaviour_log_prob
        ratio = log_ratio.exp()
        unclipped = ratio * advantage
        clipped_ratio = ratio.clamp(1.0 - clip_epsilon, 1.0 + clip_epsilon)
        objective = torch.minimum(unclipped, clipped_ratio * advantage)
        gradient = torch.where(objective == unclipped, unclipped, 0.0).mul_(-1.0 / log_prob.shape[0])
        return ClippedSurrogate(
            loss=-objective.mean(),
            gradient=gradient,
            approx_kl=ratio.sub(1.0).sub_(log_ratio).mean(),
            clip_fraction=(ratio != clipped_ratio).to(ratio.dtype).mean(),
        )
