"""What processes and the machine have used so far, read from ``/proc``."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CORES = len(os.sched_getaffinity(0))


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used, those of its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def peak_rss_mib(pid: int) -> float:
    """Return the most memory that a process has ever held, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) / 1024


def machine_s() -> tuple[float, float]:
    """Return the CPU seconds that all processes of the machine have used, and those that its host has kept from it."""
    fields = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq) / _TICKS_PER_S, steal / _TICKS_PER_S


def pid_of(program: str, argument: str) -> int:
    """Return the number of the process that runs ``program`` with this argument.

    Raises:
        LookupError: there is none.
    """
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parts = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue  # it has ended meanwhile
        if Path(parts[0]).name == program and argument in parts:
            return int(entry.name)
    raise LookupError(f"no process runs {program} with {argument}")
