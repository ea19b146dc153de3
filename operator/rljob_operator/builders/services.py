"""The Service under which a job's pods find each other."""

from __future__ import annotations

from rljob_operator.builders.labels import job_labels, job_selector
from rljob_operator.builders.names import service_name
from rljob_operator.builders.owner import KubeObject, Owner, metadata
from rlruntime.spec.contract import PORT_NAME, port_of
from rlruntime.spec.manifest import RLJobSpec


def headless_service(owner: Owner, spec: RLJobSpec) -> KubeObject:
    """Return the job's one headless Service.

    It publishes pods that aren't ready: they become ready only once they have found each other.
    """
    port = port_of(spec.metrics)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(owner, service_name(owner), job_labels(owner)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": job_selector(owner),
            "ports": [{"name": PORT_NAME, "port": port, "targetPort": port, "protocol": "TCP"}],
        },
    }
