"""`spec.training.td3`: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477)."""

from __future__ import annotations

from rlruntime.spec.base import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, SpecModel
from rlruntime.spec.training.ppo import Schedule


class TD3Config(SpecModel):
    """Settings of TD3. Defaults are those of the paper's section 6.1 and appendix C, which Stable-Baselines3 shares;
    where that depends on the environment, they are Stable-Baselines3's.
    """

    learning_rate: PositiveFloat = 1e-3
    """Step size of Adam for actor and critics. (Paper.)"""
    actor_learning_rate: PositiveFloat | None = None
    """Step size for the actor. Unset: `learningRate`."""
    critic_learning_rate: PositiveFloat | None = None
    """Step size for the critics. Unset: `learningRate`."""
    schedule: Schedule = "Constant"
    """How the step sizes fall over `totalFrames`."""
    gamma: Fraction = 0.99
    """Discount per step. (Paper.)"""
    tau: Fraction = 0.005
    """Share of the networks that goes into their targets at each update of these. (Paper.)"""
    policy_delay: PositiveInt = 2
    """Updates of the critics for each one of the actor and of all targets. (Paper.)"""
    num_critics: PositiveInt = 2
    """Critics, of which the least value counts. (Paper.)"""
    target_noise: NonNegativeFloat = 0.2
    """Standard deviation of the noise on the target's action, where -1 and 1 are its bounds. (Paper.)"""
    target_noise_clip: NonNegativeFloat = 0.5
    """Largest magnitude of that noise. (Paper.)"""
    exploration_noise: NonNegativeFloat = 0.1
    """Standard deviation of the noise on the actions taken, where -1 and 1 are their bounds. (Paper.)"""
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
