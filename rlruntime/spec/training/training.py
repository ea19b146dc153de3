"""`spec.training` as a whole."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlruntime.spec.base import MAX_INT, AsTuple, PositiveInt, SpecModel, Whole, matching, refusal
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.dqn import DQNConfig
from rlruntime.spec.training.env import EnvConfig, ImportPath
from rlruntime.spec.training.ppo import PPOConfig
from rlruntime.spec.training.sac import SACConfig
from rlruntime.spec.training.storages import ReplayBufferConfig
from rlruntime.spec.training.td3 import TD3Config

Device = Annotated[
    str, *matching(r"^(Auto|cpu|cuda|cuda:[0-9]{1,3}|mps)$", "one of Auto, cpu, cuda, cuda:N and mps", max_length=16)
]


class EvaluationConfig(SpecModel):
    """When and how the policy is evaluated, on environments and seeds of its own."""

    every_frames: PositiveInt | None = None
    """Frames between evaluations. Unset: once, at the end."""
    episodes: PositiveInt = 20
    """Episodes of one evaluation."""
    deterministic: bool = True
    """Whether the most probable action is taken instead of a sampled one."""
    stop_at_reward: float | None = None
    """Mean episode reward at which training ends early, once a second evaluation on fresh seeds confirms it."""
    beside: bool = False
    """Whether a process of its own evaluates while training goes on. A result counts when the next evaluation is due,
    which waits for it; once one reaches `stopAtReward`, that next one is made before training goes on."""
    patience: PositiveInt | None = None
    """Evaluations in a row without a better mean reward after which training ends early. Unset: it doesn't."""


class CheckpointConfig(SpecModel):
    """When checkpoints are written and how many stay. The last state is always written at the end."""

    every_frames: PositiveInt | None = None
    """Frames between checkpoints. Unset: only at the end and when the run is stopped."""
    keep: PositiveInt = 3
    """Newest checkpoints that stay."""
    resume_from: str | None = Field(default=None, min_length=1, max_length=4096)
    """Checkpoint or run folder of another job to continue, with all its state."""
    init_from: str | None = Field(default=None, min_length=1, max_length=4096)
    """Checkpoint or run folder of another job whose policy this one starts with."""


class CustomConfig(SpecModel):
    """`algorithm: Custom`: a training function of your own."""

    entrypoint: ImportPath
    """`package.module:function`, called with a `rlruntime.trainers.custom.CustomContext`."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Handed to the function as it is."""


Algorithm = Literal["PPO", "SAC", "TD3", "DQN", "Custom"]
AlgorithmConfig = PPOConfig | SACConfig | TD3Config | DQNConfig | CustomConfig

SECTIONS: dict[str, type[SpecModel]] = {
    "PPO": PPOConfig,
    "SAC": SACConfig,
    "TD3": TD3Config,
    "DQN": DQNConfig,
    "Custom": CustomConfig,
}
"""The model of each algorithm's section, which has the algorithm's name in lower case."""

OFF_POLICY = ("SAC", "TD3", "DQN")
"""Algorithms that learn from a replay buffer."""


class TrainingSpec(SpecModel):
    """What to run: the algorithm, the environment, the network, and when to evaluate, to save and to stop."""

    algorithm: Algorithm
    """What learns. The section of the same name holds its settings."""
    seed: Annotated[int, Field(ge=0, le=MAX_INT), Whole] = 0
    """The one seed that all randomness is derived from; at most 2^53 - 1, which JSON holds exactly."""
    total_frames: PositiveInt
    """Decisions of environments after which training ends; ignored reset steps don't count."""
    device: Device = "Auto"
    """Where the networks live: `Auto` (the GPU when there is one and it pays), `cpu`, `cuda`, `cuda:N`, `mps`."""
    num_threads: PositiveInt | None = None
    """Threads of one tensor operation on the CPU. Unset: 1 for small networks, else the number of cores."""
    env: EnvConfig
    """The environment."""
    network: Component = Component(type="MLP")
    """The network between observations and the heads of policy and values: `MLP`, `CNN`, `LSTM`, `GRU`, or your own.
    Layers and activation of `MLP` are by default those of the papers: two of 64 and `Tanh` for PPO, two of 256 and
    `ReLU` for SAC, TD3 and DQN. `LSTM` and `GRU` have memory, and are for PPO."""
    critic_network: Component | None = None
    """Of PPO: a network for the critic alone, where it shall be another than the actor's. Unset: `network` again,
    shared or not as its setting `shared` says."""
    collector: Component = Component(type="Inline")
    """What steps the environments, and beside what: `Inline` (in turns with the learner), `SyncProcess`,
    `AsyncProcess`, `AsyncEnv`, or your own."""
    ppo: PPOConfig | None = None
    """Settings of `algorithm: PPO`. Unset: their defaults."""
    sac: SACConfig | None = None
    """Settings of `algorithm: SAC`. Unset: their defaults."""
    td3: TD3Config | None = None
    """Settings of `algorithm: TD3`. Unset: their defaults."""
    dqn: DQNConfig | None = None
    """Settings of `algorithm: DQN`. Unset: their defaults."""
    replay: ReplayBufferConfig | None = None
    """What SAC, TD3 and DQN learn from. Unset: the last million rows in memory, drawn uniformly."""
    custom: CustomConfig | None = None
    """Settings of `algorithm: Custom`, which needs them."""
    log_timings: bool = False
    """Whether the run says at its end where its time went, phase by phase; `result.json` holds it in any case."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """When and how the policy is evaluated."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When the state of training is saved."""
    callbacks: Annotated[tuple[Component, ...], AsTuple] = Field(default=(), max_length=32)
    """Code that is called at the phases of training."""
    loggers: Annotated[tuple[Component, ...], AsTuple] = Field(default=(), max_length=16)
    """Where metrics go besides `metrics.jsonl`: `TensorBoard`, `WandB`, `MLflow`, or your own."""

    @model_validator(mode="after")
    def _critic_belongs_to_ppo(self) -> TrainingSpec:
        if self.critic_network is None:
            return self
        if self.algorithm != "PPO":
            raise refusal(
                f"algorithm {self.algorithm} takes no network of the critic's own",
                "criticNetwork",
                remedy="remove it, or set algorithm: PPO",
            )
        if self.network.config.get("shared") is True:
            raise refusal(
                "the network is shared by actor and critic, so that the critic can't have its own",
                "criticNetwork",
                remedy="remove it, or network.config.shared",
            )
        return self

    @model_validator(mode="after")
    def _section_matches_algorithm(self) -> TrainingSpec:
        if self.algorithm == "Custom" and self.custom is None:
            raise refusal(
                "algorithm Custom needs this section",
                "custom",
                remedy="add custom: {entrypoint: package.module:function}",
            )
        for algorithm in SECTIONS:
            section = algorithm.lower()
            if getattr(self, section) is not None and self.algorithm != algorithm:
                raise refusal(
                    f"this section belongs to algorithm {algorithm}, not to {self.algorithm}",
                    section,
                    remedy=f"remove it, or set algorithm: {algorithm}",
                )
        if self.replay is not None and self.algorithm not in OFF_POLICY:
            raise refusal(
                f"algorithm {self.algorithm} has no replay buffer",
                "replay",
                remedy=f"remove it, or set algorithm to one of {', '.join(OFF_POLICY)}",
            )
        return self

    @property
    def section(self) -> AlgorithmConfig | None:
        """The algorithm's own section; None where the manifest leaves it to the defaults."""
        found: AlgorithmConfig | None = getattr(self, self.algorithm.lower())
        return found
