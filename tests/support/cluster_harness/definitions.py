"""Definitions of other projects' custom resources, as their Go modules carry them."""

from __future__ import annotations

from pathlib import Path

from cluster_harness.binaries import cache_folder
from cluster_harness.products import FOLDER
from cluster_harness.toolchain import go_program, module_folder

_PRODUCT = "prometheus-operator"


def monitoring_definitions(*plurals: str) -> list[Path]:
    """Return the files of the Prometheus operator's definitions of these resources, such as ``podmonitors``.

    Raises:
        Unavailable: there is no Go.
        ClusterError: the module can't be had.
    """
    module = f"github.com/prometheus-operator/{_PRODUCT}"
    folder = module_folder(go_program(cache_folder()), FOLDER / _PRODUCT, module) / "example" / f"{_PRODUCT}-crd"
    return [folder / f"monitoring.coreos.com_{plural}.yaml" for plural in plurals]
