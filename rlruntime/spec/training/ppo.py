"""`spec.training.ppo`: proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from typing import Literal

from rlruntime.spec.base import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, SpecModel
from rlruntime.spec.training.component import Component

Schedule = Literal["Constant", "Linear", "Cosine"]


class PPOConfig(SpecModel):
    """Settings of PPO. A schedule multiplies its value by a factor that goes from 1 to 0 over `totalFrames`."""

    learning_rate: PositiveFloat = 3e-4
    """Step size of Adam."""
    schedule: Schedule = "Constant"
    """How the learning rate falls."""
    num_steps: PositiveInt = 128
    """Steps of each environment copy in one rollout."""
    minibatch_size: PositiveInt = 256
    """Most rows in one optimiser step; the valid rows of a rollout are split evenly. Where the network has memory,
    minibatches are whole environment copies: as many as have this many rows, so at least `numSteps`."""
    num_epochs: PositiveInt = 4
    """Passes over each rollout."""
    gamma: Fraction = 0.99
    """Discount per step."""
    gae_lambda: Fraction = 0.95
    """Lambda of generalised advantage estimation."""
    advantage: Component | None = None
    """How advantages and value targets come from a rollout: `GAE`, `VTrace`, or your own as `package.module:Object`.
    Unset: `GAE` with `gamma` and `gaeLambda`."""
    clip_epsilon: PositiveFloat = 0.2
    """How far the probability ratio may move from 1 before its gradient is cut."""
    clip_schedule: Schedule = "Constant"
    """How `clipEpsilon` falls."""
    value_clip_epsilon: PositiveFloat | None = None
    """How far a value may move from that of the rollout before its loss is clipped. Unset: no clipping."""
    value_loss_coefficient: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""
    entropy_schedule: Schedule = "Constant"
    """How `entropyCoefficient` falls."""
    advantage_normalization: Literal["Minibatch", "Rollout", "None"] = "Minibatch"
    """Over which rows advantages are brought to mean 0 and standard deviation 1."""
    max_grad_norm: PositiveFloat | None = 0.5
    """Largest Euclidean norm of the gradient of an optimiser step. `null`: no clipping."""
    target_kl: PositiveFloat | None = None
    """Approximate KL divergence in nats at which the epochs of a rollout end early. Unset: they never do."""
    adam_epsilon: PositiveFloat = 1e-5
    """Epsilon of Adam."""

    @property
    def follows_progress(self) -> bool:
        """Whether anything depends on the share of `totalFrames` that lies behind."""
        return {self.schedule, self.clip_schedule, self.entropy_schedule} != {"Constant"}
