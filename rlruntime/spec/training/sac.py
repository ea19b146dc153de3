"""`spec.training.sac`: soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905)."""

from __future__ import annotations

from rlruntime.spec.base import Fraction, NonNegativeInt, PositiveFloat, PositiveInt, SpecModel
from rlruntime.spec.training.ppo import Schedule


class SACConfig(SpecModel):
    """Settings of SAC. Defaults are those of the paper's table 1, which Stable-Baselines3 shares; where the paper gives
    none, or one for each environment, they are Stable-Baselines3's.
    """

    learning_rate: PositiveFloat = 3e-4
    """Step size of Adam for actor, critics and temperature. (Paper.)"""
    actor_learning_rate: PositiveFloat | None = None
    """Step size for the actor. Unset: `learningRate`."""
    critic_learning_rate: PositiveFloat | None = None
    """Step size for the critics. Unset: `learningRate`."""
    temperature_learning_rate: PositiveFloat | None = None
    """Step size for the logarithm of the temperature. Unset: `learningRate`."""
    schedule: Schedule = "Constant"
    """How the step sizes fall over `totalFrames`."""
    gamma: Fraction = 0.99
    """Discount per step. (Paper.)"""
    tau: Fraction = 0.005
    """Share of the critics that goes into the target critics at each of their updates. (Paper.)"""
    target_update_interval: PositiveInt = 1
    """Updates between two updates of the target critics. (Paper.)"""
    num_critics: PositiveInt = 2
    """Critics, of which the least value counts. (Paper.)"""
    learn_temperature: bool = True
    """Whether the weight of the entropy is learned, so that the entropy meets its target. (Paper.)"""
    initial_temperature: PositiveFloat = 1.0
    """Weight of the entropy at the start, or throughout where it isn't learned. (Stable-Baselines3.)"""
    target_entropy: float | None = None
    """Entropy in nats that the temperature aims at. Unset: minus the number of an action's dimensions. (Paper.)"""
    random_frames: NonNegativeInt = 100
    """Frames at the start whose actions are uniformly random, and from which on is learned. (Stable-Baselines3.)"""
    train_every_steps: PositiveInt = 1
    """Steps of every environment copy between two rounds of updates. (Paper.)"""
    update_to_data: PositiveFloat = 1.0
    """Updates per frame; may be a fraction. (Paper.)"""
    iteration_frames: PositiveInt = 1000
    """Frames between two records of metrics, which are also where evaluations and checkpoints can happen."""
    max_grad_norm: PositiveFloat | None = None
    """Largest Euclidean norm of the gradient of the actor, and of that of the critics. Unset: no clipping. (Paper.)"""
    adam_epsilon: PositiveFloat = 1e-8
    """Epsilon of Adam. (PyTorch, and so Stable-Baselines3.)"""

    @property
    def follows_progress(self) -> bool:
        """Whether anything depends on the share of `totalFrames` that lies behind."""
        return self.schedule != "Constant"
