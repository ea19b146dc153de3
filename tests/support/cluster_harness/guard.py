"""The process that starts the processes of a cluster, and ends them.

It is told what to do by lines of JSON on its standard input, and answers each by one line. When that input ends, which
it does when the owner dies by whatever signal, it kills all its descendants (daemons that left their parent included)
and removes what they left. It is one thread, so that its children may ask the kernel to be killed with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cluster_harness.leftovers import Traces

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_SHARED = 0x1000, 0x4000, 0x40000, 0x100000
_MNT_DETACH = 2
_LIBC = ctypes.CDLL(None, use_errno=True)
_KILL_DEADLINE_S = 30.0
_PAUSE_S = 0.5


class Guard:
    """State of the guard: its children, how they ended, and what is to be removed at the end."""

    def __init__(self) -> None:
        self._owner = os.getppid()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._ended: dict[int, int] = {}
        self._traces: list[Traces] = []
        self._made: list[str] = []

    def serve(self) -> None:
        """Obey until the input ends or the owner has gone, then end everything."""
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        pending = b""
        try:
            while os.getppid() == self._owner:
                self._reap()
                if not select.select([0], [], [], _PAUSE_S)[0]:
                    continue
                received = os.read(0, 1 << 20)
                if not received:
                    break
                *lines, pending = (pending + received).split(b"\n")
                for line in lines:
                    answer = self._obey(json.loads(line))
                    os.write(1, json.dumps(answer).encode() + b"\n")
        finally:
            self._end()

    def _obey(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            if request["do"] == "start":
                return {"pid": self._start(request["argv"], request["log"], request["cwd"], request["env"])}
            if request["do"] == "poll":
                self._reap()
                return {"returncode": self._ended.get(request["pid"])}
            if request["do"] == "isolate":
                self._isolate(request["folders"])
                return {}
            if request["do"] == "remove":
                self._traces.append(Traces(**request["traces"]))
                return {}
            return {"error": f"unknown request {request['do']!r}"}
        except OSError as error:
            return {"error": str(error)}

    def _start(self, argv: list[str], log: str, cwd: str, env: dict[str, str]) -> int:
        with open(log, "ab") as output:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                env=env,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - the guard has one thread
            )
        self._children[child.pid] = child
        return child.pid

    def _isolate(self, folders: dict[str, str]) -> None:
        """Take mounts of our own: what is mounted from now on is seen by our children alone and goes with them.

        ``folders`` gives for a path, where programs insist to write, the folder that stands there for our children.
        """
        _call(_LIBC.unshare(_CLONE_NEWNS), "unshare")
        _call(_LIBC.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount /")
        for path, source in folders.items():
            if not os.path.isdir(path):
                os.makedirs(path)
                self._made.append(path)
            _call(_LIBC.mount(os.fsencode(source), os.fsencode(path), None, _MS_BIND | _MS_REC, None), f"mount {path}")
        # Volumes that a pod mounts are to reach its containers, as on a machine whose root is shared.
        _call(_LIBC.mount(b"none", b"/", None, _MS_REC | _MS_SHARED, None), "mount /")

    def _reap(self) -> None:
        """Collect whoever ended; orphans of our children are ours too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is not None:
                child.returncode = self._ended[pid] = os.waitstatus_to_exitcode(status)

    def _end(self) -> None:
        ends = time.monotonic() + _KILL_DEADLINE_S
        while time.monotonic() < ends:
            self._reap()
            pids = _descendants(os.getpid())
            if not pids:
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for traces in reversed(self._traces):
            traces.remove()
        for path in reversed(self._made):
            _LIBC.umount2(os.fsencode(path), _MNT_DETACH)
            with contextlib.suppress(OSError):
                os.rmdir(path)


def _call(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _descendants(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *_descendants(int(child))]
    return found


def main() -> None:
    """Serve; Ctrl-C and SIGTERM are the owner's business, whose end is ours."""
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    Guard().serve()
    sys.exit(0)
