"""Settings of replay buffers: where rows lie, who writes them where, and which are drawn."""

from __future__ import annotations

from rlruntime.spec.base import Fraction, NonNegativeInt, PositiveFloat, PositiveInt, SpecModel
from rlruntime.spec.training.component import Component


class TensorStorageConfig(SpecModel):
    """`type: Tensor`: rows in memory, each one packed."""

    capacity: PositiveInt
    """Most rows that are held."""


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


class ReplayBufferConfig(SpecModel):
    """A replay buffer."""

    storage: Component
    """Where rows lie: `Tensor`, or your own."""
    sampler: Component = Component(type="Uniform")
    """Which rows are drawn: `Uniform`, `WithoutReplacement`, `Prioritized`, or your own."""
    writer: Component = Component(type="RoundRobin")
    """Where new rows go: `RoundRobin`, or your own."""
    batch_size: PositiveInt = 256
    """Rows of a batch."""
    prefetch: NonNegativeInt = 0
    """Batches that are drawn and copied ahead, beside the learner. What is drawn doesn't depend on how fast that is."""
