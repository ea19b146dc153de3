"""Value losses of one minibatch of `N` rows, with their closed-form gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rlruntime.losses.checks import require_float, require_rank, require_shape


class ValueLoss(NamedTuple):
    """A value loss.

    Attributes:
        loss: scalar, to be minimised.
        gradient: ``[N]``, derivative of ``loss`` by ``value``.
    """

    loss: Tensor
    gradient: Tensor


def squared_value_loss(value: Tensor, target: Tensor) -> ValueLoss:
    r"""Mean squared error of the value, :math:`L = \frac{1}{N} \sum_i (V_i - R_i)^2`.

    Args:
        value: ``[N]`` of the current network; need not require gradients.
        target: ``[N]``.
    """
    _check(value, target)
    with torch.no_grad():
        error = value - target
        return ValueLoss(loss=error.square().mean(), gradient=error.mul_(2.0 / value.shape[0]))


def clipped_value_loss(value: Tensor, behaviour_value: Tensor, target: Tensor, *, clip_epsilon: float) -> ValueLoss:
    r"""Squared error of the value, held within a range of the rollout's value (as in OpenAI Baselines' PPO2).

    .. math:: L = \frac{1}{N} \sum_i \max((V_i - R_i)^2,
              (V^{old}_i + \mathrm{clip}(V_i - V^{old}_i, -\epsilon, \epsilon) - R_i)^2)

    Args:
        value: ``[N]`` of the current network; need not require gradients.
        behaviour_value: ``[N]`` at the time of the rollout.
        target: ``[N]``.
        clip_epsilon: half-width of the range, in units of the value.
    """
    _check(value, target)
    require_shape("behaviour_value", behaviour_value, value.shape)
    with torch.no_grad():
        error = value - target
        moved = (value - behaviour_value).clamp_(-clip_epsilon, clip_epsilon)
        clipped_error = behaviour_value + moved - target
        plain, clipped = error.square(), clipped_error.square()
        gradient = torch.where(plain >= clipped, error, 0.0).mul_(2.0 / value.shape[0])
        return ValueLoss(loss=torch.maximum(plain, clipped).mean(), gradient=gradient)


def _check(value: Tensor, target: Tensor) -> None:
    require_rank("value", value, 1)
    require_float("value", value)
    require_shape("target", target, value.shape)
