"""What is known of a job: the job itself, its pods, and what the last passes found out."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from rljob_operator.builders.owner import Owner
from rlruntime.spec.manifest import MANAGED_BY, RLJobSpec
from rlruntime.spec.status import CheckpointStatus, ProgressStatus, RLJobStatus

ORDINARY_WAITS = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons for which every container waits at first: no trouble."""


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """How the main container of a pod ended."""

    exit_code: int
    reason: str = ""
    """Kubernetes' word, such as `Completed`, `Error` or `OOMKilled`."""
    message: str = ""
    """The termination message, or the end of the log, as it stands in the pod's status."""
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod doesn't get on, in Kubernetes' own words."""

    reason: str
    """One word, such as `Unschedulable`, `ImagePullBackOff` or `FailedMount`."""
    message: str = ""

    @property
    def of_a_volume(self) -> bool:
        """Return whether something that the pod mounts is missing or can't be had."""
        return self.reason.endswith(("Mount", "AttachVolume", "MapVolume"))


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod of the job, or one that is gone and not yet accounted for. The fields are what the rules read of it."""

    name: str
    uid: str
    role: str
    index: int
    attempt: int
    phase: str = "Pending"
    """`Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`."""
    ready: bool = False
    """The condition `Ready`."""
    started: bool = False
    """The main container has run."""
    created_at: datetime | None = None
    node: str = ""
    """Empty until it is scheduled."""
    ip: str = ""
    """Empty until it has an address."""
    deletion_at: datetime | None = None
    """`deletionTimestamp`: when its grace period ends. None for a pod that nobody deleted."""
    deletion_grace_seconds: int | None = None
    """`deletionGracePeriodSeconds`: how long before `deletion_at` it was asked to go. 0: it was deleted by force."""
    gone: bool = False
    """The object was deleted; what is here was last seen of it."""
    end: ContainerEnd | None = None
    """Unset while the main container hasn't ended."""
    reason: str = ""
    """`status.reason`, such as `Evicted` or `NodeLost`."""
    message: str = ""
    """`status.message`."""
    disruption: str = ""
    """Reason of the condition `DisruptionTarget`, such as `EvictionByEvictionAPI` or `DeletionByTaintManager`."""
    unschedulable: str = ""
    """Message of the condition `PodScheduled` where it is False with the reason `Unschedulable`."""
    waiting: Trouble | None = None
    """Why a container waits, such as `ImagePullBackOff` or `CreateContainerConfigError`."""

    @property
    def slot(self) -> tuple[str, int]:
        """Return the place of the pod: role and index."""
        return self.role, self.index


@dataclass(frozen=True, slots=True)
class CreateRefused:
    """The API server refused to create an object of the job, and will until something changes."""

    name: str
    """Of the object."""
    reason: str
    """`QuotaExceeded`, `Forbidden`, `NameTaken`, `TemplateInvalid`, or `Refused` where a webhook is away."""
    message: str
    """The server's words."""


@dataclass(frozen=True)
class Observed:
    """All that is known of a job at the beginning of a pass."""

    owner: Owner
    spec: RLJobSpec | None
    """None where the stored spec can't be read by this version: `spec_problem` says why."""
    status: RLJobStatus
    """As the API server has it; empty for a new job."""
    generation: int
    spec_problem: str = ""
    managed_by: str = MANAGED_BY
    """Who acts on the job, for one whose spec can't be read."""
    deleting: bool = False
    """The job has a `deletionTimestamp`."""
    pods: tuple[ObservedPod, ...] = ()
    """All pods that this job controls, those being deleted included; and those gone that were seen in this process."""
    existing: frozenset[str] = frozenset()
    """Names of the ConfigMap, Secret, Service, NetworkPolicy and claim of the job that are known to exist."""
    templates_valid: bool | None = None
    """What a dry run of the pods said for this generation; None where there was none yet."""
    template_problem: str = ""
    """The API server's words, where it refused one."""
    refused: tuple[CreateRefused, ...] = ()
    """Objects that could not be created in the last pass."""
    pod_events: dict[str, Trouble] = field(default_factory=dict)
    """By pod name, the newest warning in the events of a pod that has been creating for long."""
    progress: ProgressStatus | None = None
    """What the trainer of the current attempt last said of its progress."""
    checkpoint: CheckpointStatus | None = None
    """The newest checkpoint that it spoke of."""
