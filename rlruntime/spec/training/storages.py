"""Settings of replay buffers: where rows lie, who writes them where, which are drawn, and what is made of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlruntime.spec.base import AsTuple, Fraction, NonNegativeInt, PositiveFloat, PositiveInt, SpecModel, refusal
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import ImportPath

Key = Annotated[str, Field(min_length=1, max_length=256)]
Keys = Annotated[tuple[Key, ...], AsTuple]


TRAJECTORY_KEY = "trajectory"
"""Column in which trainers write the number of a row's trajectory, where something asks for it by this name."""


class TensorStorageConfig(SpecModel):
    """`type: Tensor`: rows in memory, each one packed."""

    capacity: PositiveInt = 1_000_000
    """Most rows that are held; memory is taken as they are written."""


class SharedTensorStorageConfig(SpecModel):
    """`type: SharedTensor`: as `Tensor`, in memory that several processes write and read. Needs Linux."""

    capacity: PositiveInt = 1_000_000
    """Most rows that are held; memory is taken as they are written."""


class MemoryMappedStorageConfig(SpecModel):
    """`type: MemoryMapped`: rows in a file, for more than memory holds. It has no name, and is gone with its users."""

    capacity: PositiveInt = 1_000_000
    """Most rows that are held; the file is that large from the first rows on."""
    folder: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Where the file lies. Unset: the folder for temporary files."""
    shared: bool = False
    """Whether several processes write and read it; needs Linux."""


class ListStorageConfig(SpecModel):
    """`type: List`: rows as objects, each of a shape of its own."""

    capacity: PositiveInt = 1_000_000
    """Most rows that are held."""


class RoundRobinWriterConfig(SpecModel):
    """`type: RoundRobin`: rows in order; the oldest give way to new ones."""


class MaxValueWriterConfig(SpecModel):
    """`type: MaxValue`: the rows with the largest values stay."""

    value_key: Key = "next.reward"
    """Column of one number a row."""


class ImmutableWriterConfig(SpecModel):
    """`type: Immutable`: no new rows; those that are there were loaded, or written by another process."""


class UniformSamplerConfig(SpecModel):
    """`type: Uniform`: every row is as likely as any other, in every draw."""


class WithoutReplacementSamplerConfig(SpecModel):
    """`type: WithoutReplacement`: passes in which every row comes exactly once."""

    shuffle: bool = True
    """Whether a pass takes the rows in random order, rather than in that of writing."""
    drop_last: bool = False
    """Whether the rows of a pass that don't fill a batch are left out, rather than given as a shorter batch."""


class ConsumingSamplerConfig(SpecModel):
    """`type: Consuming`: the oldest rows, each one once; what was drawn is gone."""


class PriorityConfig(SpecModel):
    """How priorities become probabilities and weights (Schaul et al. 2016, arXiv:1511.05952)."""

    alpha: Fraction = 0.6
    """Power of a priority: 0 draws uniformly, 1 in proportion."""
    beta: Fraction = 0.4
    """Power of the importance weights: 1 undoes the priorities in expectation."""
    final_beta: Fraction | None = None
    """What `beta` has become at the end of training, linearly. Unset: it stays."""
    epsilon: PositiveFloat = 1e-6
    """Added to every priority, so that none is 0."""


class PrioritizedSamplerConfig(PriorityConfig):
    """`type: Prioritized`: rows in proportion to a power of their priority (Schaul et al. 2016, arXiv:1511.05952)."""


class StalenessBoundedSamplerConfig(SpecModel):
    """`type: StalenessBounded`: rows that a recent policy collected, each as likely as any other."""

    max_staleness: NonNegativeInt = 1
    """Versions that the policy of a row may be behind the current one."""
    version_key: Key = "policy_version"
    """Column of the integer version of the policy that collected a row."""


class PromptGroupSamplerConfig(SpecModel):
    """`type: PromptGroup`: whole groups of rows, such as all answers to one prompt; a group that lacks some waits."""

    group_size: PositiveInt
    """Rows of a group. Of a number that more rows bear, every so many make one."""
    group_key: Key = "group"
    """Column of the integer number of a row's group, the same wherever its members were written."""
    reuse: bool = False
    """Whether a group may come again, each as likely as any other, rather than once, in the order of completion."""


class TrajectoryConfig(SpecModel):
    """How the rows of one trajectory are told from those of others."""

    trajectory_key: Key | None = None
    """Column that holds a number of the trajectory. Unset: `endKeys` say where one ends."""
    end_keys: Keys = Field(default=("next.terminated", "next.truncated"), min_length=1, max_length=8)
    """Columns of which any is true at the last row of a trajectory."""
    num_envs: PositiveInt = 1
    """Environment copies whose rows take turns: those of a rollout `[T, B]` flattened time first have `B`."""


class SliceConfig(TrajectoryConfig):
    """Successive rows of one trajectory that come together."""

    slice_length: PositiveInt
    """Rows of a slice."""


class SliceSamplerConfig(SliceConfig):
    """`type: Slice`: successive rows of one trajectory, with every such slice as likely as any other."""

    mixed: bool = False
    """Whether rows of other trajectories may lie between those of one, as several writers and asynchronous collectors
    leave them. Needs `trajectoryKey`, and 32 bytes a row."""

    @model_validator(mode="after")
    def _mixed_rows_have_numbers(self) -> SliceSamplerConfig:
        if self.mixed and self.trajectory_key is None:
            raise refusal("mixed rows need a number of their trajectory", "trajectoryKey", remedy="name its column")
        return self


class SliceWithoutReplacementSamplerConfig(SliceConfig):
    """`type: SliceWithoutReplacement`: passes over slices, each of which comes exactly once."""

    stride: PositiveInt | None = None
    """Rows between the beginnings of two slices of a trajectory. Unset: `sliceLength`, so that no row comes twice; rows
    at the end of a trajectory that don't fill a slice are left out."""
    shuffle: bool = True
    """Whether a pass takes the slices in random order, rather than in that of writing."""
    drop_last: bool = False
    """Whether the slices of a pass that don't fill a batch are left out, rather than given as a shorter batch."""


class PrioritizedSliceSamplerConfig(SliceConfig, PriorityConfig):
    """`type: PrioritizedSlice`: slices in proportion to a power of their priority."""

    max_share: Fraction = 0.9
    """Where a slice is given a priority for each row, its own is this share of the largest and the rest of the mean
    (Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning")."""


class NStepConfig(TrajectoryConfig):
    """Rewards summed over several steps as rows are read (Sutton 1988; in deep Q-learning, arXiv:1710.02298)."""

    steps: PositiveInt
    """Most rewards that are summed; fewer where the trajectory, or what is held of it, ends before."""
    gamma: Fraction | None = None
    """Discount per step. Unset: the algorithm's own."""
    reward_key: Key = "next.reward"
    """Column of the rewards."""
    outcome_keys: Keys = Field(default=("next.",), min_length=1, max_length=32)
    """Columns that come from the last of the steps; one that ends with a dot stands for all that begin with it."""


class HindsightConfig(TrajectoryConfig):
    """Goals replaced by what was reached, as rows are read (Andrychowicz et al. 2017, arXiv:1707.01495)."""

    reward_function: ImportPath
    """`package.module:function` that returns the rewards `[n]` of `(achieved_goal [n, ...], desired_goal [n, ...],
    columns)`, as the `compute_reward` of a Gymnasium goal environment does; all are arrays."""
    terminated_function: ImportPath | None = None
    """Function of the same arguments that says which rows end their episode. Unset: those that did still do."""
    strategy: Literal["Future", "Final"] = "Future"
    """Where the new goal was reached: at a random row of the trajectory from this one on, or at its last."""
    share: Fraction = 0.8
    """Share of the rows of a batch that get another goal; 0.8 is four relabelled rows to one as it was."""
    achieved_key: Key = "next.observation.achieved_goal"
    """Column of the goal that was reached by the step of a row."""
    goal_keys: Keys = Field(
        default=("observation.desired_goal", "next.observation.desired_goal"), min_length=1, max_length=8
    )
    """Columns that hold the goal."""
    reward_key: Key = "next.reward"
    """Column of the rewards."""
    terminated_key: Key = "next.terminated"
    """Column that `terminatedFunction` fills."""


class ReplayTransformsConfig(SpecModel):
    """Transforms of rows, in order: those of `write` on their way into the buffer, those of `read` as they are drawn.
    What comes out must have the columns that went in, so that `read` undoes what `write` does to shapes and types."""

    write: Annotated[tuple[Component, ...], AsTuple] = Field(default=(), max_length=16)
    """What is stored is what these make of what was experienced."""
    read: Annotated[tuple[Component, ...], AsTuple] = Field(default=(), max_length=16)
    """What is learned from is what these make of what is stored."""


class ReplayBufferConfig(SpecModel):
    """A replay buffer."""

    storage: Component = Component(type="Tensor")
    """Where rows lie: `Tensor`, `SharedTensor`, `MemoryMapped`, `List`, or your own."""
    sampler: Component = Component(type="Uniform")
    """Which rows are drawn: `Uniform`, `WithoutReplacement`, `Prioritized`, `StalenessBounded`, `Slice`,
    `SliceWithoutReplacement`, `PrioritizedSlice`, `PromptGroup`, `Consuming`, or your own. SAC, TD3 and DQN learn from
    single rows, not from slices or groups."""
    writer: Component = Component(type="RoundRobin")
    """Where new rows go: `RoundRobin`, `MaxValue`, `Immutable`, or your own."""
    batch_size: PositiveInt = 256
    """Rows of a batch."""
    n_step: NStepConfig | None = None
    """Rewards over several steps. Unset: of one."""
    hindsight: HindsightConfig | None = None
    """Goals replaced by what was reached. Unset: rows keep theirs."""
    prefetch: NonNegativeInt = 0
    """Batches that are drawn and copied ahead, beside the learner. What is drawn doesn't depend on how fast that is."""
    transforms: ReplayTransformsConfig = ReplayTransformsConfig()
    """Transforms on the buffer's two sides; any of the seats `write` and `read`, but none whose statistics move."""
