"""`status`: what the operator says about a job.

No field has an enumeration, so that a newer operator can write under an older CRD; every list is bounded; what a reader
does not know is left out, not refused. Conditions are the interface for programs, `phase` is a summary for people.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from rlruntime.spec.base import AsTuple, NonNegativeInt, SpecModel, Whole

Word = Annotated[str, Field(max_length=253)]
Message = Annotated[str, Field(max_length=4096)]
Time = Annotated[str, Field(max_length=64)]


class StatusModel(SpecModel):
    """Base of the status: unknown fields of a newer operator are left out."""

    model_config = ConfigDict(extra="ignore")


class Condition(StatusModel):
    """One aspect of the job, in the common form of Kubernetes."""

    type: Word
    """Such as `PodsReady`, `Suspended`, `Succeeded`, `Failed`, `WeightsSynced`, `CheckpointDurable`."""
    status: Word
    """`True`, `False` or `Unknown`."""
    reason: Word = ""
    """One word for programs, such as `Unschedulable` or `ImagePullFailed`."""
    message: Message = ""
    """Words for people; those of the object that is waited for, where there are any."""
    observed_generation: NonNegativeInt | None = None
    """Generation of the spec that this was said about."""
    last_transition_time: Time | None = None
    """When `status` last changed, RFC 3339."""


class ElasticStatus(StatusModel):
    """What the scale subresource reads."""

    replicas: NonNegativeInt = 0
    """Pods of the elastic role that exist."""
    selector: Annotated[str, Field(max_length=1024)] = ""
    """Label selector of those pods."""


class RoleStatus(StatusModel):
    """Pods of one role."""

    name: Word
    """Name of the role."""
    desired: NonNegativeInt = 0
    """Pods that are wanted."""
    ready: NonNegativeInt = 0
    """Pods that are ready, or have done their work."""
    failed: NonNegativeInt = 0
    """Faults of its pods since the job began, as charged to `runPolicy.backoffLimit`."""
    seen: Annotated[str, Field(max_length=32768)] = ""
    """Indices whose pod of the current attempt has been seen, as ranges such as `0-3,5`. One that has been seen and is
    no more was lost."""
    done: Annotated[str, Field(max_length=32768)] = ""
    """Indices whose pod of the current attempt has done its work, as ranges; it isn't missed when it is deleted."""


class ProgressStatus(StatusModel):
    """How far training is, as the trainer said it."""

    frames: NonNegativeInt | None = None
    """Decisions of environments so far."""
    total_frames: NonNegativeInt | None = None
    """Decisions after which training ends."""
    percent: Annotated[int, Field(ge=0, le=100), Whole] | None = None
    """Whole percents of `totalFrames`."""
    reward: float | None = None
    """Mean reward of recent episodes."""
    best_reward: float | None = None
    """Best mean reward of an evaluation."""
    frames_per_second: float | None = None
    """Recent rate."""
    remaining_seconds: NonNegativeInt | None = None
    """Estimated seconds to the end."""
    update_time: Time | None = None
    """When the trainer said this, RFC 3339."""


class RestartsStatus(StatusModel):
    """Restarts so far, each charged to one budget."""

    faults: NonNegativeInt = 0
    """Charged to `runPolicy.backoffLimit`; the job fails with the first above it."""
    disruptions: NonNegativeInt = 0
    """Charged to `runPolicy.disruptionLimit`; the job fails with the first above it."""
    charged_pods: Annotated[tuple[Word, ...], AsTuple] = Field(default=(), max_length=64)
    """Uids of the pods that were charged last, so that none is charged twice."""
    next_attempt_time: Time | None = None
    """When the next attempt may begin, RFC 3339. Unset: at once."""
    streak: NonNegativeInt = 0
    """Restarts in a row, which the wait before the next one grows with; ten healthy minutes end the row."""
    slots: Annotated[dict[str, NonNegativeInt], Field(max_length=65536)] = Field(default_factory=dict)
    """Attempt of each pod that was restarted alone, or whose place was given up by scaling, by `role/index`. That of
    every other pod but trainers is `activation.round`."""
    last_reason: Word | None = None
    """What the last restart was for, in one word, such as `OOMKilled` or `Evicted`."""
    last_message: Message | None = None
    """What the last restart was for, in words; those of the pod, where it left any."""


class ActivationStatus(StatusModel):
    """The present activation: from the job's start, or its last resumption, to the next suspension."""

    time: Time
    """When it began, RFC 3339; `runPolicy.preRunningDeadlineSeconds` counts from here."""
    attempt: NonNegativeInt = 0
    """The trainer's first attempt in it."""
    round: NonNegativeInt = 0
    """The rendezvous round in which it began; the first attempt of all pods but trainers."""


class WeightsStatus(StatusModel):
    """Which versions of the policy the members have."""

    members: NonNegativeInt = 0
    """Collectors and engines that take part."""
    lowest_version: NonNegativeInt | None = None
    """Oldest version that a member has."""
    highest_version: NonNegativeInt | None = None
    """Newest version that a member has."""
    laggards: Annotated[tuple[Word, ...], AsTuple] = Field(default=(), max_length=5)
    """At most five of the members with the oldest version."""


class CheckpointStatus(StatusModel):
    """The newest checkpoint."""

    frames: NonNegativeInt | None = None
    """Decisions of environments that it covers."""
    path: Annotated[str, Field(max_length=1024)] | None = None
    """Folder in the job's storage."""
    time: Time | None = None
    """When it was written, RFC 3339."""


class RLJobStatus(StatusModel):
    """What the operator says about a job. Users don't write it."""

    observed_generation: NonNegativeInt | None = None
    """Generation of the spec that this status is about."""
    phase: Word | None = None
    """Summary for people, such as `Pending`, `Running`, `Suspended`, `Succeeded` or `Failed`."""
    reason: Word | None = None
    """Why it is in this phase, in one word."""
    message: Message | None = None
    """Why it is in this phase, in words."""
    ready: Word | None = None
    """Ready pods of all pods, such as `6/7`."""
    attempt: NonNegativeInt | None = None
    """Number of the trainer's current attempt. It never falls."""
    round: NonNegativeInt | None = None
    """Number of the current rendezvous; it rises with every restart of a pod and with every resumption."""
    activation: ActivationStatus | None = None
    """Since when the job has been active. Unset while it is suspended."""
    token_secret: Word | None = None
    """Secret that holds the job's token; written here before it is made."""
    start_time: Time | None = None
    """When the operator first saw the job, RFC 3339."""
    running_time: Time | None = None
    """When all pods were first ready in this activation, RFC 3339."""
    completion_time: Time | None = None
    """When the job finished, RFC 3339."""
    pre_running_seconds: NonNegativeInt | None = None
    """Seconds from the beginning of this activation to `runningTime`, which `preRunningDeadlineSeconds` bounds."""
    claim_name: Word | None = None
    """PersistentVolumeClaim that holds the job's folder."""
    conditions: Annotated[tuple[Condition, ...], AsTuple] = Field(default=(), max_length=16)
    """Aspects of the job; the interface for programs."""
    roles: Annotated[tuple[RoleStatus, ...], AsTuple] = Field(default=(), max_length=16)
    """Pods per role."""
    elastic: ElasticStatus | None = None
    """What the scale subresource reads."""
    progress: ProgressStatus | None = None
    """How far training is."""
    restarts: RestartsStatus | None = None
    """Restarts so far."""
    weights: WeightsStatus | None = None
    """Versions of the policy at the members."""
    checkpoint: CheckpointStatus | None = None
    """The newest checkpoint."""
