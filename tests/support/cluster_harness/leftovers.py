"""Processes, mounts, cgroups and bridges of a cluster: how they are found, and how they are removed.

The guard runs this when its owner has gone, so it imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_MNT_DETACH = 2
_KILL_DEADLINE_S = 30.0


@dataclass(frozen=True)
class Traces:
    """What a cluster, or one of its nodes, may leave on the machine."""

    folder: str
    """Holds all its files; every process of it has the path in its command line, and every mount lies below."""
    cgroup: str = ""
    """Name of its cgroup, in every hierarchy; empty when it has none."""
    bridge: str = ""
    """Name of its network bridge; empty when it has none."""

    def remove(self) -> None:
        """End the processes of the cgroup and remove the mounts, the cgroup, the bridge and the folder."""
        if self.cgroup:
            end_processes_of_cgroup(self.cgroup)
        unmount_below(self.folder)
        if self.cgroup:
            remove_cgroup(self.cgroup)
        if self.bridge:
            subprocess.run(["ip", "link", "delete", self.bridge], capture_output=True, check=False, timeout=20)
        if not mounts_below(self.folder):  # never reach into what is mounted there
            shutil.rmtree(self.folder, ignore_errors=True)

    def found(self) -> list[str]:
        """Return one line for each trace that is there; an empty list when all is gone."""
        lines = [f"process {pid}: {command}" for pid, command in processes_naming(self.folder)]
        lines += [f"mount {path}" for path in mounts_below(self.folder)]
        lines += [f"cgroup {path}" for path in cgroup_folders(self.cgroup)] if self.cgroup else []
        if self.bridge in {name for _, name in socket.if_nameindex()}:
            lines.append(f"bridge {self.bridge}")
        if os.path.lexists(self.folder):
            lines.append(f"folder {self.folder}")
        return lines


def processes_naming(text: str) -> list[tuple[int, str]]:
    """Return number and command line of each process whose command line holds ``text``, but for the one that asks."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                command = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if text in command:
                    found.append((int(entry), command.strip()))
    return found


def mounts_below(folder: str) -> list[str]:
    """Return the mount points at or below ``folder``, the deepest first."""
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4].encode().decode("unicode_escape")
        if point == folder or point.startswith(folder.rstrip("/") + "/"):
            points.append(point)
    return points[::-1]


def unmount_below(folder: str) -> None:
    """Unmount whatever lies below ``folder``, also what is still in use."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    for _ in range(10):
        points = mounts_below(folder)
        if not points:
            return
        for point in points:
            libc.umount2(os.fsencode(point), _MNT_DETACH)


def cgroup_folders(name: str) -> list[Path]:
    """Return the folders of the cgroup ``name``: one in each hierarchy of version 1, and one in version 2."""
    return [parent / name for parent in (CGROUPS, *CGROUPS.iterdir()) if (parent / name / "cgroup.procs").exists()]


def end_processes_of_cgroup(name: str) -> None:
    """Kill every process below the cgroup ``name`` until there is none."""
    ends = time.monotonic() + _KILL_DEADLINE_S
    while time.monotonic() < ends:
        pids = {pid for folder in cgroup_folders(name) for pid in _pids_below(folder)}
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def remove_cgroup(name: str) -> None:
    """Remove the cgroup ``name`` with all below it; it must hold no process."""
    ends = time.monotonic() + _KILL_DEADLINE_S
    while time.monotonic() < ends:
        folders = cgroup_folders(name)
        if not folders:
            return
        for top in folders:
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        time.sleep(0.02)


def _pids_below(folder: Path) -> list[int]:
    pids = []
    for path in folder.rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            pids += [int(line) for line in path.read_text().split()]
    return pids
