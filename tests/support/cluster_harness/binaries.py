"""Where the programs of a cluster come from: a folder that is named, PATH, or a cache into which they are built once.

``RLJOB_KUBE_BIN`` names a folder; what it holds is taken as it is. What PATH holds is taken in the pinned minor
version. The rest is built into ``${XDG_CACHE_HOME:-~/.cache}/rljob/kube``, by one process at a time, and only what is
asked for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cluster_harness.products import FOLDER, PROGRAMS, Program
from cluster_harness.toolchain import build, c_environment, go_program

FOLDER_VARIABLE = "RLJOB_KUBE_BIN"
_LIKE_KUBERNETES = ("kubernetes", "kube-network-policies")
Report = Callable[[str], None]


def say(line: str) -> None:
    """Show a line of progress at once."""
    print(line, file=sys.stderr, flush=True)


def cache_folder() -> Path:
    """Return the folder for what is built."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rljob" / "kube"


def find(names: Iterable[str], report: Report = say) -> dict[str, Path]:
    """Return the path of each program; those that are found nowhere are built first, minutes the first time.

    Args:
        report: gets one line when the build of a program starts, and one when it ends.

    Raises:
        Unavailable: this machine lacks what a build needs.
        ClusterError: a build fails.
    """
    programs = [PROGRAMS[name] for name in names]
    found = {program.name: path for program in programs if (path := _existing(program))}
    missing = [program for program in programs if program.name not in found]
    if missing:
        found |= _build_all(missing, report)
    return {name: found[name] for name in names}


def _existing(program: Program) -> Path | None:
    named = os.environ.get(FOLDER_VARIABLE)
    if named and os.access(Path(named) / program.name, os.X_OK):
        return Path(named).resolve() / program.name
    on_path = shutil.which(program.name)
    if on_path and program.is_pinned_minor(Path(on_path)):
        return Path(on_path).resolve()
    built = cache_folder() / program.build_name / program.name
    return built if built.exists() else None


def _build_all(programs: list[Program], report: Report) -> dict[str, Path]:
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    built = {}
    with _lock(cache / "lock", report):
        for number, program in enumerate(programs, start=1):
            target = cache / program.build_name / program.name
            if not target.exists():
                report(f"building {program.name} {program.version} ({number} of {len(programs)}) into {target.parent}")
                started = time.monotonic()
                _build(program, target, cache)
                report(f"built {program.name} in {time.monotonic() - started:.0f} s")
            built[program.name] = target
    return built


def _build(program: Program, target: Path, cache: Path) -> None:
    flags = ["-ldflags", program.linker_flags]
    # Kubernetes' own builds of the kubelet use C; Go does where there is a compiler. Nothing else here needs any, but
    # what is made of the same packages in the same versions is built the same way: they are then compiled once.
    environment = {} if program.product in _LIKE_KUBERNETES else {"CGO_ENABLED": "0"}
    if program.tags:
        flags += ["-tags", program.tags]
    if program.needs_c:
        environment = c_environment(cache)
    target.parent.mkdir(exist_ok=True)
    build(
        go_program(cache),
        FOLDER / program.product,
        program.package,
        target,
        flags=flags,
        environment=environment,
    )


@contextlib.contextmanager
def _lock(path: Path, report: Report) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that builds the programs of the cluster")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
