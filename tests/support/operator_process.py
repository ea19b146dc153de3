"""The operator as a process, as it is deployed: `rljob-operator run` with its own account and the shipped rights."""

from __future__ import annotations

import re
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from cluster_harness.cluster import Cluster, wait_for
from cluster_harness.errors import ClusterError
from cluster_harness.processes import Guard, Process

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SYSTEM_NAMESPACE, ACCOUNT = "rljob-system", "rljob-operator"
USER = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{ACCOUNT}"
_PORT = re.compile(r"on port (\d+)")
_START_DEADLINE_S = 60.0


def account_for_all(cluster: Cluster) -> Path:
    """Apply the rights that are shipped for all namespaces; return the kubeconfig of the operator's account."""
    cluster.apply(DEPLOY / "rbac.yaml")
    return cluster.service_account_kubeconfig(SYSTEM_NAMESPACE, ACCOUNT)


def account_for_one(cluster: Cluster, namespace: str) -> Path:
    """Apply the rights that are shipped for one namespace; return the kubeconfig of the operator's account."""
    if cluster.kubectl("get", "namespace", SYSTEM_NAMESPACE, check=False).returncode:
        cluster.kubectl("create", "namespace", SYSTEM_NAMESPACE)
    cluster.apply(DEPLOY / "rbac-namespaced.yaml", namespace=namespace)
    return cluster.service_account_kubeconfig(SYSTEM_NAMESPACE, ACCOUNT)


class OperatorProcess:
    """`rljob-operator run`, from ``__enter__`` to ``__exit__``; what it logs is in `log`.

    Args:
        kubeconfig: of its account.
        arguments: options of `run`, such as ``--namespace NAME``.
    """

    def __init__(self, kubeconfig: Path, *arguments: str) -> None:
        self._kubeconfig, self._arguments = kubeconfig, arguments
        self._guard = Guard()
        self._process: Process | None = None
        self._starts = 0

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self._guard.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.close()

    @property
    def process(self) -> Process:
        """The process of now."""
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        """What it has logged since it was last started."""
        return self.process.log.read_text(errors="replace")

    @property
    def address(self) -> str:
        """Host and port of its metrics."""
        found = _PORT.search(self.log)
        if found is None:
            raise ClusterError("the operator doesn't serve yet")
        return f"127.0.0.1:{found[1]}"

    def start(self) -> None:
        """Start it, or start it anew."""
        self._starts += 1
        program = Path(sys.executable).with_name("rljob-operator")
        options: list[str | Path] = ["--kubeconfig", self._kubeconfig, "--metrics-port", "0", *self._arguments]
        self._process = self._guard.start(f"operator-{self._starts}", [program, "run", *options])

    def wait_ready(self) -> None:
        """Wait until it acts on jobs.

        Raises:
            ClusterError: it doesn't, or has ended.
        """

        def ready() -> bool:
            if self.process.returncode is not None:
                raise ClusterError(f"the operator ended with {self.process.returncode}: {self.log[-2000:]}")
            return self.get("/readyz")[0] == 200

        wait_for(
            "the operator is ready",
            ready,
            deadline_s=_START_DEADLINE_S,
            describe=lambda: self.log[-2000:],
        )

    def get(self, path: str) -> tuple[int, str]:
        """Return code and text that it answers with; 0 where it doesn't yet."""
        found = _PORT.search(self.log)
        if found is None:
            return 0, ""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        _, text = self.get("/metrics")
        lines = [line for line in text.splitlines() if re.match(rf"{name}[ {{]", line)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def kill(self) -> None:
        """Kill it where it stands."""
        self.process.end(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, and return its exit code."""
        return self.process.end(number, deadline_s=10.0)
