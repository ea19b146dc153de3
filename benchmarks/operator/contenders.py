"""What is compared: how each operator is started, the job it is given, and when that job is done.

Each job is four pods of one container that asks for a GPU, a CPU and 1 GiB.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import programs
from cluster_harness.api import ApiError, JsonObject
from cluster_harness.cluster import wait_for
from cluster_harness.control_plane import ControlPlane
from cluster_harness.errors import ClusterError
from cluster_harness.processes import Guard
from cluster_harness.simulated import COMPLETE_LABEL, DELAY_ANNOTATION, MESSAGE_ANNOTATION
from operator_process import USER, OperatorProcess, account_for_all

from rlruntime.spec.contract import LABEL_JOB_NAME, TerminationMessage, TrainerReport

IMAGE = "example.invalid/train:1"
PODS_OF_A_JOB = 4
SYSTEM_NAMESPACE, ACCOUNT = "benchmark-system", "operator"
PEER_USER = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{ACCOUNT}"
_RESOURCES = {"requests": {"cpu": "1", "memory": "1Gi"}}
_PEER_RESOURCES = {**_RESOURCES, "limits": {"nvidia.com/gpu": 1}}
_START_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Contender:
    """An operator with one kind of job; `start` returns a context that holds its process number, or 0 for none."""

    name: str
    start: Callable[[ControlPlane], contextlib.AbstractContextManager[int]]
    jobs: str
    """Path of its jobs' API; empty where there are no jobs, only their objects."""
    job: Callable[[str], JsonObject]
    label: str
    """Label of a pod with its job's name."""
    is_done: Callable[[JsonObject], bool]
    user: str
    """Account of the operator, whose requests are counted."""
    ends: bool = False
    """Pods end a second after they began to run, and the job with them; else they run on."""


def _metadata_of_pods(ends: bool) -> JsonObject:
    if not ends:
        return {}
    report = TrainerReport(
        uid="00000000-0000-4000-8000-000000000000", attempt=0, phase="Succeeded", frames=100352, total_frames=100000,
        reward=487.25, best_reward=500.0, frames_per_second=24645.1, remaining_seconds=0,
    )  # fmt: skip
    words = TerminationMessage("Completed", "trained 100352 frames; reward 487.25 over 20 episodes", report)
    return {
        "labels": {COMPLETE_LABEL: "yes"},
        "annotations": {DELAY_ANNOTATION: "1s", MESSAGE_ANNOTATION: words.to_text()},
    }


def _rljob(*roles: tuple[str, int], ends: bool = False) -> Callable[[str], JsonObject]:
    def job(name: str) -> JsonObject:
        return {
            "apiVersion": "rljob.io/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": name},
            "spec": {
                "image": IMAGE,
                "runPolicy": {"cleanPodPolicy": "None"},  # as the others have it: pods stay when a job ends
                "training": {"algorithm": "PPO", "totalFrames": 100000, "env": {"id": "CartPole-v1"}},
                "roles": [
                    {
                        "name": kind.lower(),
                        "type": kind,
                        "replicas": replicas,
                        "gpus": 1,
                        "resources": _RESOURCES,
                        "template": {"metadata": _metadata_of_pods(ends)},
                    }
                    for kind, replicas in roles
                ],
            },
        }

    return job


def _raycluster(name: str) -> JsonObject:
    def pod(container: str) -> JsonObject:
        return {"spec": {"containers": [{"name": container, "image": IMAGE, "resources": _PEER_RESOURCES}]}}

    workers = {"groupName": "w", "replicas": 3, "minReplicas": 3, "maxReplicas": 3, "rayStartParams": {}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {
            "rayVersion": "2.46.0",
            "headGroupSpec": {"rayStartParams": {}, "template": pod("ray-head")},
            "workerGroupSpecs": [{**workers, "template": pod("ray-worker")}],
        },
    }


def _pytorchjob(name: str) -> JsonObject:
    def replicas(count: int) -> JsonObject:
        container = {"name": "pytorch", "image": IMAGE, "resources": _PEER_RESOURCES}
        template = {"metadata": _metadata_of_pods(ends=True), "spec": {"containers": [container]}}
        return {"replicas": count, "restartPolicy": "OnFailure", "template": template}

    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Master": replicas(1), "Worker": replicas(3)}},
    }


def _phase(*phases: str) -> Callable[[JsonObject], bool]:
    return lambda job: job.get("status", {}).get("phase") in phases


def _is_ready_raycluster(job: JsonObject) -> bool:
    return bool(job.get("status", {}).get("state") == "ready")


def _has_succeeded_pytorchjob(job: JsonObject) -> bool:
    conditions = job.get("status", {}).get("conditions") or []
    return any(item["type"] == "Succeeded" and item["status"] == "True" for item in conditions)


@contextlib.contextmanager
def _start_rljob(plane: ControlPlane) -> Iterator[int]:
    plane.install_crds()
    with OperatorProcess(account_for_all(plane), "--all-namespaces", "--log-format", "json") as operator:
        yield operator.process.pid
        if operator.process.returncode is not None:
            raise ClusterError(f"the operator has ended:\n{operator.log[-2000:]}")


@contextlib.contextmanager
def _start_nothing(_plane: ControlPlane) -> Iterator[int]:
    yield 0


def _install(plane: ControlPlane, peer: programs.Peer) -> None:
    plane.kubectl("create", "-f", programs.crds(peer))  # too large for kubectl apply
    plane.wait_established()


def _peer_account(plane: ControlPlane) -> Path:
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM_NAMESPACE}})
    kubeconfig = plane.service_account_kubeconfig(SYSTEM_NAMESPACE, ACCOUNT)
    plane.bind_role("cluster-admin", SYSTEM_NAMESPACE, ACCOUNT)
    return kubeconfig


@contextlib.contextmanager
def _peer(plane: ControlPlane, peer: programs.Peer, controller: str, *flags: str) -> Iterator[int]:
    """Run a peer until the end of the context; it is started when the workers of this controller are."""
    guard = Guard()
    try:
        certificates = (
            guard.folder / "k8s-webhook-server" / "serving-certs"
        )  # where the training operator waits for them
        certificates.mkdir(parents=True)
        for source, target in (("apiserver.crt", "tls.crt"), ("apiserver.key", "tls.key"), ("ca.crt", "ca.crt")):
            shutil.copyfile(plane.guard.folder / source, certificates / target)
        process = guard.start(
            peer.name,
            [programs.program(peer), *flags],
            env={
                "KUBECONFIG": str(plane.folder / f"{SYSTEM_NAMESPACE}-{ACCOUNT}.kubeconfig"),
                "MY_POD_NAMESPACE": SYSTEM_NAMESPACE,
                "TMPDIR": str(guard.folder),
            },
        )

        def works() -> bool:
            if process.returncode is not None:
                raise ClusterError(f"{peer.name} has ended:\n{process.log_tail()}")
            lines = process.log.read_text(errors="replace").splitlines()
            return any("Starting workers" in line and controller in line for line in lines)

        wait_for(f"{peer.name} works", works, deadline_s=_START_DEADLINE_S, describe=process.log_tail)
        yield process.pid
        if process.returncode is not None:
            raise ClusterError(f"{peer.name} has ended:\n{process.log_tail()}")
    finally:
        guard.close()


@contextlib.contextmanager
def _start_kuberay(plane: ControlPlane) -> Iterator[int]:
    """KubeRay with ten workers and no limit of its client that matters."""
    _install(plane, programs.KUBERAY)
    _peer_account(plane)
    flags = ["--enable-leader-election=false", "--reconcile-concurrency=10", "--qps=1000", "--burst=2000"]
    flags += [f"--metrics-addr=127.0.0.1:{plane.reservations.port()}"]
    flags += [f"--health-probe-bind-address=127.0.0.1:{plane.reservations.port()}"]
    with _peer(plane, programs.KUBERAY, "RayCluster", *flags) as pid:
        yield pid


@contextlib.contextmanager
def _start_training_operator(plane: ControlPlane) -> Iterator[int]:
    """The training operator with ten workers and its client's limit raised; its webhook is configured for nothing."""
    _install(plane, programs.TRAINING_OPERATOR)
    _peer_account(plane)
    secrets = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets"
    plane.api.create(secrets, {"metadata": {"name": "training-operator-webhook-cert"}})
    with contextlib.suppress(ApiError):
        plane.api.create(
            "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
            {"metadata": {"name": "validator.training-operator.kubeflow.org"}},
        )
    flags = ["--enable-scheme=pytorchjob", "--controller-threads=10"]
    flags += [f"--metrics-bind-address=127.0.0.1:{plane.reservations.port()}"]
    flags += [f"--health-probe-bind-address=127.0.0.1:{plane.reservations.port()}"]
    flags += [f"--webhook-server-port={plane.reservations.port()}"]
    with _peer(plane, programs.TRAINING_OPERATOR, "pytorchjob", *flags) as pid:
        yield pid


_RLJOBS = "/apis/rljob.io/v1alpha1/namespaces/{}/rljobs"

CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender(
            "rljob", _start_rljob, _RLJOBS, _rljob(("Trainer", 4)), LABEL_JOB_NAME, _phase("Running"), USER
        ),
        Contender(
            "kuberay", _start_kuberay, "/apis/ray.io/v1/namespaces/{}/rayclusters", _raycluster, "ray.io/cluster",
            _is_ready_raycluster, PEER_USER,
        ),
        Contender("floor", _start_nothing, "", _rljob(("Trainer", 4)), LABEL_JOB_NAME, lambda _job: True, ""),
        Contender(
            "rljob-ends", _start_rljob, _RLJOBS, _rljob(("Trainer", 4), ends=True), LABEL_JOB_NAME,
            _phase("Succeeded"), USER, ends=True,
        ),
        Contender(
            "pytorchjob-ends", _start_training_operator, "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs",
            _pytorchjob, "training.kubeflow.org/job-name", _has_succeeded_pytorchjob, PEER_USER, ends=True,
        ),
        Contender(
            "rljob-ordered", _start_rljob, _RLJOBS, _rljob(("Trainer", 1), ("Collector", 3)), LABEL_JOB_NAME,
            _phase("Running"), USER,
        ),
    )
}  # fmt: skip
