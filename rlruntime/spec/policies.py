"""How a job is run: elastic counts, weight synchronisation, storage, limits, scheduling, metrics, code."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlruntime.spec.base import (
    DNSLabel,
    ObjectName,
    SpecModel,
    Whole,
    refusal,
)
from rlruntime.spec.roles import TemplateMetadata

MAX_SECONDS = 10 * 365 * 24 * 3600

Seconds = Annotated[int, Field(ge=1, le=MAX_SECONDS), Whole]


class Elastic(SpecModel):
    """The role whose number of pods may change while the job runs; `kubectl scale` moves `replicas`."""

    role: DNSLabel
    """Name of a role of type Collector or Inference. It can't change later."""
    replicas: Annotated[int, Field(ge=0, le=4096), Whole] = 1
    """Pods that are wanted now."""
    min_replicas: Annotated[int, Field(ge=0, le=4096), Whole] = 1
    """Fewest pods that may be asked for."""
    max_replicas: Annotated[int, Field(ge=0, le=4096), Whole] | None = None
    """Most pods that may be asked for. Unset: 4096."""

    @model_validator(mode="after")
    def _within_bounds(self) -> Elastic:
        if self.max_replicas is not None and self.min_replicas > self.max_replicas:
            raise refusal(f"must not be above maxReplicas {self.max_replicas}", "minReplicas", value=self.min_replicas)
        if self.replicas < self.min_replicas:
            raise refusal(f"must not be below minReplicas {self.min_replicas}", "replicas", value=self.replicas)
        if self.max_replicas is not None and self.replicas > self.max_replicas:
            raise refusal(f"must not be above maxReplicas {self.max_replicas}", "replicas", value=self.replicas)
        return self


class WeightSync(SpecModel):
    """How new weights of the trainer reach collectors and engines."""

    scheme: Literal["Auto"] = "Auto"
    """What carries the weights. `Auto`: what fits the roles."""
    every_iterations: Annotated[int, Field(ge=1, le=1_000_000), Whole] = 1
    """Iterations of the trainer between publications."""
    max_staleness: Annotated[int, Field(ge=0, le=1_000_000), Whole] = 2
    """Publications that training data may lag behind; what is older is dropped and counted."""
    timeout_seconds: Annotated[float, Field(gt=0, le=86400)] = 120.0
    """Seconds that a publication may take before it fails."""


class ClaimReference(SpecModel):
    """A PersistentVolumeClaim that exists already."""

    claim_name: ObjectName
    """Name of the claim, in the job's namespace."""


class VolumeClaimTemplate(SpecModel):
    """A PersistentVolumeClaim that is made for the job."""

    metadata: TemplateMetadata = TemplateMetadata()
    """Labels and annotations of the claim."""
    spec: dict[str, Any]
    """Fields of a Kubernetes PersistentVolumeClaimSpec, such as `accessModes` and `resources`."""


class Storage(SpecModel):
    """Where checkpoints and results live: exactly one of `persistentVolumeClaim` and `volumeClaimTemplate`.

    On a laptop they live in the run folder, and this section changes nothing.
    """

    persistent_volume_claim: ClaimReference | None = None
    """A claim that exists already. The job writes into a folder of its own."""
    volume_claim_template: VolumeClaimTemplate | None = None
    """A claim that is made for the job."""
    retention_policy: Literal["Retain", "Delete"] = "Retain"
    """What becomes of a claim made for the job when the job is deleted. It holds the trained policy, so it is kept."""

    @model_validator(mode="after")
    def _exactly_one_kind(self) -> Storage:
        if (self.persistent_volume_claim is None) == (self.volume_claim_template is None):
            raise refusal("give exactly one of persistentVolumeClaim and volumeClaimTemplate")
        if self.retention_policy == "Delete" and self.volume_claim_template is None:
            raise refusal(
                "only a claim made for the job can be deleted with it",
                "retentionPolicy",
                remedy="set Retain, or use volumeClaimTemplate",
                value=self.retention_policy,
            )
        return self


class RunPolicy(SpecModel):
    """Suspension, restarts, deadlines and cleaning up."""

    suspend: bool = False
    """Whether the job's pods are taken away. Its checkpoint stays; once this is false again it goes on from there."""
    backoff_limit: Annotated[int, Field(ge=0, le=1_000_000), Whole] = 3
    """Restarts after faults of the job's own before it fails."""
    disruption_limit: Annotated[int, Field(ge=0, le=1_000_000), Whole] = 20
    """Restarts after disruptions (eviction, loss of a node, preemption) before it fails."""
    clean_pod_policy: Literal["Running", "All", "None"] = "Running"
    """Pods that are deleted once the job has finished: those still running, all, or none."""
    node_lost_seconds: Annotated[int, Field(ge=0, le=MAX_SECONDS), Whole] = 60
    """Seconds a pod on an unreachable node is waited for before it is replaced."""
    active_deadline_seconds: Seconds | None = None
    """Seconds the job may run, counted while it runs and anew after a suspension, before it fails. Unset: no limit."""
    pre_running_deadline_seconds: Seconds | None = None
    """Seconds until all pods must run, not counting suspension and queueing, before it fails. Unset: no limit."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=MAX_SECONDS), Whole] | None = None
    """Seconds after which a finished job is deleted. Unset: never."""


class Scheduling(SpecModel):
    """How the pods are placed."""

    gang: Literal["None", "Native", "Volcano"] = "None"
    """Who places the pods all or none: nobody, Kubernetes' own PodGroup, or Volcano."""
    queue_name: ObjectName | None = None
    """Kueue's LocalQueue that admits the job. Unset: it is not queued."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods. Unset: the cluster's default."""


class Metrics(SpecModel):
    """The one port on which every pod serves `/metrics`, `/healthz`, `/readyz` and `/status`."""

    port: Annotated[int, Field(ge=0, le=65535), Whole] = 9400
    """TCP port. 0: a free one on a laptop, 9400 on a cluster."""


class ConfigMapReference(SpecModel):
    """A ConfigMap of the job's namespace."""

    name: ObjectName
    """Name of the ConfigMap."""


class Code(SpecModel):
    """Your own modules, put on PYTHONPATH. On a laptop the manifest's folder is there as well."""

    config_map: ConfigMapReference
    """A ConfigMap whose keys are files, such as `my_env.py`."""
