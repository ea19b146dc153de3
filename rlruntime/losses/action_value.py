"""Losses of action values, for learning from replay: one batch of `N` rows and `C` critics."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rlruntime.losses.checks import require_bool, require_float, require_rank, require_shape


class ActionValueLoss(NamedTuple):
    """Outcome of a regression of action values on targets.

    Attributes:
        loss: scalar, to be minimised.
        gradient: derivative of ``loss`` by the values, of their shape.
        error: target less value, of their shape: the temporal-difference error.
    """

    loss: Tensor
    gradient: Tensor
    error: Tensor


def td_target(reward: Tensor, discount: Tensor | float, terminated: Tensor, next_value: Tensor) -> Tensor:
    r"""Target of temporal-difference learning, :math:`y = r + \gamma (1 - terminated) V(s')`.

    Truncation doesn't come into it: an episode that was cut off would have gone on.

    Args:
        reward: ``[N]``; the discounted sum of `m` rewards where the next observation is `m` steps ahead.
        discount: of the next value: one number, or ``[N]`` where `m` differs.
        terminated: ``[N]`` bool.
        next_value: ``[N]``; what it holds in rows that terminated doesn't matter.
    """
    require_rank("reward", reward, 1)
    require_float("reward", reward)
    require_shape("terminated", terminated, reward.shape)
    require_bool("terminated", terminated)
    require_shape("next_value", next_value, reward.shape)
    if isinstance(discount, Tensor):
        require_shape("discount", discount, reward.shape)
    with torch.no_grad():
        return next_value.masked_fill(terminated, 0.0).mul_(discount).add_(reward)


def squared_td_loss(value: Tensor, target: Tensor, weight: Tensor | None = None) -> ActionValueLoss:
    r"""Half the mean squared error, summed over the critics (Haarnoja et al. 2018, arXiv:1812.05905, equation 5).

    .. math:: L = \sum_c \frac{1}{2N} \sum_i w_i (Q_{ci} - y_i)^2

    Args:
        value: ``[C, N]`` of the current networks; need not require gradients.
        target: ``[N]``.
        weight: ``[N]`` importance weights, or None for 1.
    """
    require_rank("value", value, 2)
    _check(value, target, weight)
    with torch.no_grad():
        error = target - value
        gradient = error * (-1.0 / value.shape[1])
        if weight is not None:
            gradient.mul_(weight)
        # sum(w e^2) / 2N = -sum(gradient e) / 2
        loss = torch.dot(gradient.view(-1), error.view(-1)).mul_(-0.5)
        return ActionValueLoss(loss, gradient, error)


def huber_td_loss(value: Tensor, target: Tensor, weight: Tensor | None = None) -> ActionValueLoss:
    r"""Mean of Huber's loss with threshold 1: the clipped error of Mnih et al. 2015 (doi:10.1038/nature14236).

    .. math:: L = \frac{1}{N} \sum_i w_i h(y_i - Q_i), \quad
              h(e) = \tfrac{1}{2} e^2 \text{ where } |e| \le 1, \; |e| - \tfrac{1}{2} \text{ beyond}

    Args:
        value: ``[N]`` of the actions taken; need not require gradients.
        target: ``[N]``.
        weight: ``[N]`` importance weights, or None for 1.
    """
    require_rank("value", value, 1)
    _check(value, target, weight)
    with torch.no_grad():
        error = target - value
        clipped = error.clamp(-1.0, 1.0)
        gradient = clipped * (-1.0 / value.shape[0])
        if weight is not None:
            gradient.mul_(weight)
        # h(e) = c (e - c / 2) with c the clipped error
        loss = -torch.dot(gradient, torch.add(error, clipped, alpha=-0.5))
        return ActionValueLoss(loss, gradient, error)


def temperature_gradient(log_prob: Tensor, target_entropy: float) -> Tensor:
    r"""Derivative by :math:`\log\alpha` of :math:`L = -\log\alpha \, (\overline{\log\pi} + \bar H)`, a scalar.

    The temperature rises while the policy's entropy is below its target, and falls while it is above (Haarnoja et al.
    2018, arXiv:1812.05905, equation 18, with the logarithm in place of the temperature as its authors' code has it).

    Args:
        log_prob: ``[N]`` of actions that the current policy drew, in nats.
        target_entropy: in nats.
    """
    require_rank("log_prob", log_prob, 1)
    require_float("log_prob", log_prob)
    with torch.no_grad():
        return log_prob.mean().add_(target_entropy).neg_()


def _check(value: Tensor, target: Tensor, weight: Tensor | None) -> None:
    require_float("value", value)
    require_shape("target", target, value.shape[-1:])
    if weight is not None:
        require_shape("weight", weight, value.shape[-1:])
