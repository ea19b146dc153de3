"""What a node needs of this machine: rights, a bridge for its pods, and a cgroup in every hierarchy."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from cluster_harness.errors import ClusterError, Unavailable
from cluster_harness.leftovers import CGROUPS

_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


def require_node_rights() -> None:
    """Check that this machine can hold a node.

    Raises:
        Unavailable: it can't, and why.
    """
    if os.geteuid() != 0:
        raise Unavailable("a real node needs root, for containers and their networks")
    missing = [name for name, bit in _CAPABILITIES.items() if not _capabilities() >> bit & 1]
    if missing:
        raise Unavailable(
            f"a real node needs the rights {' and '.join(missing)}, which root lacks here; leave the container"
        )
    if shutil.which("ip") is None:
        raise Unavailable("a real node needs the program ip; install iproute2")
    if not os.access(CGROUPS, os.W_OK) or not _hierarchies():
        raise Unavailable(f"a real node needs cgroups, and can't write to {CGROUPS}")


def make_bridge(name: str, *addresses: str) -> None:
    """Make a network bridge with addresses such as ``10.244.0.1/24``, and let packets pass from it to other bridges.

    Raises:
        ClusterError: the machine refuses.
    """
    for command in (
        ["ip", "link", "add", name, "type", "bridge"],
        *(["ip", "address", "add", address, "dev", name] for address in addresses),
        ["ip", "link", "set", name, "up"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
        if done.returncode:
            raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
    Path("/proc/sys/net/ipv4/conf", name, "forwarding").write_text("1\n")  # of this bridge alone: it goes with it


def make_cgroup(name: str) -> None:
    """Make a cgroup of this name in every hierarchy, with all processors and all memory."""
    for hierarchy in _hierarchies():
        folder = hierarchy / name
        folder.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # empty in a new one of version 1, which then takes no process
            if (folder / file).exists() and hierarchy.name == "cpuset":
                (folder / file).write_text((hierarchy / file).read_text())
        if (hierarchy / "cgroup.controllers").exists():
            for controller in (hierarchy / "cgroup.controllers").read_text().split():
                for parent in (hierarchy, folder):
                    with contextlib.suppress(OSError):
                        (parent / "cgroup.subtree_control").write_text(f"+{controller}")


def _capabilities() -> int:
    """Return the rights of this process, one bit each."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("CapEff:")), 16)


def _hierarchies() -> list[Path]:
    """Return the roots of the hierarchies: one of version 2, or those of version 1 with one of version 2 among them."""
    if (CGROUPS / "cgroup.procs").exists():
        return [CGROUPS]
    return [path for path in CGROUPS.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]
