"""Definitions of other projects' custom resources, as their Go modules carry them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from cluster_harness.binaries import cache_folder
from cluster_harness.errors import ClusterError
from cluster_harness.products import FOLDER
from cluster_harness.toolchain import go_program

_MODULE = "github.com/prometheus-operator/prometheus-operator"
_DEADLINE_S = 300


def monitoring_definitions(*plurals: str) -> list[Path]:
    """Return the files of the Prometheus operator's definitions of these resources, such as ``podmonitors``.

    Raises:
        Unavailable: there is no Go.
        ClusterError: the module can't be had.
    """
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [go_program(cache), "mod", "download", "-json", _MODULE],
        cwd=FOLDER / "prometheus-operator",
        env={**os.environ, "GOWORK": "off", "GOFLAGS": "-mod=readonly"},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    if done.returncode:
        raise ClusterError(f"{_MODULE} can't be had: {(done.stderr or done.stdout).strip()[-500:]}")
    folder = Path(json.loads(done.stdout)["Dir"]) / "example" / "prometheus-operator-crd"
    return [folder / f"monitoring.coreos.com_{plural}.yaml" for plural in plurals]
