"""Helm as tests use it: the chart of this repository, rendered, and installed into a test's cluster."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from cluster_harness import binaries
from cluster_harness.errors import ClusterError

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "rljob"
NAMESPACE = "rljob-system"
KubeObject = dict[str, Any]


class Helm:
    """The program, with its own folders below ``home``: nothing of the user's is read or written.

    Args:
        kubeconfig: of the cluster; None: it is asked to render only.
    """

    def __init__(self, home: Path, kubeconfig: Path | None = None) -> None:
        self._program = binaries.find(["helm"])["helm"]
        folders = {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        given = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
        self._environment = {**given, **folders, "KUBECONFIG": str(kubeconfig or home / "none")}

    def run(self, *arguments: str | Path, check: bool | None = True, timeout_s: float = 60.0) -> str:
        """Run it and return what it printed, errors included.

        Raises:
            ClusterError: it failed, with its words; with ``check`` False only when it did not, with None never.
        """
        done = subprocess.run(
            [self._program, *map(str, arguments)],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        printed = done.stdout + done.stderr
        if check is not None and bool(done.returncode) is check:
            words = " ".join(str(argument) for argument in arguments)
            raise ClusterError(f"helm {words} ended with {done.returncode}: {printed.strip()}")
        return printed

    def template(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        files: Sequence[Path] = (),
        chart: Path = CHART,
        release: str = "rljob",
        namespace: str = NAMESPACE,
    ) -> list[KubeObject]:
        """Return the objects that the chart becomes, hooks of `helm test` included; raises like ``run``.

        Args:
            values: by their dotted paths.
        """
        printed = self.run("template", release, chart, "--namespace", namespace, *options(values, files))
        return read(printed)

    def refusal(self, values: Mapping[str, Any], *, chart: Path = CHART) -> str:
        """Return the words with which these values are refused; raises where they are taken."""
        return self.run("template", "rljob", chart, "--namespace", NAMESPACE, *options(values), check=False)


def read(text: str) -> list[KubeObject]:
    """Return the objects in a text."""
    return [item for item in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if item]


def options(values: Mapping[str, Any] | None = None, files: Sequence[Path] = ()) -> list[str]:
    """Return options that set values by their dotted paths, after those of files."""
    given = [option for file in files for option in ("--values", str(file))]
    for path, value in (values or {}).items():
        given += ["--set-json", f"{path}={json.dumps(value)}"]
    return given


def named(objects: Sequence[KubeObject]) -> list[str]:
    """Return objects as ``Kind name``, sorted, with the namespace where it isn't the release's."""
    words = []
    for item in objects:
        about = item["metadata"]
        elsewhere = about.get("namespace", NAMESPACE) != NAMESPACE
        words.append(f"{item['kind']} {about['namespace'] + '/' if elsewhere else ''}{about['name']}")
    return sorted(words)


def one(objects: Sequence[KubeObject], kind: str, name: str = "") -> KubeObject:
    """Return the one object of a kind, of this name if one is given."""
    found = [item for item in objects if item["kind"] == kind and name in ("", item["metadata"]["name"])]
    assert len(found) == 1, (kind, name, named(objects))
    return found[0]


def tool(name: str) -> ModuleType:
    """Return a program of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # data classes look for their module there
    spec.loader.exec_module(module)
    return module
