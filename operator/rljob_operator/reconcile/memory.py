"""What is known of a job that stands in no object: it is found out anew after a restart of the operator."""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_operator.planner.observed import CreateRefused, Trouble
from rlruntime.spec.status import CheckpointStatus, ProgressStatus


@dataclass
class JobMemory:
    """Of one job. Times are seconds on a clock that never jumps."""

    existing: set[str] = field(default_factory=set)
    """Names of its Secret, ConfigMap, Service and claim that are known to exist."""
    verdict_generation: int | None = None
    """Generation of the spec whose pods a dry run has judged."""
    template_problem: str = ""
    """The API server's words, where it refused one of them."""
    unresolved: set[str] = field(default_factory=set)
    """Names of pods that may or may not have been created: the answer didn't come. They are looked for first."""
    refused: dict[str, CreateRefused] = field(default_factory=dict)
    """By name, what the API server refused to create when it was last asked."""
    refusals: int = 0
    """Times in a row that something was refused."""
    create_at_s: float = 0.0
    """Before this time nothing is created."""
    differs_since_s: float | None = None
    """Since when the status differs in counts or progress alone."""
    written_at_s: float = float("-inf")
    """When the status was last written."""
    pod_events: dict[str, Trouble] = field(default_factory=dict)
    """By name of a pod, the newest warning about it."""
    poll_at_s: float = 0.0
    """When the trainer is to be asked again."""
    progress_of: str = ""
    """Uid of the pod that said what follows."""
    progress: ProgressStatus | None = None
    checkpoint: CheckpointStatus | None = None
    logged_plan: str = ""
    """The plan that was logged last, where plans are logged instead of carried out."""


class Memories:
    """The memories of all jobs, by uid."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobMemory] = {}

    def of(self, uid: str) -> JobMemory:
        """Return the memory of a job; an empty one for a new job."""
        return self._jobs.setdefault(uid, JobMemory())

    def forget(self, uid: str) -> None:
        """Drop what is known of a job that is gone."""
        self._jobs.pop(uid, None)
