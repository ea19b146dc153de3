"""What a test has left behind: open files, processes, threads, and names in shared memory."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

SHARED_MEMORY = Path("/dev/shm")


class Held(NamedTuple):
    """What this process has.

    Attributes:
        files: open files.
        children: processes.
        threads: of this process.
        names: in shared memory, whoever made them.
    """

    files: int
    children: frozenset[psutil.Process]
    threads: frozenset[threading.Thread]
    names: frozenset[str]

    @classmethod
    def now(cls) -> Held:
        """Look."""
        process = psutil.Process()
        return cls(
            process.num_fds(), frozenset(process.children()), frozenset(threading.enumerate()), shared_memory_names()
        )

    def left_since(self, before: Held) -> dict[str, object]:
        """Return what is there now and wasn't before, and the numbers of files where they differ; else nothing.

        A thread or process that an earlier test left to end may do so meanwhile. Other programs of the machine make and
        remove shared memory as they please. A name that such a one has open or mapped is its own.
        """
        left: dict[str, object] = {}
        if self.files != before.files:
            left["files"] = f"{before.files} before, {self.files} now"
        if processes := self.children - before.children:
            left["children"] = sorted(map(str, processes))
        if threads := self.threads - before.threads:
            left["threads"] = sorted(map(str, threads))
        new = self.names - before.names
        if new and (mine := new - _held_by_others(new)):
            left["names"] = sorted(mine)
        return left


def shared_memory_names() -> frozenset[str]:
    """Return the names in shared memory."""
    return frozenset(os.listdir(SHARED_MEMORY)) if SHARED_MEMORY.exists() else frozenset()


def _held_by_others(names: frozenset[str]) -> set[str]:
    """Return those of ``names`` that processes outside of this one's tree have open or mapped."""
    me = psutil.Process()
    own = {me.pid, *(child.pid for child in me.children(recursive=True))}
    paths = {str(SHARED_MEMORY / name): name for name in names}
    held = set()
    for pid in set(psutil.pids()) - own:
        with suppress(OSError):  # it has ended
            mapped = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            held |= {name for path, name in paths.items() if path in mapped}
            for link in os.scandir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    held |= {paths[path] for path in (os.readlink(link.path),) if path in paths}
    return held
