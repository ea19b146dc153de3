"""The NetworkPolicy of a job: who may open a connection to its pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rljob_operator.builders.labels import job_labels, job_selector
from rljob_operator.builders.names import policy_name
from rljob_operator.builders.owner import KubeObject, Owner, metadata
from rlruntime.spec.contract import port_of
from rlruntime.spec.manifest import RLJobSpec


@dataclass(frozen=True)
class Peers:
    """Pods of any namespace, by labels."""

    namespace_labels: Mapping[str, str]
    """Labels of their namespace. Never empty: labels of pods alone are anybody's to give, in a namespace of his own."""
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    """Their own labels; empty: all pods of those namespaces."""


@dataclass(frozen=True)
class Reach:
    """Who, beside the pods of a job itself, may reach the port that they all serve."""

    operator: Peers
    """Asks trainers for their progress."""
    scraper: Peers | None = None
    """Asks for metrics; None: nobody does."""


def network_policy(owner: Owner, spec: RLJobSpec, reach: Reach) -> KubeObject:
    """Return the policy that closes all ports of a job's pods but to these.

    Pods of the job reach each other on any port, since the libraries by which they talk choose theirs; the others reach
    the one with metrics and status alone. The kubelet's probes come from the pod's own node, which no policy keeps out.
    """
    others = [_peer(peers) for peers in (reach.operator, reach.scraper) if peers is not None]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(owner, policy_name(owner), job_labels(owner)),
        "spec": {
            "podSelector": {"matchLabels": job_selector(owner)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": job_selector(owner)}}]},
                {"from": others, "ports": [{"port": port_of(spec.metrics), "protocol": "TCP"}]},
            ],
        },
    }


def _peer(peers: Peers) -> KubeObject:
    found: KubeObject = {"namespaceSelector": {"matchLabels": dict(peers.namespace_labels)}}
    if peers.pod_labels:
        found["podSelector"] = {"matchLabels": dict(peers.pod_labels)}
    return found
