"""Discrete actions by their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlruntime.errors import ConfigError
from rlruntime.policies.distributions import ActionDistribution, Evaluation, masked

_LEAST_UNIFORM = 2.0**-25  # below the generator's least number but 0


class EpsilonGreedy(ActionDistribution):
    """The action of the largest value, or with probability ``epsilon`` any that is allowed (Watkins 1989).

    The parameters are the values ``[N, n]`` themselves. With ``dueling`` the head gives the state's value and the
    actions' advantages, `1 + n` numbers, whose sum less the mean advantage they are (Wang et al. 2016,
    arXiv:1511.06581, equation 9). Log-probabilities and entropy are those of acting with ``epsilon``, and their
    gradients 0.

    The noise of an action is one number that says whether it explores and `n` that say which one it then is; on the CPU
    it doesn't depend on how many steps it is drawn for at once.

    Attributes:
        epsilon: see above. It travels with the weights.
    """

    exploration: Tensor

    def __init__(self, space: gym.Space[Any], *, epsilon: float = 0.05, dueling: bool = False) -> None:
        super().__init__()
        if not isinstance(space, gym.spaces.Discrete):
            raise ConfigError(
                "DQN needs Discrete actions",
                field="spec.training.env",
                value=space,
                remedy="use algorithm: PPO, or SAC for Box actions",
            )
        self.num_actions, self.dueling = int(space.n), dueling
        self.num_params = self.num_actions + dueling
        self.noise_shape = (1 + self.num_actions,)
        self.action_shape = ()
        self.action_dtype = torch.int64
        self.register_buffer("exploration", torch.tensor(epsilon))

    @property
    def epsilon(self) -> float:
        """See the class."""
        return float(self.exploration)

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        self.exploration.fill_(value)

    def complete(self, head: Tensor) -> Tensor:
        if not self.dueling:
            return head
        advantage = head[..., 1:]
        return head[..., :1] + advantage - advantage.mean(-1, keepdim=True)

    def complete_backward(self, d_params: Tensor) -> Tensor:
        if not self.dueling:
            return d_params
        total = d_params.sum(-1, keepdim=True)
        return torch.cat([total, d_params - total / self.num_actions], -1)

    def array_completion(self) -> Callable[[np.ndarray, np.ndarray], None] | None:
        return _complete_dueling if self.dueling else None

    def fill_noise(self, out: Tensor, generator: torch.Generator) -> None:
        out.uniform_(generator=generator)
        # -log(-log u) has Gumbel's distribution; the largest of several is any of them with the same probability.
        out[..., 1:].clamp_(min=_LEAST_UNIFORM).log_().neg_().log_().neg_()

    def sample(self, params: Tensor, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        explores = noise[..., 0] < self.exploration
        random = masked(noise[..., 1:], mask).argmax(-1)
        out.copy_(torch.where(explores, random, self.mode(params, mask)))

    def sample_array(self, params: np.ndarray, noise: np.ndarray, out: np.ndarray) -> None:
        params.argmax(-1, out=out)
        explores = noise[..., 0] < self.epsilon
        if explores.any():
            np.copyto(out, noise[..., 1:].argmax(-1), where=explores)

    def sample_uniform(self, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        out.copy_(masked(noise[..., 1:], mask).argmax(-1))

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return masked(params, mask).argmax(-1)

    def evaluate(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Evaluation:
        greedy = self.mode(params, mask)
        if mask is None:
            allowed = torch.full_like(greedy, self.num_actions, dtype=params.dtype)
        else:
            allowed = mask.sum(-1).to(params.dtype)
        other = self.exploration / allowed
        best = 1.0 - self.exploration + other
        log_prob = torch.where(action == greedy, best, other).log()
        entropy = -torch.special.xlogy(best, best) - (allowed - 1.0) * torch.special.xlogy(other, other)
        return Evaluation(log_prob, entropy, (params,))

    def gradient(self, evaluation: Evaluation, d_log_prob: Tensor, d_entropy: float) -> Tensor:
        (params,) = evaluation.saved
        return torch.zeros_like(params)


def _complete_dueling(head: np.ndarray, out: np.ndarray) -> None:
    np.subtract(head[..., 1:], head[..., 1:].mean(-1, keepdims=True), out=out)
    out += head[..., :1]
