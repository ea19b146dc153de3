"""A real node: containerd and kubelet on this machine, with a network, a cgroup and mounts of its own; needs root."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from cluster_harness import binaries, products
from cluster_harness.api import ApiError, JsonObject
from cluster_harness.cluster import wait_for, write_kubeconfig
from cluster_harness.control_plane import SERVICE_PORT, ControlPlane, write_pair
from cluster_harness.errors import ClusterError
from cluster_harness.images import PAUSE, host_folders, write_images
from cluster_harness.leftovers import CGROUPS
from cluster_harness.machine import make_bridge, make_cgroup, require_node_rights
from cluster_harness.processes import Guard, Process
from cluster_harness.relay import relay_command

_KUBELET_PORT = 10250
_READY_DEADLINE_S = 90.0
# Where containerd, kubelet and the network plugins write whatever they are told; see Guard.isolate.
_PRIVATE_FOLDERS = ("/run", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers")


class Node:
    """A node of a control plane, Ready when the constructor returns. Several may run on one machine at once.

    It is a context manager; ``stop`` ends its containers, and leaves no mount, bridge or cgroup. If this process dies,
    all of that happens too. The control plane needs a scheduler and a controller manager for pods to be started on it.

    Args:
        name: name of the node, its hostname label too.
        lease_s: for how long its sign of life counts; it is renewed four times as often.
        kubelet: settings of the kubelet beside, or in place of, those that are needed here.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        name: str = "node-a",
        *,
        lease_s: int = 8,
        kubelet: Mapping[str, Any] | None = None,
        report: binaries.Report = binaries.say,
    ) -> None:
        require_node_rights()
        if not control_plane.settings.controller_manager:
            raise ClusterError("a node becomes ready only where a controller manager runs; start one")
        self._control_plane, self.name = control_plane, name
        self._programs = binaries.find(products.NODE, report)
        number = control_plane.reservations.number("node")
        self._bridge, self._cgroup = f"rlj{number}", f"rljob-{number}"
        self.subnet, self.address = f"10.244.{number}.0/24", f"10.244.{number}.1"
        self._settings = {"nodeLeaseDurationSeconds": lease_s, "nodeStatusUpdateFrequency": "2s", **(kubelet or {})}
        self.guard = Guard(cgroup=self._cgroup, bridge=self._bridge)
        try:
            self._prepare()
            self.containerd = self._start_containerd()
            self._load_images()
            self.dns = self._start_dns()
            self._start_relay()
            self.kubelet = self._start_kubelet()
            self._wait_ready()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the node with its pods and take it away from the control plane; may be called twice.

        Raises:
            ClusterError: something is left behind.
        """
        self.guard.close()
        with contextlib.suppress(OSError, ApiError):
            self._control_plane.api.delete(f"/api/v1/nodes/{self.name}")

    def stop_kubelet(self) -> None:
        """Kill the kubelet: to the cluster the node is lost, while its containers run on."""
        self.kubelet.end()

    def start_kubelet(self) -> None:
        """Start the kubelet anew."""
        self.kubelet = self._start_kubelet()
        self._wait_ready()

    def processes_of(self, namespace: str, pod: str, container: str = "rljob") -> list[int]:
        """Return the numbers, on this machine, of the processes of a container that runs.

        Raises:
            ClusterError: the pod has no such container, or it doesn't run.
        """
        found = self._control_plane.get("/api/v1/pods", namespace, pod) or {}
        return self._processes(found, container)

    def kill(self, namespace: str, pod: str, container: str = "rljob", number: int = signal.SIGKILL) -> None:
        """Send a signal to every process of a container at once; raises like ``processes_of``."""
        for pid in self.processes_of(namespace, pod, container):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _processes(self, pod: JsonObject, container: str) -> list[int]:
        statuses = pod.get("status", {}).get("containerStatuses", [])
        ids = [status["containerID"].rpartition("/")[2] for status in statuses if status["name"] == container]
        hierarchy = CGROUPS / "pids" if (CGROUPS / "pids").is_dir() else CGROUPS
        pids = []
        for path in (hierarchy / self._cgroup).rglob(f"{ids[0]}/**/cgroup.procs") if ids else ():
            pids += [int(line) for line in path.read_text().split()]
        if not pids:
            raise ClusterError(f"no process of a container {container!r} runs in this pod")
        return pids

    def _prepare(self) -> None:
        folder = self.guard.folder
        for part in ("cni/bin", "cni/conf", "kubelet", "volume-plugins", "pod-logs"):
            (folder / part).mkdir(parents=True)
        private = {}
        for path in _PRIVATE_FOLDERS:
            private[path] = folder / "private" / path.lstrip("/")
            private[path].mkdir(parents=True)
        self.guard.isolate(private)
        for name in ("bridge", "loopback", "host-local"):
            (folder / "cni" / "bin" / name).symlink_to(self._programs[name])
        # The name under which containerd looks for what runs a container, whatever folder holds it.
        (folder / "bin").mkdir()
        for name in ("containerd-shim-runc-v2", "runc"):
            (folder / "bin" / name).symlink_to(self._programs[name])
        make_cgroup(self._cgroup)
        make_bridge(self._bridge, f"{self.address}/24", f"{self._control_plane.service_address}/32")
        (folder / "cni" / "conf" / "10-bridge.conflist").write_text(json.dumps(self._network()))
        self._write_identity()

    def _network(self) -> JsonObject:
        ranges = [[{"subnet": self.subnet}]]
        addresses = {
            "type": "host-local",
            "dataDir": str(self.guard.folder / "cni" / "data"),
            "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": self._bridge, "hairpinMode": True, "ipam": addresses}
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}

    def _write_identity(self) -> None:
        folder, plane = self.guard.folder, self._control_plane
        pair = plane.authority.issue(
            f"system:node:{self.name}", groups=["system:nodes"], hosts=[self.name], addresses=[self.address]
        )
        write_pair(folder / "kubelet-pair", pair)
        (folder / "ca.crt").write_bytes(plane.authority.certificate)
        cluster = {"server": plane.server, "certificate-authority": str(folder / "ca.crt")}
        user = {
            "client-certificate": str(folder / "kubelet-pair.crt"),
            "client-key": str(folder / "kubelet-pair.key"),
        }
        write_kubeconfig(folder / "kubelet.kubeconfig", cluster, user)

    @property
    def _environment(self) -> dict[str, str]:
        return {"PATH": f"{self.guard.folder / 'bin'}:{os.environ.get('PATH', os.defpath)}"}

    def _ctr(self, *arguments: str | Path) -> str:
        socket = self.guard.folder / "containerd.sock"
        command: list[str | Path] = [self._programs["ctr"], "--address", socket, "--namespace", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise ClusterError(f"ctr {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout

    def _start_containerd(self) -> Process:
        folder = self.guard.folder
        # Every container gets the folders of this machine with which its Python runs, beside what is usual.
        specification = json.loads(self._ctr("oci", "spec"))
        specification["mounts"] += [
            {"destination": str(place), "source": str(path), "type": "bind", "options": ["rbind", "ro"]}
            for path, place in host_folders().items()
        ]
        (folder / "container.json").write_text(json.dumps(specification))
        (folder / "containerd.toml").write_text(_CONTAINERD.format(folder=folder, pause=PAUSE))
        process = self.guard.start(
            "containerd",
            [self._programs["containerd"], "--config", folder / "containerd.toml"],
            env=self._environment,
        )

        def answers() -> bool:
            if process.returncode is not None:
                raise ClusterError(f"containerd ended with {process.returncode}:\n{process.log_tail()}")
            with contextlib.suppress(ClusterError):
                return bool(self._ctr("version"))
            return False

        wait_for("containerd answers", answers, describe=process.log_tail)
        return process

    def _load_images(self) -> None:
        for archive in write_images(self.guard.folder, self._programs["pause"]):
            self._ctr("images", "import", "--local", "--snapshotter", "native", archive)

    def _start_dns(self) -> Process:
        corefile = self.guard.folder / "Corefile"
        corefile.write_text(
            f"cluster.local:53 {{\n  bind {self.address}\n"
            f"  kubernetes cluster.local {{\n    kubeconfig {self._control_plane.kubeconfig}\n    ttl 1\n  }}\n}}\n"
        )
        return self.guard.start("coredns", [self._programs["coredns"], "-conf", corefile])

    def _start_relay(self) -> Process:
        """Pods reach the API server at the address of its Service, which is one of this node's."""
        command = relay_command(self._control_plane.service_address, SERVICE_PORT, self._control_plane.port)
        return self.guard.start("relay", command)

    def _start_kubelet(self) -> Process:
        folder = self.guard.folder
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",  # kubelets kill what they don't know below their own
            "enforceNodeAllocatable": [],
            "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(folder / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(folder / "kubelet-pair.crt"),
            "tlsPrivateKeyFile": str(folder / "kubelet-pair.key"),
            "address": self.address,
            "port": _KUBELET_PORT,
            "healthzPort": 0,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,  # an image that is collected can't be pulled again
            "podLogsDir": str(folder / "pod-logs"),
            "volumePluginDir": str(folder / "volume-plugins"),
            "resolvConf": "",
            "clusterDNS": [self.address],
            "clusterDomain": "cluster.local",
            **self._settings,
        }
        (folder / "kubelet.yaml").write_text(yaml.safe_dump(settings))
        return self.guard.start(
            "kubelet",
            [
                self._programs["kubelet"],
                f"--config={folder / 'kubelet.yaml'}",
                f"--kubeconfig={folder / 'kubelet.kubeconfig'}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
                f"--root-dir={folder / 'kubelet'}",
            ],
            env=self._environment,
        )

    def _wait_ready(self) -> None:
        def ready() -> bool:
            if self.kubelet.returncode is not None:
                raise ClusterError(f"kubelet ended with {self.kubelet.returncode}:\n{self.kubelet.log_tail()}")
            node = self._control_plane.api.get(f"/api/v1/nodes/{self.name}")
            conditions = node["status"].get("conditions", [])
            untainted = not node["spec"].get("taints")
            return untainted and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

        wait_for(
            f"{self.name} is ready",
            ready,
            deadline_s=_READY_DEADLINE_S,
            describe=self.kubelet.log_tail,
            ignore=[OSError, ApiError],
        )


_CONTAINERD = """\
version = 3
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "native"  # works on any file system; the images are small
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "{folder}/container.json"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "{folder}/bin/runc"
      Root = "{folder}/runc"
      SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{folder}/cni/bin"]
    conf_dir = "{folder}/cni/conf"
"""
