"""Pods without a cluster: `rljob role TYPE` as a process, with the variables and files that it would get."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlruntime.spec.contract import PodIdentity, SharedSpec, TerminationMessage, TrainerReport
from rlruntime.spec.loader import parse_manifest

UID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
WAIT_S = 120.0
"""Most seconds that a test waits for anything."""


class Pod:
    """One process that does the work of a pod."""

    def __init__(self, process: subprocess.Popen[str], port: int, last_words: Path, log: Path) -> None:
        self.process, self.port, self._last_words, self._log = process, port, last_words, log

    def send(self, signum: int) -> None:
        """Send a signal."""
        self.process.send_signal(signum)

    def wait(self) -> int:
        """Return the exit code, once it has ended."""
        return self.process.wait(WAIT_S)

    @property
    def message(self) -> TerminationMessage:
        """The last message."""
        text = self._last_words.read_text(encoding="utf-8")
        assert len(text.encode()) <= 4096
        found = TerminationMessage.from_text(text)
        assert found is not None, text
        return found

    @property
    def has_message(self) -> bool:
        """Whether there is a last message."""
        return self._last_words.exists()

    @property
    def log(self) -> str:
        """Everything that it has written on standard output and error."""
        return self._log.read_text()

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of an answer of its port; (0, '') where it doesn't answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def report(self) -> TrainerReport | None:
        """Return what ``/status`` says, or None."""
        status, body = self.get("/status")
        return TrainerReport.from_text(body) if status == 200 else None

    def wait_until(self, condition: Callable[[], Any]) -> Any:
        """Return what ``condition`` returns once that is true; fail when the process ends or time is up before."""
        until_s = time.monotonic() + WAIT_S
        while not (found := condition()):
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.log[-3000:]}"
            assert time.monotonic() < until_s, f"waited in vain: {self.log[-3000:]}"
            time.sleep(0.02)
        return found

    def wait_for_frames(self, frames: int) -> TrainerReport:
        """Wait until it says that it has collected so many frames."""

        def enough() -> TrainerReport | None:
            report = self.report()
            return report if report is not None and (report.frames or 0) >= frames else None

        found = self.wait_until(enough)
        assert isinstance(found, TrainerReport)
        return found

    def wait_for_checkpoint(self, frames: int) -> int:
        """Wait until it says that it has written a checkpoint of at least so many frames; return of how many."""

        def saved() -> int | None:
            report = self.report()
            checkpoint = None if report is None else report.checkpoint
            return None if checkpoint is None or (checkpoint.frames or 0) < frames else checkpoint.frames

        return int(self.wait_until(saved))


class Pods:
    """The pods of one job that a test starts, and the folder that is its storage; `stop` ends those that still run."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any], *, code: Path | None = None) -> None:
        self.folder, self.storage, self.code = folder, folder / "storage", code
        self.name = str(manifest["metadata"]["name"])
        self.shared = SharedSpec.of(parse_manifest(dict(manifest), "test").spec)
        self.job = self.storage / f"{self.name}-{UID}"
        self.storage.mkdir(exist_ok=True)
        self._started: list[Pod] = []

    def attempt(self, number: int) -> Path:
        """Return the run folder of an attempt."""
        return self.job / "attempts" / str(number)

    def start(
        self, attempt: int = 0, *, role_type: str = "trainer", variables: Mapping[str, str] | None = None,
        options: tuple[str, ...] = (), **identity: Any,
    ) -> Pod:  # fmt: skip
        """Start the pod of an attempt.

        Args:
            variables: take the place of those that the identity gives; an empty one is left out.
            options: of the command.
            identity: fields that differ from those of the job's trainer.
        """
        number, port = len(self._started), free_port()
        place = self.folder / f"pod-{number}"
        (place / "config/spec").mkdir(parents=True)
        spec = json.loads(self.shared.to_text())
        (place / "config/spec/spec.json").write_text(json.dumps({**spec, "metrics": {"port": port}}))
        fields: dict[str, Any] = {
            "name": self.name, "namespace": "team-a", "uid": UID, "role": "trainer", "index": 0, "attempt": attempt,
            "round": attempt, "service": f"{self.name}-1b4e28ba", **identity,
        }  # fmt: skip
        environment = {**os.environ, **PodIdentity(**fields).to_variables(), **(variables or {})}
        if self.code is not None:
            environment["PYTHONPATH"] = str(self.code)
        last_words, log = place / "termination-log", place / "log"
        command = [sys.executable, "-m", "rlruntime.cli.main", "role", role_type]
        command += ["--config-dir", f"{place / 'config'}", "--storage-dir", f"{self.storage}"]
        command += ["--termination-file", f"{last_words}", *options]
        with open(log, "w") as file:
            process = subprocess.Popen(
                command,
                env={name: value for name, value in environment.items() if value},
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=place,
            )
        pod = Pod(process, port, last_words, log)
        self._started.append(pod)
        return pod

    def stop(self) -> None:
        """End all that still run."""
        for pod in self._started:
            if pod.process.poll() is None:
                pod.send(signal.SIGKILL)
                pod.send(signal.SIGCONT)
            pod.process.wait(10)


def free_port() -> int:
    """Return a TCP port that was free a moment ago."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
