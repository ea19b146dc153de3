"""Processes that end with their owner: the owner's side of the guard."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from cluster_harness.errors import ClusterError
from cluster_harness.leftovers import Traces

_SUPPORT = Path(__file__).resolve().parents[1]
_ANSWER_DEADLINE_S = 60.0


class Process:
    """One process of a cluster; it ends with its guard."""

    def __init__(self, guard: Guard, name: str, pid: int, log: Path) -> None:
        self._guard = guard
        self.name, self.pid, self.log = name, pid, log

    @property
    def returncode(self) -> int | None:
        """How it ended, negative for a signal; None while it runs."""
        return self._guard.ask({"do": "poll", "pid": self.pid})["returncode"]  # type: ignore[no-any-return]

    def send(self, number: signal.Signals) -> None:
        """Send a signal; SIGSTOP pauses it, SIGCONT lets it go on."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end(self, number: signal.Signals = signal.SIGKILL, deadline_s: float = 30.0) -> int:
        """Send a signal, wait until the process has ended, and return how.

        Raises:
            ClusterError: it still runs after the deadline.
        """
        self.send(number)
        ends = time.monotonic() + deadline_s
        while time.monotonic() < ends:
            code = self.returncode
            if code is not None:
                return code
            time.sleep(0.005)
        raise ClusterError(f"{self.name} still runs {deadline_s:.0f} s after {number.name}")

    def log_tail(self, lines: int = 15) -> str:
        """Return the end of its log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""


class Guard:
    """Starts processes, and ends all of them with whatever they left when it is closed or this process dies.

    Args:
        cgroup: name of a cgroup that its processes will use, removed at the end.
        bridge: name of a network bridge that will be made, removed at the end.
    """

    def __init__(self, *, cgroup: str = "", bridge: str = "") -> None:
        # Sockets lie in the folder, and their paths may be no longer than 107 bytes: hence not below pytest's folders.
        self.folder = Path(tempfile.mkdtemp(prefix="rljob-cluster-"))
        self.traces = Traces(str(self.folder), cgroup, bridge)
        self._lock = threading.Lock()
        program = f"import sys; sys.path.insert(0, {str(_SUPPORT)!r}); from cluster_harness.guard import main; main()"
        # -S: no site-packages are needed, and coverage is not to start in it.
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
        self.ask({"do": "remove", "traces": dataclasses.asdict(self.traces)})

    def isolate(self, folders: dict[str, Path]) -> None:
        """Give the processes that are started from now on mounts of their own, which no other process sees.

        Args:
            folders: for each path where they insist to write, the folder that stands there for them.
        """
        self.ask({"do": "isolate", "folders": {path: str(source) for path, source in folders.items()}})

    def start(self, name: str, argv: list[str | Path], *, env: dict[str, str] | None = None) -> Process:
        """Start a process in the guard's folder; what it prints goes to ``<folder>/<name>.log``.

        Args:
            env: variables beside this process's own.

        Raises:
            ClusterError: it can't be started.
        """
        log = self.folder / f"{name}.log"
        request = {
            "do": "start",
            "argv": [str(part) for part in argv],
            "log": str(log),
            "cwd": str(self.folder),
            "env": {**os.environ, **(env or {})},
        }
        return Process(self, name, int(self.ask(request)["pid"]), log)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request to the guard and return its answer.

        Raises:
            ClusterError: the guard has gone, or says what it couldn't do.
        """
        with self._lock:
            if self._process.stdin is None or self._process.stdin.closed or self._process.stdout is None:
                raise ClusterError("the cluster has been stopped")
            try:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except OSError as error:
                raise ClusterError(f"the guard of the cluster has gone: {error}") from None
        if not line:
            raise ClusterError("the guard of the cluster has gone")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ClusterError(answer["error"])
        return answer

    def close(self) -> None:
        """End every process and remove what they left; may be called twice.

        Raises:
            ClusterError: the guard doesn't end, or something is left.
        """
        with self._lock:
            if self._process.stdin is None or self._process.stdin.closed:
                return
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            try:
                self._process.wait(_ANSWER_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        left = self.traces.found()
        if left:
            raise ClusterError("left behind: " + "; ".join(left))
