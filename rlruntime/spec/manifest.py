"""The manifest as a whole: `apiVersion: rljob.io/v1alpha1`, `kind: RLJob`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlruntime.spec.base import AsTuple, DNSLabel, ImageName, NonNegativeInt, QualifiedName, SpecModel, refusal
from rlruntime.spec.policies import Code, Elastic, Metrics, RunPolicy, Scheduling, Storage, WeightSync
from rlruntime.spec.roles import DEFAULT_ROLES, Role
from rlruntime.spec.status import RLJobStatus
from rlruntime.spec.training.training import TrainingSpec

GROUP = "rljob.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "RLJob"
MANAGED_BY = "rljob.io/operator"


class ObjectMeta(SpecModel):
    """Kubernetes' ordinary metadata. Users write name, namespace, labels and annotations; the API server the rest."""

    name: DNSLabel
    """Name of the job, unique in its namespace."""
    namespace: str | None = None
    """Namespace of the job. A laptop has none."""
    labels: dict[str, str] | None = None
    """Labels of the job."""
    annotations: dict[str, str] | None = None
    """Annotations of the job."""
    uid: str | None = None
    """Set by the API server."""
    generate_name: str | None = None
    """Prefix that the API server made the name from."""
    resource_version: str | None = None
    """Set by the API server."""
    generation: NonNegativeInt | None = None
    """Set by the API server."""
    creation_timestamp: str | None = None
    """Set by the API server, RFC 3339."""
    deletion_timestamp: str | None = None
    """Set by the API server, RFC 3339."""
    deletion_grace_period_seconds: NonNegativeInt | None = None
    """Set by the API server, in seconds."""
    finalizers: Annotated[tuple[str, ...], AsTuple] | None = None
    """What must happen before the object goes."""
    owner_references: Annotated[tuple[dict[str, Any], ...], AsTuple] | None = None
    """Objects that this one belongs to."""
    managed_fields: Annotated[tuple[dict[str, Any], ...], AsTuple] | None = None
    """Set by the API server."""
    self_link: str | None = None
    """Set by old API servers."""


class RLJobSpec(SpecModel):
    """What to run, and where."""

    image: ImageName | None = None
    """Container image of every role that names none. Unset: the operator's default. A laptop uses none."""
    code: Code | None = None
    """Your own modules. Unset: what the image holds."""
    training: TrainingSpec
    """What to run. It can't change later."""
    roles: Annotated[tuple[Role, ...], AsTuple] = Field(default=DEFAULT_ROLES, min_length=1, max_length=16)
    """Where to run it: exactly one role of type Trainer, and any number of others."""
    elastic: Elastic | None = None
    """The role whose number of pods may change. Unset: none."""
    weight_sync: WeightSync = WeightSync()
    """How new weights reach collectors and engines. It can't change later."""
    storage: Storage | None = None
    """Where checkpoints live. Unset: they die with their pod. It can't change later."""
    run_policy: RunPolicy = RunPolicy()
    """Suspension, restarts, deadlines and cleaning up."""
    scheduling: Scheduling = Scheduling()
    """How the pods are placed."""
    metrics: Metrics = Metrics()
    """Where metrics are served. It can't change later."""
    managed_by: QualifiedName = MANAGED_BY
    """Who acts on the job. With any value but `rljob.io/operator` the operator leaves it alone. Immutable."""

    @model_validator(mode="after")
    def _one_trainer(self) -> RLJobSpec:
        names: dict[str, int] = {}
        for index, role in enumerate(self.roles):
            if role.name in names:
                raise refusal(
                    f"two roles are called {role.name!r} (the other is number {names[role.name]})",
                    "roles", index, "name", remedy="give each role a name of its own",
                )  # fmt: skip
            names[role.name] = index
        trainers = sum(role.type == "Trainer" for role in self.roles)
        if trainers != 1:
            raise refusal(f"there must be exactly one role of type Trainer, not {trainers}", "roles")
        return self

    @model_validator(mode="after")
    def _elastic_role_exists(self) -> RLJobSpec:
        if self.elastic is None:
            return self
        named = self.elastic.role
        index = next((i for i, role in enumerate(self.roles) if role.name == named), None)
        if index is None:
            known = ", ".join(role.name for role in self.roles)
            raise refusal("names no role", "elastic", "role", value=named, remedy=f"the roles are: {known}")
        role = self.roles[index]
        if role.type not in ("Collector", "Inference"):
            raise refusal(
                f"only a Collector or an Inference role is elastic, and {named!r} is a {role.type}", "elastic", "role"
            )
        if role.replicas != 1:
            raise refusal(
                f"the number of pods of {named!r} is elastic.replicas",
                "roles", index, "replicas", value=role.replicas, remedy="remove it here",
            )  # fmt: skip
        return self


class RLJob(SpecModel):
    """A reinforcement-learning job: the same manifest on a laptop and on Kubernetes."""

    api_version: Literal["rljob.io/v1alpha1"]
    """Always `rljob.io/v1alpha1`."""
    kind: Literal["RLJob"]
    """Always `RLJob`."""
    metadata: ObjectMeta
    """Name, namespace, labels and annotations."""
    spec: RLJobSpec
    """What to run, and where."""
    status: RLJobStatus | None = None
    """What the operator says. Users don't write it."""

    def to_document(self) -> dict[str, Any]:
        """Return the manifest as it stands in YAML, defaults written out; what is unset is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
