"""Returns and advantages on the rollout layout `[T, B]`; see `rlruntime.collectors.rollout` for the layout."""

from __future__ import annotations

import torch
from torch import Tensor

from rlruntime.losses.checks import require_bool, require_float, require_rank, require_shape


def reverse_linear_scan(increment: Tensor, decay: Tensor) -> Tensor:
    """Solve ``y_t = increment_t + decay_t * y_{t+1}`` backwards in time, with ``y_T = 0``.

    Works by doubling (Hillis and Steele 1986), so that the number of tensor operations grows with ``log2(T)``.

    Args:
        increment: ``[T, ...]``.
        decay: same shape.

    Returns:
        ``y``, same shape.
    """
    require_shape("decay", decay, increment.shape)
    result, factor = increment.clone(), decay.clone()
    num_steps, reach = increment.shape[0], 1
    while reach < num_steps:
        # Read the right-hand sides before writing: the slices overlap.
        gain = factor[:-reach] * result[reach:]
        carried = factor[:-reach] * factor[reach:]
        result[:-reach] += gain
        factor[:-reach] = carried
        factor[-reach:] = 0
        reach *= 2
    return result


def generalized_advantage_estimation(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    r"""Generalised advantage estimation (Schulman et al. 2015, arXiv:1506.02438, equation 16).

    .. math:: A_t = \delta_t + \gamma \lambda (1 - done_t) A_{t+1}, \quad
              \delta_t = r_t + \gamma (1 - terminated_t) V(s_{t+1}) - V(s_t)

    A truncated episode bootstraps from the value of its final observation, a terminated one doesn't, and neither lets
    the advantage of the next episode through. A row that isn't valid has advantage 0 and cuts the estimate before it.

    Args:
        reward: ``[T, B]``.
        value: ``[T + 1, B]``; ``value[1:]`` are the values of the next observations.
        terminated, truncated, valid: ``[T, B]`` bool.
        gamma: discount per step.
        gae_lambda: lambda of the estimator.

    Returns:
        Advantages ``[T, B]``; the return to regress values on is ``advantage + value[:-1]``.
    """
    require_rank("reward", reward, 2)
    require_float("reward", reward)
    num_steps, num_envs = reward.shape
    require_shape("value", value, (num_steps + 1, num_envs))
    for name, flag in (("terminated", terminated), ("truncated", truncated), ("valid", valid)):
        require_shape(name, flag, reward.shape)
        require_bool(name, flag)
    bootstrap = torch.where(terminated, 0.0, value[1:])
    delta = torch.where(valid, reward + gamma * bootstrap - value[:-1], 0.0)
    carries_on = valid & ~terminated & ~truncated
    return reverse_linear_scan(delta, carries_on.to(delta.dtype).mul_(gamma * gae_lambda))


def discounted_returns(
    reward: Tensor, bootstrap: Tensor, terminated: Tensor, truncated: Tensor, valid: Tensor, *, gamma: float
) -> Tensor:
    """Discounted return to go of every row: the sum of discounted rewards up to the end of the episode or of the
    rollout.

    Args:
        reward: ``[T, B]``.
        bootstrap: ``[T, B]``, value of the next observation; used where an episode was truncated, where the next row
            isn't valid, and at the last row, never where it terminated.
        terminated, truncated, valid: ``[T, B]`` bool.
        gamma: discount per step.

    Returns:
        ``[T, B]``; 0 in rows that aren't valid.
    """
    require_rank("reward", reward, 2)
    require_shape("bootstrap", bootstrap, reward.shape)
    next_is_valid = torch.zeros_like(valid)
    next_is_valid[:-1] = valid[1:]
    carries_on = valid & next_is_valid & ~terminated & ~truncated
    closing = torch.where(carries_on | terminated, 0.0, gamma * bootstrap)
    increment = torch.where(valid, reward + closing, 0.0)
    return reverse_linear_scan(increment, carries_on.to(reward.dtype).mul_(gamma))


def v_trace(
    reward: Tensor,
    value: Tensor,
    log_ratio: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    *,
    gamma: float,
    trace_lambda: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[Tensor, Tensor]:
    r"""V-trace (Espeholt et al. 2018, arXiv:1802.01561, equation 1 and remark 2).

    .. math:: v_t - V(s_t) = \rho_t \delta_t + \gamma c_t (1 - done_t) (v_{t+1} - V(s_{t+1})), \quad
              \rho_t = \min(\bar\rho, \pi(a_t) / \mu(a_t)), \quad c_t = \lambda \min(\bar c, \pi(a_t) / \mu(a_t))

    The advantage is ``r_t + gamma * v_{t+1} - V(s_t)``, without the weight that the paper's policy gradient has before
    it: in the clipped objective of PPO the probability ratio is that weight. Ends of episodes are as in
    `generalized_advantage_estimation`; where nothing follows within the rollout, ``v_{t+1}`` is ``V(s_{t+1})``.

    Args:
        reward: ``[T, B]``.
        value: ``[T + 1, B]`` under the current weights; ``value[1:]`` are those of the next observations.
        log_ratio: ``[T, B]``, log-probability of the action under the current policy less that under the behaviour's.
        terminated, truncated, valid: ``[T, B]`` bool.
        gamma: discount per step.
        trace_lambda: of the traces.
        rho_bar, c_bar: the largest weights.

    Returns:
        advantages and value targets ``[T, B]``; in rows that aren't valid, 0 and the value.
    """
    require_rank("reward", reward, 2)
    require_float("reward", reward)
    num_steps, num_envs = reward.shape
    require_shape("value", value, (num_steps + 1, num_envs))
    require_shape("log_ratio", log_ratio, reward.shape)
    for name, flag in (("terminated", terminated), ("truncated", truncated), ("valid", valid)):
        require_shape(name, flag, reward.shape)
        require_bool(name, flag)
    ratio = torch.where(valid, log_ratio, 0.0).exp()
    bootstrap = torch.where(terminated, 0.0, value[1:])
    delta = torch.where(valid, ratio.clamp(max=rho_bar) * (reward + gamma * bootstrap - value[:-1]), 0.0)
    carries_on = (valid & ~terminated & ~truncated).to(delta.dtype)
    excess = reverse_linear_scan(delta, carries_on * ratio.clamp(max=c_bar) * (gamma * trace_lambda))
    following = torch.zeros_like(excess)
    following[:-1] = excess[1:] * carries_on[:-1]
    advantage = torch.where(valid, reward + gamma * (bootstrap + following) - value[:-1], 0.0)
    return advantage, value[:-1] + excess
