"""The commands about jobs on a real API server: in a pipe, in a terminal of 80 columns, as several users."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_harness.cluster import Cluster
from operator_place import JOBS, job_document

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PROGRESS = {
    "percent": 40, "frames": 40448, "totalFrames": 100000, "reward": 288.1, "framesPerSecond": 11216.5,
    "updateTime": "2100-01-01T00:00:00Z",
}  # fmt: skip


def say(cluster: Cluster, namespace: str, name: str, **status: Any) -> None:
    """Write what an operator would into a job's status."""
    cluster.api.patch(f"{JOBS.format(namespace)}/{name}/status", {"status": status})


def rljob(*arguments: str, kubeconfig: Path, program: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run `rljob` as a user of this kubeconfig."""
    command = [*(program or (sys.executable, "-m", "rlruntime.cli.main")), *arguments]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def jobs(cluster: Cluster, namespace: str) -> str:
    """A namespace with three jobs, in three phases."""
    for name in ("ppo-cartpole", "sac-late", "new"):
        cluster.api.create(JOBS.format(namespace), job_document(name))
    say(cluster, namespace, "ppo-cartpole", phase="Running", progress=PROGRESS, restarts={"disruptions": 2})
    say(cluster, namespace, "sac-late", phase="Failed", reason="DeadlineExceeded", message="too late")
    return namespace


def test_a_pipe_gets_plain_columns(cluster: Cluster, jobs: str) -> None:
    done = rljob("top", "-n", jobs, "--sort", "name", kubeconfig=cluster.kubeconfig)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert [line.split()[:10] for line in done.stdout.splitlines()] == [
        ["NAMESPACE", "NAME", "PHASE", "REASON", "PERCENT", "FRAMES", "TOTAL", "REWARD", "FPS", "RESTARTS"],
        [jobs, "new", "-", "-", "-", "-", "-", "-", "-", "0"],
        [jobs, "ppo-cartpole", "Running", "-", "40", "40448", "100000", "288.1", "11216.5", "2"],
        [jobs, "sac-late", "Failed", "DeadlineExceeded", "-", "-", "-", "-", "-", "0"],
    ]
    everywhere = rljob("top", "-A", kubeconfig=cluster.kubeconfig)
    assert f"{jobs}   ppo-cartpole" in everywhere.stdout


class Terminal:
    """A command on a pseudo-terminal, and what it has written there."""

    def __init__(self, *arguments: str, kubeconfig: Path, columns: int, lines: int = 24) -> None:
        self.master, slave = pty.openpty()
        self.slave = os.dup(slave)
        self.resize(columns, lines)
        self.before = termios.tcgetattr(slave)
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        environment |= {"KUBECONFIG": str(kubeconfig), "TERM": "xterm-256color"}
        command = [sys.executable, "-m", "rlruntime.cli.main", *arguments]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.text = ""

    def resize(self, columns: int, lines: int = 24) -> None:
        """Change the size of the terminal."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait(self, holds: Callable[[str], object], what: str, deadline_s: float = 60.0) -> None:
        """Read until what was written since the last call of `forget` is as it should be."""
        until_s = time.monotonic() + deadline_s
        while not holds(self.text):
            assert time.monotonic() < until_s, f"{what}: {self.text}"
            self._read(0.2)

    def forget(self) -> None:
        """Look only at what is written from now on."""
        self.text = ""

    def end(self, number: int) -> int:
        """Send a signal, read the rest, and return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(20)
        self._read(0.2)
        return code

    def close(self) -> None:
        """Leave nothing."""
        self.process.kill()
        self.process.wait(20)
        os.close(self.slave)
        os.close(self.master)

    def _read(self, timeout_s: float) -> None:
        while select.select([self.master], [], [], timeout_s)[0]:
            self.text += os.read(self.master, 65536).decode()
            timeout_s = 0.0


def rows(text: str) -> list[str]:
    """Return the lines that were written, without what moves the cursor or colours."""
    return re.split(r"[\r\n]+", ESCAPE.sub("", text))


def test_a_terminal_of_eighty_columns_follows_the_jobs_and_is_left_as_it_was(cluster: Cluster, jobs: str) -> None:
    terminal = Terminal("top", "-n", jobs, kubeconfig=cluster.kubeconfig, columns=80)
    try:
        terminal.wait(lambda text: "40%" in text and "sac-late" in text, "the jobs are shown")
        terminal.forget()
        say(cluster, jobs, "ppo-cartpole", progress={**PROGRESS, "percent": 41})
        terminal.wait(lambda text: "41%" in text, "the change is shown")
        cluster.api.delete(f"{JOBS.format(jobs)}/sac-late")
        terminal.forget()
        terminal.wait(lambda text: "2 jobs, 1 Running, 1 not seen yet" in text, "the deletion is shown")
        assert max(len(row) for row in rows(terminal.text)) <= 80
        terminal.resize(40)
        terminal.wait(lambda text: "2 jobs, 1 R" in text.rpartition("\x1b[2J")[2], "it is painted anew")
        terminal.forget()
        terminal.wait(lambda text: text.count("ppo-cartpole") >= 2, "the narrow table")
        assert max(len(row) for row in rows(terminal.text)) <= 40
        assert terminal.end(signal.SIGINT) == 130
        assert termios.tcgetattr(terminal.slave) == terminal.before
        assert "\x1b[?1049h" not in terminal.text, "a screen of its own"
        assert terminal.text.rfind("\x1b[?25h") >= terminal.text.rfind("\x1b[?25l"), "the cursor stays hidden"
        assert "Traceback" not in terminal.text
        assert terminal.text.endswith("\n") or terminal.text.endswith("\x1b[?25h")
    finally:
        terminal.close()


def test_a_quiet_table_asks_the_server_for_one_list_and_one_watch(cluster: Cluster, jobs: str) -> None:
    # The server counts what it is asked; other tests of this process use other resources or one request at a time.
    before = asked(cluster)
    terminal = Terminal("top", "-n", jobs, kubeconfig=cluster.kubeconfig, columns=80)
    try:
        terminal.wait(lambda text: "ppo-cartpole" in text, "the jobs are shown")
        terminal.forget()
        terminal.wait(lambda text: text.count("3 jobs") >= 3, "it was painted three times more")
        terminal.end(signal.SIGTERM)
    finally:
        terminal.close()
    after = asked(cluster)
    assert after["LIST"] - before["LIST"] == 1
    assert after["WATCH"] - before["WATCH"] <= 1


def asked(cluster: Cluster) -> dict[str, int]:
    """Return how many lists and watches of jobs the server has answered, by verb."""
    found = {"LIST": 0, "WATCH": 0}
    for line in cluster.api.text("GET", "/metrics").splitlines():
        if line.startswith("apiserver_request_total{") and 'resource="rljobs"' in line:
            verb = re.search(r'verb="(\w+)"', line)
            if verb is not None and verb[1] in found:
                found[verb[1]] += int(float(line.rsplit(" ", 1)[1]))
    return found


def test_once_on_a_terminal_prints_bars_and_ends(cluster: Cluster, jobs: str) -> None:
    terminal = Terminal("top", "-n", jobs, "--once", kubeconfig=cluster.kubeconfig, columns=80)
    try:
        assert terminal.process.wait(30) == 0
        terminal.wait(lambda text: "sac-late" in text, "the table")
        assert "█" in terminal.text
        assert max(len(row) for row in rows(terminal.text)) <= 80
        assert "\x1b[?25l" not in terminal.text
    finally:
        terminal.close()


def test_suspend_and_resume_change_the_one_field(cluster: Cluster, jobs: str) -> None:
    done = rljob("suspend", "-n", jobs, "ppo-cartpole", "new", kubeconfig=cluster.kubeconfig)
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("ppo-cartpole", "new"):
        found = cluster.job(jobs, name)
        assert found is not None
        assert found["spec"]["runPolicy"]["suspend"] is True
    done = rljob("resume", "-n", jobs, "new", kubeconfig=cluster.kubeconfig)
    assert done.stdout == "new: resuming from the beginning: there is no checkpoint\n"
    done = rljob("suspend", "-n", jobs, "sac-late", kubeconfig=cluster.kubeconfig)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "rljob: error: sac-late has failed already: there is nothing to suspend\n"


def test_a_user_without_rights_gets_one_line(cluster: Cluster, jobs: str) -> None:
    nobody = cluster.service_account_kubeconfig(jobs, "nobody")
    for command in (["top"], ["logs", "ppo-cartpole"], ["suspend", "ppo-cartpole"]):
        done = rljob(*command, "-n", jobs, kubeconfig=nobody)
        assert done.returncode == 78, done
        assert "rljobs" in done.stderr
        assert "is forbidden" in done.stderr
        assert done.stderr.count("\n") == 1
    unknown = cluster.token_kubeconfig("unknown", "no-such-token")
    done = rljob("top", "-n", jobs, kubeconfig=unknown)
    assert done.returncode == 78
    assert "doesn't accept the credentials" in done.stderr


def test_a_job_that_is_not_there_is_named_with_its_neighbour(cluster: Cluster, jobs: str) -> None:
    done = rljob("logs", "ppo-cartpol", "-n", jobs, kubeconfig=cluster.kubeconfig)
    assert done.returncode == 78
    assert done.stderr == (
        f"rljob: error: there is no job of this name in the namespace {jobs} (got 'ppo-cartpol');"
        " did you mean 'ppo-cartpole'?\n"
    )


def test_kubectl_finds_its_plugin(cluster: Cluster, jobs: str) -> None:
    folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "KUBECONFIG": str(cluster.kubeconfig),
    }
    done = subprocess.run(
        [cluster.kubectl_program, "rlj", "top", "-n", jobs],
        env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "ppo-cartpole" in done.stdout
