"""A Prometheus that scrapes what a test runs, as the Prometheus operator would have it: by monitors and relabelings."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from cluster_harness import binaries
from cluster_harness.cluster import wait_for
from cluster_harness.errors import ClusterError
from cluster_harness.processes import Guard
from cluster_harness.reservations import Reservations

RELABELINGS = Path(__file__).resolve().parents[3] / "charts" / "rljob" / "files" / "podmonitor-relabelings.yaml"
JOB_LABEL = "rljob_io_job_name"
_START_DEADLINE_S = 60.0
_SNAKE = re.compile(r"(?<=[a-z])(?=[A-Z])")


def service_scrape(address: str, namespace: str) -> dict[str, Any]:
    """Return the scrape of the operator, as of a ServiceMonitor with ``honorLabels: true``.

    Args:
        address: host and port.
        namespace: of the operator.
    """
    labels = {"namespace": namespace, "service": "rljob-operator", "endpoint": "metrics"}
    return {
        "job_name": f"serviceMonitor/{namespace}/rljob-operator/0",
        "honor_labels": True,
        "static_configs": [{"targets": [address], "labels": labels}],
        "relabel_configs": [{"target_label": "job", "replacement": "rljob-operator"}],
    }


def pod_scrape(kubeconfig: Path, *, port_name: str = "metrics") -> dict[str, Any]:
    """Return the scrape of the pods of all jobs, as of our PodMonitor, with the relabelings of the chart.

    Args:
        kubeconfig: of a user who may watch pods.
    """
    source = "__meta_kubernetes_pod"
    return {
        "job_name": "podMonitor/rljob-system/rljob-pods/0",
        "kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": str(kubeconfig)}],
        "relabel_configs": [
            {"action": "drop", "source_labels": [f"{source}_phase"], "regex": "(Failed|Succeeded)"},
            {"action": "keep", "source_labels": [f"{source}_labelpresent_{JOB_LABEL}"], "regex": "true"},
            {"action": "keep", "source_labels": [f"{source}_container_port_name"], "regex": port_name},
            {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
            {"source_labels": [f"{source}_container_name"], "target_label": "container"},
            {"source_labels": [f"{source}_name"], "target_label": "pod"},
            {"target_label": "job", "replacement": "rljob-system/rljob-pods"},
            {"target_label": "endpoint", "replacement": port_name},
            *chart_relabelings(),
        ],
    }


def chart_relabelings() -> list[dict[str, Any]]:
    """Return what the chart's PodMonitor does with labels, in Prometheus' own words."""
    items = yaml.safe_load(RELABELINGS.read_text())
    return [{_SNAKE.sub("_", key).lower(): value for key, value in item.items()} for item in items]


class PrometheusServer:
    """Prometheus, from ``__enter__`` to ``__exit__``.

    Args:
        scrapes: what `service_scrape` and `pod_scrape` return.
        rules: a document of rules.
        interval_s: between two scrapes, and between two looks at the rules.
    """

    def __init__(
        self, scrapes: Sequence[dict[str, Any]], *, rules: dict[str, Any] | None = None, interval_s: int = 1
    ) -> None:
        self._program = binaries.find(["prometheus"])["prometheus"]
        self._guard, self._reservations = Guard(), Reservations()
        interval = {"scrape_interval": f"{interval_s}s", "evaluation_interval": f"{interval_s}s"}
        config = {"global": {**interval, "scrape_timeout": f"{interval_s}s"}, "scrape_configs": list(scrapes)}
        if rules is not None:
            (self._guard.folder / "rules.yaml").write_text(yaml.safe_dump(rules))
            config["rule_files"] = ["rules.yaml"]
        (self._guard.folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self.url = f"http://127.0.0.1:{self._reservations.port()}"

    def __enter__(self) -> Self:
        folder = self._guard.folder
        try:
            process = self._guard.start(
                "prometheus",
                [
                    self._program,
                    f"--config.file={folder / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
            )

            def ready() -> bool:
                if process.returncode is not None:
                    raise ClusterError(f"Prometheus ended with {process.returncode}: {process.log_tail()}")
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                    return bool(answer.status == 200)

            wait_for("Prometheus is ready", ready, deadline_s=_START_DEADLINE_S, describe=process.log_tail)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it and remove what it stored; may be called twice."""
        try:
            self._guard.close()
        finally:
            self._reservations.close()


def promtool(*arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool and return what it printed, however it ended."""
    program = binaries.find(["promtool"])["promtool"]
    return subprocess.run([program, *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=60)


def failed_rule_tests(folder: Path, *tests: dict[str, Any], rules: Sequence[Path] = ()) -> str:
    """Run `promtool test rules`, written into ``folder``, and return what it says; empty where all pass."""
    document = {"rule_files": [str(path) for path in rules], "evaluation_interval": "1m", "tests": list(tests)}
    path = folder / "tests.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    done = promtool("test", "rules", path)
    return "" if done.returncode == 0 else done.stdout + done.stderr
