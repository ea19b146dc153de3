"""The programs of a cluster: which module each is built from, in which version, and how it tells its version."""

from __future__ import annotations

import hashlib
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster_harness.errors import ClusterError

FOLDER = Path(__file__).resolve().parents[2] / "cluster" / "products"
"""Holds one folder with ``go.mod`` and ``go.sum`` for each product: their dependencies differ in version."""

_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")


@dataclass(frozen=True)
class Program:
    """One executable file."""

    name: str
    """Name of the file."""
    product: str
    """Name of its folder in ``FOLDER``."""
    module: str
    """Go module that it is part of."""
    package: str
    """Go package that is its main."""
    version_arguments: tuple[str, ...] | None = ("--version",)
    """Arguments that make it print its version; None where only our own build is taken."""
    tags: str = ""
    """Build tags."""
    needs_c: bool = False
    """Whether it is built with a C compiler and libseccomp."""

    @property
    def version(self) -> str:
        """The pinned version, such as ``v1.37.2``."""
        if self.module == f"rljob.io/tests/{self.product}":
            return "v1.0.0"  # our own
        text = (FOLDER / self.product / "go.mod").read_text()
        found = re.search(rf"^\s*(?:require )?{re.escape(self.module)} (v\S+)", text, re.MULTILINE)
        if found is None:
            raise ClusterError(f"{FOLDER / self.product / 'go.mod'} requires no {self.module}")
        return found[1]

    @property
    def minor(self) -> str:
        """The first two numbers of the pinned version, such as ``1.37``."""
        return ".".join(self.version.lstrip("v").split(".")[:2])

    @property
    def linker_flags(self) -> str:
        """What the linker is told; without its version Kubernetes calls itself by one that its own clients refuse."""
        if self.product == "helm":
            return f"-s -w -X helm.sh/helm/v4/internal/version.version={self.version}"
        if self.product != "kubernetes":
            return "-s -w"
        major, minor = self.minor.split(".")
        variables = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
        return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{k}={v}" for k, v in variables.items())])

    @property
    def build_name(self) -> str:
        """Name of a folder for the product's binaries that is another for every other way to build them."""
        digest = hashlib.sha256(f"{self.linker_flags} {self.tags}".encode())
        for file in ("go.mod", "go.sum"):
            digest.update((FOLDER / self.product / file).read_bytes())
        return f"{self.product}-{self.version}-{digest.hexdigest()[:12]}"

    def is_pinned_minor(self, path: Path) -> bool:
        """Say whether the file ``path`` is this program in the pinned minor version."""
        if self.version_arguments is None:
            return False
        try:
            done = subprocess.run(
                [path, *self.version_arguments], capture_output=True, text=True, timeout=20, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        found = re.search(r"v?(\d+\.\d+)\.\d+", done.stdout)
        return done.returncode == 0 and found is not None and found[1] == self.minor


def _program(name: str, module: str, package: str, product: str, **more: object) -> Program:
    return Program(name, product, module, f"{module}{package}", **more)  # type: ignore[arg-type]


_CONTAINERD = "github.com/containerd/containerd/v2"
_CNI = "github.com/containernetworking/plugins"
_DISCOVERY = "remove_all_sd,enable_kubernetes_sd"

PROGRAMS = {
    program.name: program
    for program in (
        *(
            _program(name, "k8s.io/kubernetes", f"/cmd/{name}", "kubernetes")
            for name in _KUBERNETES
            if name != "kubectl"
        ),
        _program(
            "kubectl", "k8s.io/kubernetes", "/cmd/kubectl", "kubernetes", version_arguments=("version", "--client")
        ),
        _program("etcd", "go.etcd.io/etcd/server/v3", "", "etcd"),
        _program("containerd", _CONTAINERD, "/cmd/containerd", "containerd"),
        _program("ctr", _CONTAINERD, "/cmd/ctr", "containerd"),
        _program(
            "containerd-shim-runc-v2",
            _CONTAINERD,
            "/cmd/containerd-shim-runc-v2",
            "containerd",
            version_arguments=("-v",),
        ),
        # iproute2 has a program named bridge too: these are taken from no PATH.
        _program("bridge", _CNI, "/plugins/main/bridge", "cni", version_arguments=None),
        _program("loopback", _CNI, "/plugins/main/loopback", "cni", version_arguments=None),
        _program("host-local", _CNI, "/plugins/ipam/host-local", "cni", version_arguments=None),
        _program("runc", "github.com/opencontainers/runc", "", "runc", tags="seccomp", needs_c=True),
        _program("pause", "rljob.io/tests/pause", "", "pause", version_arguments=None),
        _program("coredns", "github.com/coredns/coredns", "", "coredns", version_arguments=("-version",)),
        _program("kwok", "sigs.k8s.io/kwok", "/cmd/kwok", "kwok"),
        _program("helm", "helm.sh/helm/v4", "/cmd/helm", "helm", version_arguments=("version", "--short")),
        _program(
            "kube-network-policies",
            "sigs.k8s.io/kube-network-policies",
            "/cmd",
            "kube-network-policies",
            version_arguments=None,
        ),
        # Of the ways to find targets, Kubernetes' alone is built in: clouds' clients take minutes.
        *(
            _program(name, "github.com/prometheus/prometheus", f"/cmd/{name}", "prometheus", tags=_DISCOVERY)
            for name in ("prometheus", "promtool")
        ),
    )
}

API_SERVER = ("etcd", "kube-apiserver", "kubectl")
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
NODE = (
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "runc",
    "bridge",
    "loopback",
    "host-local",
    "kubelet",
    "coredns",
    "pause",
)
SIMULATED_NODES = ("kwok",)
HELM = ("helm",)
NETWORK_POLICIES = ("kube-network-policies",)
PROMETHEUS = ("prometheus", "promtool")
EVERYTHING = (*API_SERVER, *CONTROLLERS, *NODE, *SIMULATED_NODES, *HELM, *NETWORK_POLICIES, *PROMETHEUS)
