"""What the loop asks of a method of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlruntime.collectors.episodes import FinishedEpisodes
from rlruntime.collectors.protocol import Collector
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.policy import Policy
from rlruntime.trainers.checkpoint import ComponentRecord, ResumeClass


@dataclass(frozen=True)
class Hooks:
    """Who is told of what happens within an iteration; what nobody listens to is None, and costs nothing.

    Attributes:
        phase: told ``collect`` and ``learn`` as they begin.
        rollout: given each rollout that was collected.
        batch: given each batch before its loss is computed.
        before_step: called before each optimiser step.
    """

    phase: Callable[[str], None] = lambda name: None
    rollout: Callable[[Any], None] | None = None
    batch: Callable[[Any], None] | None = None
    before_step: Callable[[], None] | None = None


class Method(Protocol):
    """Collects and learns, one iteration at a time.

    Attributes:
        algorithm: the learner.
        collector: steps the environments.
    """

    algorithm: Any
    collector: Collector

    @property
    def policy(self) -> Policy:
        """What acts and is saved."""

    @property
    def num_frames(self) -> int:
        """Valid decisions collected so far."""

    def start(self) -> None:
        """Begin the first episodes, unless there are some already."""

    def iterate(self, progress: float, timers: PhaseTimers) -> tuple[dict[str, float], FinishedEpisodes]:
        """Do one iteration; return metrics by name and the episodes that ended in it.

        Args:
            progress: share of the run that lies behind, for schedules.
            timers: told the time of every phase.

        Raises:
            EnvironmentFault: an environment failed.
            RLJobError: learning has diverged.
        """

    def components(self) -> dict[str, ComponentRecord]:
        """Return the parts that a checkpoint must have been written with."""

    def capture(self, *, copy: bool) -> tuple[dict[str, Any], ResumeClass]:
        """Return all state between two iterations, and whether a resume from it continues bit for bit.

        Args:
            copy: False where the caller is done with it before the next iteration, so that large parts may be views.
        """

    @property
    def state_bytes(self) -> int:
        """About how large `capture` is."""

    def restore(self, state: Mapping[str, Any], *, environments: bool, restart_seeds: Sequence[int]) -> ResumeClass:
        """Put back what `capture` returned, the policy's parameters excepted; return the class of this resume.

        Args:
            state: of a checkpoint.
            environments: whether the environments' state is of these environments.
            restart_seeds: of new episodes, where it isn't or there is none.
        """

    def close(self) -> None:
        """Close environments, threads and memory. May be called twice."""
