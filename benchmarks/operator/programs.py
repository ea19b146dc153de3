"""Builds the operators that RLJob is compared with, once, into the cache of the test cluster's programs."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from cluster_harness.binaries import cache_folder, say
from cluster_harness.toolchain import build, go_program

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Edit:
    """A change of a module's source, made while it is built; the module itself stays as it is."""

    module: str
    file: str
    replacements: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Peer:
    """An operator that is built from a Go module."""

    name: str
    """Folder with its ``go.mod`` and ``go.sum``, and name of the program."""
    module: str
    package: str
    """Go package of its main."""
    crds: str
    """Where the module has its custom resource definitions."""
    edits: tuple[Edit, ...] = field(default=())

    @property
    def folder(self) -> Path:
        """The folder with its ``go.mod``."""
        return HERE / self.name


KUBERAY = Peer(
    name="kuberay",
    module="github.com/ray-project/kuberay/ray-operator",
    package="github.com/ray-project/kuberay/ray-operator",
    crds="config/crd/bases",
)
TRAINING_OPERATOR = Peer(
    name="training_operator",
    module="github.com/kubeflow/training-operator",
    package="github.com/kubeflow/training-operator/cmd/training-operator.v1",
    crds="manifests/base/crds/kubeflow.org_pytorchjobs.yaml",
    edits=(
        # No flag raises the limit of its client, by which alone 300 jobs take two minutes.
        Edit(
            "sigs.k8s.io/controller-runtime",
            "pkg/client/config/config.go",
            (("cfg.QPS = 20.0", "cfg.QPS = 1000.0"), ("cfg.Burst = 30", "cfg.Burst = 2000")),
        ),
        # Nor does one move the folder of its webhook's certificate: this one lies in the folder that it runs in.
        Edit(
            "github.com/kubeflow/training-operator",
            "pkg/cert/cert.go",
            (('"/tmp/k8s-webhook-server/serving-certs"', '"k8s-webhook-server/serving-certs"'),),
        ),
    ),
)


def program(peer: Peer) -> Path:
    """Return the operator's program; it is built first if need be, some minutes the first time.

    Raises:
        ClusterError: Go fails.
        Unavailable: there is no Go, and none can be installed.
    """
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(repr(peer).encode())
    for name in ("go.mod", "go.sum"):
        digest.update((peer.folder / name).read_bytes())
    target = cache / f"{peer.name}-{digest.hexdigest()[:12]}" / peer.name
    if not target.exists():
        say(f"building {peer.name} into {target.parent}")
        started = time.monotonic()
        go = go_program(cache)
        target.parent.mkdir(exist_ok=True)
        flags = ["-ldflags", "-s -w", *_edited(go, peer, target.parent)]
        build(go, peer.folder, peer.package, target, flags=flags, environment={})
        say(f"built {peer.name} in {time.monotonic() - started:.0f} s")
    return target


def crds(peer: Peer) -> Path:
    """Return the file or folder with the operator's custom resource definitions."""
    return _module_folder(go_program(cache_folder()), peer, peer.module) / peer.crds


def _edited(go: Path, peer: Peer, folder: Path) -> list[str]:
    """Copy the modules that are to be changed, change them, and return the flag by which Go takes the copies."""
    if not peer.edits:
        return []
    requirements = [(peer.folder / "go.mod").read_text()]
    for edit in peer.edits:
        copy = folder / edit.module.replace("/", "-")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(_module_folder(go, peer, edit.module), copy, copy_function=shutil.copyfile)
        for path in (copy, *(copy.rglob("*"))):
            path.chmod(path.stat().st_mode | stat.S_IWUSR)  # Go keeps its modules without
        file = copy / edit.file
        text = file.read_text()
        for old, new in edit.replacements:
            if text.count(old) != 1:
                raise RuntimeError(f"{file} doesn't hold {old!r} once")
            text = text.replace(old, new)
        file.write_text(text)
        requirements.append(f"replace {edit.module} => {copy}\n")
    path = folder / "go.mod"
    path.write_text("\n".join(requirements))
    shutil.copyfile(peer.folder / "go.sum", path.with_suffix(".sum"))
    return [f"-modfile={path}"]


def _module_folder(go: Path, peer: Peer, module: str) -> Path:
    environment = {**os.environ, "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
    for command in (["mod", "download", module], ["list", "-m", "-f", "{{.Dir}}", module]):
        done = subprocess.run(
            [go, *command], cwd=peer.folder, env=environment, capture_output=True, text=True, check=True
        )
    return Path(done.stdout.strip())
