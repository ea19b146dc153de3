"""What the API server checks of an `RLJob` by CEL, by path in the schema.

Rules without `oldSelf` repeat for the server what the models' validators say. Those with `oldSelf` are about changes
and have no counterpart in the models: a manifest on a laptop has no past. A rule on a list's items doesn't fire for
items that were added or replaced, so rules about changes of roles stand on the list. Optional fields that can't change
are compared by `has` first: a rule on the field itself would not fire when it is added or removed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One CEL rule."""

    rule: str
    """The expression; true means valid."""
    message: str
    """What the user is told otherwise."""


def _immutable(name: str) -> Rule:
    return Rule("self == oldSelf", f"{name} can't change; make a new job")


def _same_optional(name: str, new: str = "self", old: str = "oldSelf") -> str:
    return f"has({new}.{name}) == has({old}.{name}) && (!has({new}.{name}) || {new}.{name} == {old}.{name})"


def _optional_immutable(name: str) -> Rule:
    return Rule(_same_optional(name), f"{name} can't change; make a new job")


_same_pods = " && ".join(
    [f"o.{name} == r.{name}" for name in ("name", "gpus", "gpuResourceName", "processesPerReplica", "hostsPerReplica")]
    + [_same_optional(name, "r", "o") for name in ("image", "resources", "entrypoint", "config", "template")]
)

RULES: dict[str, tuple[Rule, ...]] = {
    "": (
        Rule(
            "self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must be at most 40 lower-case letters, digits and '-', starting with a letter",
        ),
    ),
    "spec": (
        Rule(
            "!has(self.elastic) || self.roles.exists(r, r.name == self.elastic.role"
            " && (r.type == 'Collector' || r.type == 'Inference'))",
            "elastic.role must name a role of type Collector or Inference",
        ),
        Rule(
            "!has(self.elastic) || self.roles.all(r, r.name != self.elastic.role || r.replicas == 1)",
            "the number of pods of the elastic role is elastic.replicas; leave out its replicas",
        ),
        Rule(
            "has(self.elastic) == has(oldSelf.elastic)"
            " && (!has(self.elastic) || self.elastic.role == oldSelf.elastic.role)",
            "elastic.role can't change; make a new job",
        ),
        _optional_immutable("code"),
        _optional_immutable("storage"),
        Rule(
            "self.runPolicy.suspend && oldSelf.runPolicy.suspend"
            f" || {_same_optional('image')} && self.scheduling == oldSelf.scheduling"
            f" && self.roles.all(r, oldSelf.roles.exists(o, {_same_pods}))",
            "what pods are made of (image, scheduling, a role's gpus, resources, template, ...) may change only while"
            " the job is suspended and stays so",
        ),
    ),
    "spec.training": (
        *(
            Rule(
                f"self.algorithm == '{name}' || !has(self.{name.lower()})",
                f"the section {name.lower()} belongs to algorithm {name}",
            )
            for name in ("PPO", "SAC", "TD3", "DQN")
        ),
        Rule(
            "!has(self.replay) || self.algorithm in ['SAC', 'TD3', 'DQN']",
            "replay belongs to the algorithms SAC, TD3 and DQN",
        ),
        Rule(
            "(self.algorithm == 'Custom') == has(self.custom)",
            "algorithm Custom, and no other, needs the section custom",
        ),
        _immutable("training"),
    ),
    "spec.training.env": (Rule("has(self.id) != has(self.factory)", "give exactly one of id and factory"),),
    "spec.roles": (
        Rule("self.exists_one(r, r.type == 'Trainer')", "there must be exactly one role of type Trainer"),
        Rule(
            "self.size() == oldSelf.size() && self.all(r, oldSelf.exists(o, o.name == r.name && o.type == r.type"
            " && (o.type != 'Trainer' || o.replicas == r.replicas)))",
            "roles can't be added, removed or renamed, nor change their type; the number of trainers can't change",
        ),
    ),
    "spec.roles[]": (
        Rule("(self.type == 'Service') == has(self.entrypoint)", "a Service, and no other type, needs an entrypoint"),
        Rule("self.type == 'Service' || !has(self.config)", "config belongs to a Service"),
        Rule("self.type != 'Trainer' || self.replicas >= 1", "a Trainer needs at least one replica"),
    ),
    "spec.elastic": (
        Rule(
            "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas must not be above maxReplicas",
        ),
        Rule("self.replicas >= self.minReplicas", "replicas must not be below minReplicas"),
        Rule("!has(self.maxReplicas) || self.replicas <= self.maxReplicas", "replicas must not be above maxReplicas"),
    ),
    "spec.storage": (
        Rule(
            "has(self.persistentVolumeClaim) != has(self.volumeClaimTemplate)",
            "give exactly one of persistentVolumeClaim and volumeClaimTemplate",
        ),
        Rule(
            "self.retentionPolicy == 'Retain' || has(self.volumeClaimTemplate)",
            "only a claim made for the job can be deleted with it",
        ),
    ),
    "spec.weightSync": (_immutable("weightSync"),),
    "spec.metrics": (_immutable("metrics"),),
    "spec.managedBy": (_immutable("managedBy"),),
}

LIST_KEYS = {"spec.roles": "name", "status.conditions": "type", "status.roles": "name"}
"""Lists that are maps by a field of their items: server-side apply merges them; a repeated key is refused."""
