"""All jobs and pods that are known, by the job's uid.

Three sources fill it: watches, lists, and the answers to our own writes. They may arrive in any order, so an object is
replaced only by one with a higher resourceVersion, and one that was deleted isn't brought back by a list that was
older.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from rljob_operator.builders.owner import KubeObject
from rljob_operator.planner.observed import ObservedPod
from rljob_operator.reconcile.views import JobView, PodView, job_view, pod_view, version_of
from rlruntime.spec.status import RLJobStatus

_TOMBSTONE_S = 900.0


class Cache:
    """Jobs and pods. Methods that change it return the uid of the job to look at, or None where nothing changed.

    Args:
        monotonic: seconds on a clock that never jumps.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._jobs: dict[str, JobView] = {}
        self._pods: dict[str, dict[str, PodView]] = {}
        self._deleted: dict[str, float] = {}

    def job(self, uid: str) -> JobView | None:
        """Return the job with this uid."""
        return self._jobs.get(uid)

    def jobs(self) -> Iterator[JobView]:
        """Return all jobs."""
        return iter(self._jobs.values())

    def pods(self, job_uid: str) -> tuple[ObservedPod, ...]:
        """Return the pods of a job, those that are gone included, in an order that doesn't change.

        A pod of another namespace is none of them: anybody may name any uid as that of a pod's controller.
        """
        job = self._jobs.get(job_uid)
        views = self._pods.get(job_uid, {}).values()
        found = (view.pod for view in views if job is None or view.namespace == job.owner.namespace)
        return tuple(sorted(found, key=lambda pod: (pod.role, pod.index, pod.attempt, pod.uid)))

    def pod_views(self) -> Iterator[PodView]:
        """Return all pods that aren't gone."""
        return (view for pods in self._pods.values() for view in pods.values() if not view.pod.gone)

    def is_deleted(self, uid: str) -> bool:
        """Return whether an object with this uid was deleted a while ago."""
        return uid in self._deleted

    def apply_job(self, item: KubeObject) -> str | None:
        """Take over a job as it was seen."""
        uid: str = item["metadata"]["uid"]
        known = self._jobs.get(uid)
        if uid in self._deleted or (known is not None and version_of(item) <= known.resource_version):
            return None
        view = job_view(item, known)
        self._jobs[uid] = view
        if known is not None and replace(known, resource_version=view.resource_version) == view:
            return None
        return uid

    def wrote_status(self, uid: str, status: RLJobStatus, resource_version: int) -> None:
        """Take over a status that we wrote, and that the server gave this version."""
        known = self._jobs.get(uid)
        if known is not None and resource_version > known.resource_version:
            self._jobs[uid] = replace(known, status=status, resource_version=resource_version)

    def remove_job(self, uid: str) -> str | None:
        """Forget a job that was deleted."""
        self._bury(uid)
        if self._jobs.pop(uid, None) is None:
            return None
        pods = self._pods.get(uid, {})
        for pod_uid in [pod_uid for pod_uid, view in pods.items() if view.pod.gone]:
            del pods[pod_uid]
        if not pods:
            self._pods.pop(uid, None)
        return uid

    def apply_pod(self, item: KubeObject) -> str | None:
        """Take over a pod as it was seen; ``item`` may be its metadata alone when it was just created."""
        uid = item["metadata"]["uid"]
        if uid in self._deleted:
            return None
        view = pod_view(item)
        if view is None:
            return None
        pods = self._pods.setdefault(view.job_uid, {})
        known = pods.get(uid)
        if known is not None and view.resource_version <= known.resource_version:
            return None
        pods[uid] = view
        return None if known is not None and known.pod == view.pod else view.job_uid

    def remove_pod(self, job_uid: str, pod_uid: str, last: KubeObject | None = None) -> str | None:
        """Mark a pod as gone. What was last seen of it stays until it is accounted for, or its job is gone.

        Args:
            last: the pod as it was when it went, where that is known.
        """
        if pod_uid in self._deleted:
            return None
        if last is not None:
            self.apply_pod(last)
        self._bury(pod_uid)
        pods = self._pods.get(job_uid, {})
        known = pods.get(pod_uid)
        if known is None:
            return None
        if job_uid in self._jobs:
            pods[pod_uid] = replace(known, pod=replace(known.pod, gone=True))
        else:
            del pods[pod_uid]
            if not pods:
                del self._pods[job_uid]
        return job_uid

    def wrote_deletion(self, job_uid: str, pod_uid: str, item: KubeObject) -> None:
        """Take over that we deleted a pod. What the server answers holds no status, so what is known of that stays."""
        known = self._pods.get(job_uid, {}).get(pod_uid)
        view = pod_view(item) if item else None
        if known is None or view is None or view.pod.uid != pod_uid or view.resource_version < known.resource_version:
            return
        pod = replace(
            known.pod,
            deletion_at=view.pod.deletion_at,
            deletion_grace_seconds=view.pod.deletion_grace_seconds,
        )
        self._pods[job_uid][pod_uid] = replace(known, pod=pod)

    def forget_gone(self, job_uid: str, is_past: Callable[[ObservedPod], bool]) -> None:
        """Drop those pods that are gone and accounted for."""
        pods = self._pods.get(job_uid)
        if not pods:
            return
        for pod_uid in [uid for uid, view in pods.items() if view.pod.gone and is_past(view.pod)]:
            del pods[pod_uid]
        if not pods:
            del self._pods[job_uid]

    def _bury(self, uid: str) -> None:
        """Remember a deletion for a while; a uid never comes back."""
        now = self._monotonic()
        self._deleted[uid] = now
        while self._deleted:
            oldest = next(iter(self._deleted))
            if now - self._deleted[oldest] < _TOMBSTONE_S:
                return
            del self._deleted[oldest]
