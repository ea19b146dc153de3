"""A namespace on real nodes, the job that is killed in it, and what must be so when it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster_harness.api import ApiError, JsonObject
from cluster_harness.cluster import wait_for
from cluster_harness.control_plane import ControlPlane
from cluster_harness.errors import ClusterError
from cluster_harness.images import RUNTIME
from cluster_harness.volumes import folder_of_claim
from kill_job import faults_of_run, kill_code, kill_job, timeless_records
from operator_place import JOBS, Place

from rlruntime.attempts import find_run

CLAIM: dict[str, Any] = {
    "volumeClaimTemplate": {
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
}
NAME = "kill"
END_S = 240.0
"""Most seconds until a job must have ended, on a busy machine."""


@dataclass(frozen=True)
class Scene(Place):
    """A namespace with the code of the job that is killed."""

    @classmethod
    def make(cls, plane: ControlPlane) -> Scene:
        """Return a new one."""
        namespace = plane.create_namespace("e2e")
        plane.api.create(f"/api/v1/namespaces/{namespace}/configmaps", kill_code(namespace=namespace))
        return cls(plane, namespace)

    def begin(self, *, seconds: float = 20.0, **spec: Any) -> None:
        """Create the job, with a claim of its own."""
        document = kill_job(NAME, self.namespace, seconds=seconds, image=RUNTIME, **{"storage": CLAIM, **spec})
        self.cluster.api.create(JOBS.format(self.namespace), document)

    def job(self) -> JsonObject:
        """Return the job."""
        found = self.cluster.job(self.namespace, NAME)
        assert found is not None
        return found

    def pod(self, attempt: int = 0) -> str:
        """Return the name of the trainer's pod in an attempt."""
        return f"{NAME}-trainer-0-{attempt}"

    def folder(self) -> Path:
        """Return the job's folder in its claim, on this machine."""
        job = self.job()
        claim = job["status"]["claimName"]
        return folder_of_claim(self.cluster, self.namespace, claim) / f"{NAME}-{job['metadata']['uid']}"

    def evict(self, pod: str) -> None:
        """Evict a pod, as draining its node does."""
        self.cluster.evict(self.namespace, pod)

    def frames(self) -> int:
        """Return how many frames the newest attempt has recorded; 0 before it has begun."""
        try:
            records = timeless_records(self.folder())
        except (OSError, KeyError, ClusterError):
            return 0
        return int(records[-1]["frames"]) if records else 0

    def wait_checkpoint(self, frames: int = 400) -> None:
        """Wait until the job has saved a checkpoint of so many frames, or of more."""
        wait_for(
            f"a checkpoint of {frames} frames is saved",
            lambda: self._newest_checkpoint() >= frames,
            deadline_s=END_S,
            describe=self.describe,
            ignore=(OSError, KeyError, ApiError, ClusterError),
        )

    def _newest_checkpoint(self) -> int:
        steps = (find_run(self.folder()) / "checkpoints").glob("step-*")
        return max((int(step.name.removeprefix("step-")) for step in steps), default=0)

    def wait_end(self, phase: str = "Succeeded") -> JsonObject:
        """Wait until the job has ended, see that it did so in this phase, and return its status."""
        status = wait_for(
            "the job has ended",
            lambda: self.status(NAME) if self.status(NAME).get("completionTime") else None,
            deadline_s=END_S,
            describe=self.describe,
            ignore=(OSError, ApiError),
        )
        assert status["phase"] == phase, self.describe()
        return status

    def describe(self) -> str:
        """Return what a person would look at."""
        parts = [("describe", "rlj"), ("get", "pods", "-o", "wide"), ("get", "events")]
        return "\n".join(
            self.cluster.kubectl("-n", self.namespace, *part, check=False).stdout[-6000:] for part in parts
        )

    def assert_once(self, expected: list[dict[str, Any]], *, faults: int = 0, disruptions: int = 0) -> JsonObject:
        """See that the job has succeeded at this cost, and has trained every frame exactly once; return its status."""
        status = self.wait_end()
        restarts = status.get("restarts", {})
        assert (restarts.get("faults", 0), restarts.get("disruptions", 0)) == (faults, disruptions), self.describe()
        assert faults_of_run(self.folder(), expected) == []
        return status
