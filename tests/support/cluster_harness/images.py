"""Container images for a test node, written by hand: neither a registry nor docker is needed.

The images of RLJob are skeletons, folders and a few files. What runs in their containers is this machine's own Python
with the packages of the tests: a node mounts those folders, read-only, into every container (see ``host_folders``).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PAUSE = "localhost/pause:1"
"""Holds the namespaces of a pod."""
RUNTIME = "localhost/rlruntime:dev"
"""For the pods of a job: `rljob`, Python and all packages of this environment."""
OPERATOR = "localhost/rljob-operator:dev"
"""For the operator: the same under another name."""
USER_ID = 10001
"""User and group of the containers, as in the images that are shipped."""

_REPOSITORY = Path(__file__).resolve().parents[3]
_ELSEWHERE = Path("/host")
"""In a container, what would lie below one of its pod's own volumes."""
_VOLUMES = ("/tmp", "/dev/shm", "/etc/rljob", "/opt/rljob", "/var/lib/rljob")
_FOLDERS = ("dev", "etc", "home", "opt", "proc", "run", "sys", "tmp", "usr", "var", "var/lib", "host", "host/bin")
_SYSTEM = ("bin", "lib", "lib64", "sbin")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def host_folders() -> dict[Path, Path]:
    """Return the folders of this machine that containers see, and where: its Python runs in them with all it needs.

    A folder is mounted at its own path. That makes it readable in the container even where its parents are not on this
    machine, such as an interpreter in the home of root; its own files must be readable to all. Where a pod has a volume
    of its own there, such as /tmp, it would be hidden, and is mounted below `_ELSEWHERE`.
    """
    folders = [Path("/usr")]
    folders += [path for name in _SYSTEM if (path := Path("/", name)).is_dir() and not path.is_symlink()]
    for path in (Path(sys.base_prefix), Path(sys.prefix), _REPOSITORY):
        resolved = path.resolve()
        if not any(resolved.is_relative_to(folder) for folder in folders):
            folders.append(resolved)
    return {folder: seen_at(folder) for folder in folders}


def seen_at(path: Path) -> Path:
    """Return where containers see a path of this machine."""
    hidden = any(path.is_relative_to(volume) for volume in _VOLUMES)
    return _ELSEWHERE / path.relative_to("/") if hidden else path


def commands() -> dict[str, bytes]:
    """Return, by name, programs for a container that sees the environment elsewhere: its own name their old place."""
    environment, repository = Path(sys.prefix).resolve(), _REPOSITORY.resolve()
    if seen_at(environment) == environment and seen_at(repository) == repository:
        return {}
    modules = {"rljob": "-m rlruntime.cli.main ", "rljob-operator": "-m rljob_operator.cli ", "python": ""}
    here = seen_at(repository)
    return {
        name: (
            "#!/bin/sh\n"
            f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{here}:{here}/operator"\n'
            f'exec {seen_at(environment)}/bin/python {arguments}"$@"\n'
        ).encode()
        for name, arguments in modules.items()
    }


def write_images(folder: Path, pause: Path) -> list[Path]:
    """Write the images as archives that containerd loads, and return their paths.

    Args:
        pause: a static program that waits for SIGTERM.
    """
    archives = [folder / "pause.tar", folder / "rljob.tar"]
    _write_archive(archives[0], [PAUSE], files={"pause": pause.read_bytes()}, config={"Entrypoint": ["/pause"]})
    accounts = {
        "etc/passwd": f"root:x:0:0:root:/root:/bin/sh\nrljob:x:{USER_ID}:{USER_ID}:rljob:/tmp:/bin/sh\n".encode(),
        "etc/group": f"root:x:0:\nrljob:x:{USER_ID}:\n".encode(),
    }
    mounted = [str(path).lstrip("/") for path in host_folders().values()]
    programs = {f"{_ELSEWHERE}/bin/{name}".lstrip("/"): text for name, text in commands().items()}
    links = {name: os.readlink(f"/{name}") for name in _SYSTEM if os.path.islink(f"/{name}")}
    path = ":".join([f"{_ELSEWHERE}/bin", f"{sys.prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin"])
    config = {"Env": [f"PATH={path}", "HOME=/tmp"], "User": f"{USER_ID}:{USER_ID}", "WorkingDir": "/"}
    _write_archive(
        archives[1],
        [RUNTIME, OPERATOR],
        files={**accounts, **programs},
        folders=[*_FOLDERS, *mounted],
        links=links,
        config=config,
    )
    return archives


def _write_archive(
    path: Path,
    names: Sequence[str],
    *,
    files: Mapping[str, bytes],
    config: Mapping[str, object],
    folders: Sequence[str] = (),
    links: Mapping[str, str] | None = None,
) -> None:
    """Write an image of one layer as ``docker save`` does: a description, its layer, and a list of both."""
    layer = _layer(files, folders, links or {})
    digest = hashlib.sha256(layer).hexdigest()
    description = {
        "architecture": _MACHINES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    described = json.dumps(description, sort_keys=True).encode()
    described_name = f"{hashlib.sha256(described).hexdigest()}.json"
    manifest = [{"Config": described_name, "RepoTags": list(names), "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        _add_file(tar, described_name, described)
        _add_file(tar, f"{digest}/layer.tar", layer)
        _add_file(tar, "manifest.json", json.dumps(manifest).encode())


def _layer(files: Mapping[str, bytes], folders: Sequence[str], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        parents = {str(parent) for name in folders for parent in Path(name).parents} - {"."}
        for name in sorted(parents.union(folders)):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(info)
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
        for name, content in files.items():
            _add_file(tar, name, content)
    return buffer.getvalue()


def _add_file(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o755
    tar.addfile(info, io.BytesIO(content))
