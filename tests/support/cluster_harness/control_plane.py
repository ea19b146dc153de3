"""A control plane of one's own: etcd, kube-apiserver, and on request controller manager and scheduler."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from cluster_harness import binaries, products
from cluster_harness.api import ApiError
from cluster_harness.certificates import Authority, KeyPair, private_pem, public_pem, signing_key
from cluster_harness.cluster import Cluster, write_kubeconfig
from cluster_harness.errors import ClusterError
from cluster_harness.processes import Guard, Process
from cluster_harness.reservations import Reservations

SERVICE_PORT = 443
"""Port of the Service under which pods know the API server."""
_ATTEMPTS = 5
_READY_DEADLINE_S = 90.0
_READY_EVERY_S = 0.02
_HOSTS = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_IN_USE = "address already in use"


@dataclass(frozen=True)
class Settings:
    """How a control plane is started."""

    controller_manager: bool = False
    """Runs the controllers: without them no default service account is made, and nothing is garbage collected."""
    scheduler: bool = False
    """Runs the scheduler: without it pods stay pending."""
    audit_users: Sequence[str] = ()
    """Users whose requests are recorded, all verbs, such as ``system:serviceaccount:NAMESPACE:NAME``; ``*`` for all."""
    audit_bodies: bool = False
    """Records what these requests and their answers held too, but for Secrets."""
    feature_gates: dict[str, bool] = field(default_factory=dict)
    """Given to all components."""
    apiserver_arguments: Sequence[str] = ()
    controller_manager_arguments: Sequence[str] = ()
    scheduler_arguments: Sequence[str] = ()


class ControlPlane(Cluster):
    """A control plane that runs as whoever starts it, on ports of 127.0.0.1 that no other one has.

    It is a context manager; ``stop`` ends all of it. If this process dies, all of it ends too.
    """

    def __init__(self, settings: Settings = Settings(), report: binaries.Report = binaries.say) -> None:
        self.settings = settings
        wanted = [
            *products.API_SERVER,
            *(["kube-controller-manager"] if settings.controller_manager else []),
            *(["kube-scheduler"] if settings.scheduler else []),
        ]
        self._programs = binaries.find(wanted, report)
        self.guard = Guard()
        self.reservations = Reservations()
        number = self.reservations.number("services")
        self._service_network = f"10.96.{number}.0/24"
        self.service_address = f"10.96.{number}.1"
        """Address of the Service under which pods know the API server; nodes pass on what comes to it."""
        self.authority = Authority("rljob-test-cluster")
        self._processes: dict[str, Process] = {}
        self.started_in_s = 0.0
        """How long it took until the API server was ready."""
        try:
            self._write_keys(self.guard.folder)
            self._start()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all of it and remove its files; may be called twice.

        Raises:
            ClusterError: something is left behind.
        """
        try:
            self.guard.close()
        finally:
            self.reservations.close()

    @property
    def server(self) -> str:
        """Address of the API server."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def process_ids(self) -> dict[str, int]:
        """Process numbers by name, such as ``kube-apiserver``."""
        return {name: process.pid for name, process in self._processes.items()}

    def process(self, name: str) -> Process:
        """Return a process by name: ``etcd``, ``kube-apiserver``, ``kube-controller-manager``, ``kube-scheduler``."""
        return self._processes[name]

    def kill_apiserver(self) -> None:
        """Kill the API server; what it stored stays."""
        self._processes["kube-apiserver"].end()

    def start_apiserver(self) -> None:
        """Start the API server anew on the same port, with the same data, and wait until it is ready."""
        self._processes["kube-apiserver"] = self._start_apiserver()
        self._wait_ready()

    def restart_apiserver(self, *, down_s: float = 0.0) -> None:
        """Kill the API server and start it anew, ``down_s`` seconds later."""
        self.kill_apiserver()
        time.sleep(down_s)
        self.start_apiserver()

    def user_kubeconfig(self, name: str, groups: Sequence[str] = ()) -> Path:
        """Return the kubeconfig of a user with a client certificate; the group ``system:masters`` may do all."""
        pair = self.authority.issue(name, groups=groups)
        cluster = {"server": self.server, "certificate-authority-data": _base64(self.authority.certificate)}
        user = {"client-certificate-data": _base64(pair.certificate), "client-key-data": _base64(pair.key)}
        return write_kubeconfig(self.guard.folder / f"{name.replace(':', '-')}.kubeconfig", cluster, user)

    def audit_events(self, *users: str) -> list[dict[str, Any]]:
        """Return what was recorded so far, one event per finished request, of these users or of all."""
        events = []
        with contextlib.suppress(FileNotFoundError):
            for line in (self.guard.folder / "audit.log").read_text().splitlines():
                with contextlib.suppress(ValueError):  # a line that is being written
                    events.append(json.loads(line))
        return [event for event in events if not users or event["user"]["username"] in users]

    def _start(self) -> None:
        started = time.monotonic()
        for attempt in range(1, _ATTEMPTS + 1):
            etcd_port, peer_port, self.port = (self.reservations.port() for _ in range(3))
            self._etcd_url, self._peer_url = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}"
            self._processes["etcd"] = self._start_etcd()
            self._processes["kube-apiserver"] = self._start_apiserver()
            super().__init__(
                self.user_kubeconfig("admin", ["system:masters"]), self._programs["kubectl"], self.guard.folder
            )
            try:
                self._wait_ready()
                break
            except ClusterError:
                logs = "".join(process.log_tail(100) for process in self._processes.values())
                if attempt == _ATTEMPTS or _IN_USE not in logs:
                    raise
                for process in self._processes.values():  # another program took a port between our look and its start
                    process.end()
                    process.log.unlink()
        self.started_in_s = time.monotonic() - started
        if self.settings.controller_manager:
            self._processes["kube-controller-manager"] = self._start_controller_manager()
        if self.settings.scheduler:
            self._processes["kube-scheduler"] = self._start_scheduler()

    def _write_keys(self, folder: Path) -> None:
        addresses = ["127.0.0.1", self.service_address]
        write_pair(folder / "apiserver", self.authority.issue("kube-apiserver", hosts=_HOSTS, addresses=addresses))
        write_pair(folder / "kubelet-client", self.authority.issue("apiserver", groups=["system:masters"]))
        (folder / "ca.crt").write_bytes(self.authority.certificate)
        key = signing_key()
        write_secret(folder / "service-accounts.key", private_pem(key))
        (folder / "service-accounts.pub").write_bytes(public_pem(key))

    def _start_etcd(self) -> Process:
        # No data survives the test, so nothing is synced; a lone member needs no second to elect itself.
        arguments = {
            "data-dir": self.guard.folder / "etcd",
            "listen-client-urls": self._etcd_url,
            "advertise-client-urls": self._etcd_url,
            "listen-peer-urls": self._peer_url,
            "initial-advertise-peer-urls": self._peer_url,
            "initial-cluster": f"default={self._peer_url}",
            "heartbeat-interval": 20,
            "election-timeout": 200,
            "log-level": "warn",
        }
        return self.guard.start(
            "etcd", [self._programs["etcd"], "--unsafe-no-fsync", *(f"--{k}={v}" for k, v in arguments.items())]
        )

    def _start_apiserver(self) -> Process:
        folder = self.guard.folder
        arguments = {
            "etcd-servers": self._etcd_url,
            "bind-address": "127.0.0.1",
            "secure-port": self.port,
            "tls-cert-file": folder / "apiserver.crt",
            "tls-private-key-file": folder / "apiserver.key",
            "client-ca-file": folder / "ca.crt",
            "kubelet-client-certificate": folder / "kubelet-client.crt",
            "kubelet-client-key": folder / "kubelet-client.key",
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": folder / "service-accounts.pub",
            "service-account-signing-key-file": folder / "service-accounts.key",
            "service-cluster-ip-range": self._service_network,
            "authorization-mode": "Node,RBAC",
            "allow-privileged": "true",
            **self._gates(),
        }
        if self.settings.audit_users:
            policy = folder / "audit-policy.yaml"
            policy.write_text(yaml.safe_dump(_audit_policy(self.settings)))
            arguments |= {"audit-policy-file": policy, "audit-log-path": folder / "audit.log"}
        return self.guard.start(
            "kube-apiserver",
            [
                self._programs["kube-apiserver"],
                *(f"--{key}={value}" for key, value in arguments.items()),
                *self.settings.apiserver_arguments,
            ],
            env={"GOGC": "300"},  # a fifth less work at start, for 70 MB of memory
        )

    def _wait_ready(self) -> None:
        ends = time.monotonic() + _READY_DEADLINE_S
        while True:
            with contextlib.suppress(OSError, ApiError):
                self.api.text("GET", "/readyz")
                return
            for name in ("etcd", "kube-apiserver"):
                process = self._processes[name]
                code = process.returncode
                if code is not None:
                    raise ClusterError(f"{name} ended with {code} before it was ready:\n{process.log_tail()}")
            if time.monotonic() > ends:
                log = self._processes["kube-apiserver"].log_tail()
                raise ClusterError(f"kube-apiserver is not ready after {_READY_DEADLINE_S:.0f} s:\n{log}")
            time.sleep(_READY_EVERY_S)

    def _start_controller_manager(self) -> Process:
        folder = self.guard.folder
        arguments = {
            "kubeconfig": self.kubeconfig,
            "root-ca-file": folder / "ca.crt",
            "service-account-private-key-file": folder / "service-accounts.key",
            "use-service-account-credentials": "true",
            "leader-elect": "false",
            "bind-address": "127.0.0.1",
            "secure-port": self.reservations.port(),
            "kube-api-qps": 1000,
            "kube-api-burst": 2000,
            **self._gates(),
        }
        return self.guard.start(
            "kube-controller-manager",
            [
                self._programs["kube-controller-manager"],
                *(f"--{key}={value}" for key, value in arguments.items()),
                *self.settings.controller_manager_arguments,
            ],
        )

    def _start_scheduler(self) -> Process:
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig), "qps": 1000, "burst": 2000},
            "leaderElection": {"leaderElect": False},
        }
        path = self.guard.folder / "scheduler.yaml"
        path.write_text(yaml.safe_dump(config))
        arguments = {
            "config": path,
            "bind-address": "127.0.0.1",
            "secure-port": self.reservations.port(),
            **self._gates(),
        }
        return self.guard.start(
            "kube-scheduler",
            [
                self._programs["kube-scheduler"],
                *(f"--{key}={value}" for key, value in arguments.items()),
                *self.settings.scheduler_arguments,
            ],
        )

    def _gates(self) -> dict[str, Any]:
        gates = self.settings.feature_gates
        return {"feature-gates": ",".join(f"{k}={str(v).lower()}" for k, v in gates.items())} if gates else {}


def write_pair(stem: Path, pair: KeyPair) -> None:
    """Write a certificate to ``<stem>.crt`` and its key to ``<stem>.key``, which only its owner can read."""
    stem.with_name(f"{stem.name}.crt").write_bytes(pair.certificate)
    write_secret(stem.with_name(f"{stem.name}.key"), pair.key)


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_bytes(content)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _audit_policy(settings: Settings) -> dict[str, Any]:
    users = {} if "*" in settings.audit_users else {"users": list(settings.audit_users)}
    secrets = {"resources": [{"group": "", "resources": ["secrets"]}]}
    rules: list[dict[str, Any]] = [{"level": "Metadata", **users}]
    if settings.audit_bodies:
        rules = [{"level": "Metadata", **users, **secrets}, {"level": "RequestResponse", **users}]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [*rules, {"level": "None"}],
    }
