"""`spec.roles`: where a job runs. One entry per kind of pod."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from rlruntime.spec.base import (
    Annotations,
    DNSLabel,
    ImageName,
    Labels,
    QualifiedName,
    SpecModel,
    Whole,
    refusal,
)
from rlruntime.spec.training.env import ImportPath

RoleType = Literal["Trainer", "Collector", "Inference", "Service"]

QUANTITY_PATTERN = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
_quantity = re.compile(QUANTITY_PATTERN)


def _check_quantity(value: Any) -> Any:
    if isinstance(value, float):
        raise refusal("must be a whole number or a string", remedy=f"write it in quotes: '{value:g}'")
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise refusal("must be a quantity such as 2, '500m' or '1Gi'")
    if isinstance(value, str) and (len(value) > 64 or not _quantity.search(value) or value.endswith("\n")):
        raise refusal("must be a quantity such as 2, '500m' or '1Gi'")
    return value


Quantity = Annotated[
    Any,
    BeforeValidator(_check_quantity),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY_PATTERN,
            "x-kubernetes-int-or-string": True,
        }
    ),
]
Quantities = Annotated[dict[str, Quantity], Field(max_length=32)]


class ResourceRequirements(SpecModel):
    """What the main container of a pod asks for, in Kubernetes quantities. GPUs go into `gpus`."""

    requests: Quantities = Field(default_factory=dict)
    """What the scheduler sets aside, such as `{cpu: 4, memory: 16Gi}`."""
    limits: Quantities = Field(default_factory=dict)
    """What the container may not exceed."""


class TemplateMetadata(SpecModel):
    """Labels and annotations of pods."""

    labels: Labels = Field(default_factory=dict)
    """Labels added to each pod; those that RLJob sets itself are refused."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations added to each pod."""


class PodTemplate(SpecModel):
    """What is laid over the pods of a role: node selectors, tolerations, volumes, variables, side containers."""

    metadata: TemplateMetadata = TemplateMetadata()
    """Labels and annotations of the pods."""
    spec: dict[str, Any] = Field(default_factory=dict)
    """Fields of a PodSpec; the main container is called `rljob`. Checked by a dry run before the first pod is made."""


class Role(SpecModel):
    """One kind of pod of a job. On a laptop all roles run on the one machine."""

    name: DNSLabel
    """Name of the role, unique within the job; part of the names of its pods."""
    type: RoleType
    """What its pods do: `Trainer` learns, `Collector` steps environments, `Inference` serves a policy, and `Service`
    runs code of your own."""
    replicas: Annotated[int, Field(ge=0, le=4096), Whole] = 1
    """Pods of this role. Leave it out for the role that `elastic` counts."""
    image: ImageName | None = None
    """Container image of this role. Unset: `spec.image`."""
    gpus: Annotated[int, Field(ge=0, le=64), Whole] = 0
    """GPUs of each pod."""
    gpu_resource_name: QualifiedName = "nvidia.com/gpu"
    """Resource that `gpus` asks for, such as `nvidia.com/gpu` or `amd.com/gpu`."""
    processes_per_replica: Annotated[int, Field(ge=1, le=1024), Whole] = 1
    """Processes in each pod: trainer ranks, or collector workers."""
    hosts_per_replica: Annotated[int, Field(ge=1, le=1), Whole] = 1
    """Pods that form one replica. Only 1 for now."""
    resources: ResourceRequirements = ResourceRequirements()
    """Processor and memory of each pod."""
    entrypoint: ImportPath | None = None
    """`package.module:function` that a `Service` runs; the other types have none."""
    config: dict[str, Any] | None = None
    """Handed to the entrypoint of a `Service` as it is."""
    template: PodTemplate = PodTemplate()
    """What is laid over the pods of this role."""

    @model_validator(mode="after")
    def _entrypoint_belongs_to_service(self) -> Role:
        if self.type == "Service" and self.entrypoint is None:
            raise refusal(
                "a Service needs an entrypoint", "entrypoint", remedy="add entrypoint: package.module:function"
            )
        if self.type != "Service" and self.entrypoint is not None:
            raise refusal(
                f"an entrypoint belongs to a Service, not to a {self.type}",
                "entrypoint",
                remedy="remove it, or set type: Service",
                value=self.entrypoint,
            )
        if self.type != "Service" and self.config is not None:
            raise refusal(f"config belongs to a Service, not to a {self.type}", "config", remedy="remove it")
        if self.type == "Trainer" and self.replicas < 1:
            raise refusal("a Trainer needs at least one replica", "replicas", value=self.replicas)
        return self


DEFAULT_ROLES: tuple[Role, ...] = (Role(name="trainer", type="Trainer"),)
