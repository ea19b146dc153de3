"""Settings of replay buffers: where rows lie, who writes them where, and which are drawn."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlruntime.spec.base import AsTuple, Fraction, NonNegativeInt, PositiveFloat, PositiveInt, SpecModel
from rlruntime.spec.training.component import Component


class TensorStorageConfig(SpecModel):
    """`type: Tensor`: rows in memory, each one packed."""

    capacity: PositiveInt
    """Most rows that are held."""


class SharedTensorStorageConfig(SpecModel):
    """`type: SharedTensor`: as `Tensor`, in memory that several processes write and read. Needs Linux."""

    capacity: PositiveInt
    """Most rows that are held."""


class MemoryMappedStorageConfig(SpecModel):
    """`type: MemoryMapped`: rows in a file, for more than memory holds. It has no name, and is gone with its users."""

    capacity: PositiveInt
    """Most rows that are held; the file is that large from the first rows on."""
    folder: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Where the file lies. Unset: the folder for temporary files."""
    shared: bool = False
    """Whether several processes write and read it; needs Linux."""


class ListStorageConfig(SpecModel):
    """`type: List`: rows as objects, each of a shape of its own."""

    capacity: PositiveInt
    """Most rows that are held."""


class MaxValueWriterConfig(SpecModel):
    """`type: MaxValue`: the rows with the largest values stay."""

    value_key: Annotated[str, Field(min_length=1, max_length=256)] = "next.reward"
    """Column of one number a row."""


class ImmutableWriterConfig(SpecModel):
    """`type: Immutable`: no new rows; those that are there were loaded, or written by another process."""


class ConsumingSamplerConfig(SpecModel):
    """`type: Consuming`: the oldest rows, each one once; what was drawn is gone."""


class RoundRobinWriterConfig(SpecModel):
    """`type: RoundRobin`: rows in order; the oldest give way to new ones."""


class UniformSamplerConfig(SpecModel):
    """`type: Uniform`: every row is as likely as any other, in every draw."""


class WithoutReplacementSamplerConfig(SpecModel):
    """`type: WithoutReplacement`: passes in which every row comes exactly once."""

    shuffle: bool = True
    """Whether a pass takes the rows in random order, rather than in that of writing."""
    drop_last: bool = False
    """Whether the rows of a pass that don't fill a batch are left out, rather than given as a shorter batch."""


class PrioritizedSamplerConfig(SpecModel):
    """`type: Prioritized`: rows in proportion to a power of their priority (Schaul et al. 2016, arXiv:1511.05952)."""

    alpha: Fraction = 0.6
    """Power of a priority: 0 draws uniformly, 1 in proportion."""
    beta: Fraction = 0.4
    """Power of the importance weights: 1 undoes the priorities in expectation."""
    epsilon: PositiveFloat = 1e-6
    """Added to every priority, so that none is 0."""


Key = Annotated[str, Field(min_length=1, max_length=256)]
Keys = Annotated[tuple[Key, ...], AsTuple]


class TrajectoryConfig(SpecModel):
    """How the rows of one trajectory are told from those of others."""

    trajectory_key: Key | None = None
    """Column that holds a number of the trajectory. Unset: `endKeys` say where one ends."""
    end_keys: Keys = Field(default=("next.terminated", "next.truncated"), min_length=1, max_length=8)
    """Columns of which any is true at the last row of a trajectory."""
    num_envs: PositiveInt = 1
    """Environment copies whose rows take turns: those of a rollout `[T, B]` flattened time first have `B`."""


class SliceSamplerConfig(TrajectoryConfig):
    """`type: Slice`: successive rows of one trajectory, with every such slice as likely as any other."""

    slice_length: PositiveInt
    """Rows of a slice."""


class NStepConfig(TrajectoryConfig):
    """Rewards summed over several steps as rows are read (Sutton 1988; in deep Q-learning, arXiv:1710.02298)."""

    steps: PositiveInt
    """Most rewards that are summed; fewer where the trajectory, or what is held of it, ends before."""
    gamma: Fraction
    """Discount per step."""
    reward_key: Key = "next.reward"
    """Column of the rewards."""
    outcome_keys: Keys = Field(default=("next.",), min_length=1, max_length=32)
    """Columns that come from the last of the steps; one that ends with a dot stands for all that begin with it."""


class ReplayBufferConfig(SpecModel):
    """A replay buffer."""

    storage: Component
    """Where rows lie: `Tensor`, `SharedTensor`, `MemoryMapped`, `List`, or your own."""
    sampler: Component = Component(type="Uniform")
    """Which rows are drawn: `Uniform`, `WithoutReplacement`, `Prioritized`, `Slice`, `Consuming`, or your own."""
    writer: Component = Component(type="RoundRobin")
    """Where new rows go: `RoundRobin`, `MaxValue`, `Immutable`, or your own."""
    batch_size: PositiveInt = 256
    """Rows of a batch."""
    n_step: NStepConfig | None = None
    """Rewards over several steps. Unset: of one."""
    prefetch: NonNegativeInt = 0
    """Batches that are drawn and copied ahead, beside the learner. What is drawn doesn't depend on how fast that is."""
