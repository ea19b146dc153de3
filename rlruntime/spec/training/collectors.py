"""Settings of collectors: what steps the environments of a job, and beside what."""

from __future__ import annotations

from typing import Literal

from rlruntime.spec.base import Fraction, NonNegativeInt, PositiveFloat, PositiveInt, SpecModel


class InlineCollectorConfig(SpecModel):
    """`type: Inline`: environments, policy and learner take turns in one process."""


class AsyncEnvCollectorConfig(SpecModel):
    """`type: AsyncEnv`: environments that don't wait for each other; the policy acts for those that are ready."""

    workers: Literal["Processes", "Threads"] = "Processes"
    """What steps the environments; `spec.training.env.numWorkers` of them, by default one a copy."""
    min_ready: PositiveInt = 1
    """Environments that must be ready before the policy acts for all that are."""
    columns: PositiveInt | None = None
    """Columns of `numSteps` steps that make a rollout, of whichever environments fill them first. Unset: `numEnvs`."""


class ProcessCollectorConfig(SpecModel):
    """What collectors with worker processes share."""

    num_workers: PositiveInt | None = None
    """Processes that each step some of the environments with a copy of the policy. Unset: the number of processor
    cores, at most `spec.training.env.numEnvs`."""
    weights: Literal["SharedMemory", "Pipe"] = "SharedMemory"
    """How weights reach the workers. `SharedMemory` needs Linux."""
    start_timeout_seconds: PositiveFloat = 120.0
    """Seconds a worker may take to start, and to take over weights."""


class SyncProcessCollectorConfig(ProcessCollectorConfig):
    """`type: SyncProcess`: worker processes fill one rollout together, and learning begins when all are done."""

    preemption_share: Fraction = 1.0
    """Share of the workers that must be done before the others are cut short where they are. 1 waits for all."""


class AsyncProcessCollectorConfig(ProcessCollectorConfig):
    """`type: AsyncProcess`: worker processes collect while the learner learns from what they collected before."""

    max_staleness: NonNegativeInt | None = None
    """Publications of weights by which the oldest step of a rollout may lie behind when it is learned from; what is
    older is dropped. Unset: the number of workers. 0: they wait for every publication."""
