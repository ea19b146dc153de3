"""`spec.training.dqn`: deep Q-learning (Mnih et al. 2015, doi:10.1038/nature14236), with its later improvements."""

from __future__ import annotations

from rlruntime.spec.base import Fraction, NonNegativeInt, PositiveFloat, PositiveInt, SpecModel
from rlruntime.spec.training.ppo import Schedule


class DQNConfig(SpecModel):
    """Settings of DQN. Defaults are Stable-Baselines3's, but for `double`. Returns over several steps and prioritised
    rows are settings of the replay buffer.
    """

    learning_rate: PositiveFloat = 1e-4
    """Step size of Adam. (Stable-Baselines3.)"""
    schedule: Schedule = "Constant"
    """How the step size falls over `totalFrames`."""
    gamma: Fraction = 0.99
    """Discount per step. (Mnih et al., and Stable-Baselines3.)"""
    double: bool = True
    """Whether the network that learns chooses the action whose value the target network gives (van Hasselt et al. 2016,
    arXiv:1509.06461). Stable-Baselines3 has no such choice, and doesn't.
    """
    dueling: bool = False
    """Whether the head gives a state's value and the actions' advantages (Wang et al. 2016, arXiv:1511.06581)."""
    tau: Fraction = 1.0
    """Share of the network that goes into the target network at each of its updates; 1 copies it. (Mnih et al., and
    Stable-Baselines3.)
    """
    target_update_interval: PositiveInt = 2500
    """Updates between two updates of the target network. (Stable-Baselines3, whose 10,000 are frames, four an update;
    Mnih et al. have 10,000 updates.)
    """
    initial_epsilon: Fraction = 1.0
    """Share of random actions at the start. (Mnih et al., and Stable-Baselines3.)"""
    final_epsilon: Fraction = 0.05
    """Share of random actions after `explorationFraction` of the run. (Stable-Baselines3; Mnih et al. have 0.1.)"""
    exploration_fraction: Fraction = 0.1
    """Share of `totalFrames` over which that falls, linearly. (Stable-Baselines3.)"""
    random_frames: NonNegativeInt = 100
    """Frames at the start whose actions are uniformly random, and from which on is learned. (Stable-Baselines3.)"""
    train_every_steps: PositiveInt = 4
    """Steps of every environment copy between two rounds of updates. (Mnih et al., and Stable-Baselines3.)"""
    update_to_data: PositiveFloat = 0.25
    """Updates per frame; may be a fraction. (Mnih et al., and Stable-Baselines3.)"""
    iteration_frames: PositiveInt = 1000
    """Frames between two records of metrics, which are also where evaluations and checkpoints can happen."""
    max_grad_norm: PositiveFloat | None = 10.0
    """Largest Euclidean norm of the gradient. `null`: no clipping. (Stable-Baselines3.)"""
    adam_epsilon: PositiveFloat = 1e-8
    """Epsilon of Adam. (PyTorch, and so Stable-Baselines3.)"""

    @property
    def follows_progress(self) -> bool:
        """Whether anything depends on the share of `totalFrames` that lies behind: exploration does."""
        return True
