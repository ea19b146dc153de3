"""Storage for claims: folders of this machine, which every node sees, as a shared file system would be seen."""

from __future__ import annotations

from pathlib import Path

from cluster_harness.cluster import Cluster
from cluster_harness.errors import ClusterError

CLASS = "test-folders"
"""The storage class; it is the default one, so that claims which name none get it."""


def offer_volumes(cluster: Cluster, folder: Path, count: int = 20, *, size: str = "100Gi") -> None:
    """Make volumes for ``count`` claims, each a folder below ``folder``.

    Containers of any user may write to them: Kubernetes gives other kinds of volumes to the pod's ``fsGroup``, but no
    folder of a node. A claim that is deleted leaves its folder as it is, and no other claim gets it.
    """
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner",
        "reclaimPolicy": "Retain",
        "volumeBindingMode": "Immediate",
    }
    cluster.apply(storage_class)
    for number in range(count):
        place = folder / f"volume-{number}"
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o777)
        spec = {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": CLASS,
            "hostPath": {"path": str(place), "type": "Directory"},
        }
        cluster.api.create("/api/v1/persistentvolumes", {"metadata": {"name": f"volume-{number}"}, "spec": spec})


def folder_of_claim(cluster: Cluster, namespace: str, claim: str) -> Path:
    """Return the folder on this machine that a claim is bound to.

    Raises:
        ClusterError: there is no such claim, or it is bound to none.
    """
    found = cluster.get("/api/v1/persistentvolumeclaims", namespace, claim)
    volume = (found or {}).get("spec", {}).get("volumeName")
    if not volume:
        raise ClusterError(f"the claim {namespace}/{claim} is not bound")
    return Path(cluster.api.get(f"/api/v1/persistentvolumes/{volume}")["spec"]["hostPath"]["path"])
