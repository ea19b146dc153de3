"""The folder of one run: what it was told, what happened, what came of it.

``manifest.yaml`` (the effective manifest), ``metrics.jsonl``, ``curves.png``, ``result.json``, ``checkpoints/`` and
``policy/``. A kernel lock keeps a second process from training into it; the lock goes with the process that held it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from rlruntime.attempts import find_run
from rlruntime.errors import CheckpointError, ConfigError, StorageError
from rlruntime.metrics.json_values import finite
from rlruntime.trainers.durable import storage_errors, sync_folder, write_atomically
from rlruntime.trainers.fork import in_forked_children
from rlruntime.user_code import ORIGIN_FILE

MANIFEST_FILE = "manifest.yaml"
METRICS_FILE = "metrics.jsonl"
CURVES_FILE = "curves.png"
RESULT_FILE = "result.json"
CHECKPOINTS_FOLDER = "checkpoints"
POLICY_FOLDER = "policy"
LOCK_FILE = ".lock"

# What shows that a folder holds a run. A manifest alone may be a person's own.
_MARKS = (METRICS_FILE, RESULT_FILE, CHECKPOINTS_FOLDER, POLICY_FOLDER)
_MAX_NAME_TRIES = 1000

_locks: weakref.WeakSet[_Lock] = weakref.WeakSet()


class RunFolder:
    """Paths and small files of a run. ``create`` and ``create_next`` lock it for training, ``guarded`` trains into one
    that something else guards; ``open`` only reads.

    Attributes:
        path: the folder; the other attributes are paths in it.
    """

    def __init__(
        self, path: Path, lock: _Lock | None, require_writable: Callable[[float], None] = lambda max_age_s: None
    ) -> None:
        self.path = path
        self._require_writable = require_writable
        self.manifest = path / MANIFEST_FILE
        self.metrics = path / METRICS_FILE
        self.curves = path / CURVES_FILE
        self.result = path / RESULT_FILE
        self.checkpoints = path / CHECKPOINTS_FOLDER
        self.policy = path / POLICY_FOLDER
        self._lock = lock

    @classmethod
    def create(cls, path: Path, *, resume: bool = False) -> RunFolder:
        """Make or reuse the folder and lock it.

        Args:
            resume: go on with the run that it holds; without it, a folder that holds a run is refused.

        Raises:
            ConfigError: it holds a run and ``resume`` is off, or no run and ``resume`` is on, or another process
                trains into it.
            StorageError: it can't be made or written.
        """
        if resume and not ((path / MANIFEST_FILE).is_file() and _holds_run(path)):
            raise ConfigError(
                f"the folder {path} holds no run to resume",
                remedy="leave --resume out, or give the run's folder with --out",
            )
        if not resume:
            _require_not_in_use(path)
            _require_no_run(path)
        with storage_errors("make the run folder", path):
            path.mkdir(parents=True, exist_ok=True)
        lock = _Lock(path)
        if not resume:  # another process may have been faster
            try:
                _require_no_run(path)
            except ConfigError:
                lock.release()
                raise
        return cls(path, lock)

    @classmethod
    def create_next(cls, root: Path, name: str) -> RunFolder:
        """Make and lock ``root/<name>-<n>``, with the `n` after the highest there is, from 1.

        Raises:
            StorageError: it can't be made.
        """
        with storage_errors("make a run folder in", root):
            root.mkdir(parents=True, exist_ok=True)
            pattern = re.compile(rf"^{re.escape(name)}-([0-9]+)$")
            taken = [int(match.group(1)) for entry in root.iterdir() if (match := pattern.match(entry.name))]
            first = max(taken, default=0) + 1
            for number in range(first, first + _MAX_NAME_TRIES):
                path = root / f"{name}-{number}"
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    return cls(path, _Lock(path))
        raise StorageError(f"no free name {name}-N in {root}; remove old runs, or choose a folder with --out")

    @staticmethod
    def newest(root: Path, name: str) -> Path | None:
        """Return the ``root/<name>-<n>`` with the highest `n`, or None where there is none."""
        pattern = re.compile(rf"^{re.escape(name)}-([0-9]+)$")
        entries = root.iterdir() if root.is_dir() else iter(())
        numbered = [(int(match.group(1)), path) for path in entries if (match := pattern.match(path.name))]
        return max(numbered)[1] if numbered else None

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return a finished or running run's folder, to read from; of a job's folder, that of its newest attempt.

        Raises:
            ConfigError: it isn't a run's.
        """
        path = find_run(path)
        if not (path / MANIFEST_FILE).is_file():
            if path.is_dir():
                problem = "is not a run folder: it has no manifest.yaml"
            else:
                problem = "is a file, not a run folder" if path.exists() else "does not exist"
            raise ConfigError(f"{path} {problem}", remedy="give the folder that rljob run wrote")
        return cls(path, None)

    @classmethod
    def guarded(cls, path: Path, require_writable: Callable[[float], None]) -> RunFolder:
        """Return a folder to train into that needs no lock, as its owner knows that it is the only one.

        Args:
            require_writable: see the method; it raises once that is no longer so.
        """
        return cls(path, None, require_writable)

    def require_writable(self, max_age_s: float = 0.0) -> None:
        """Raise where another process has taken over what this one does.

        Args:
            max_age_s: a look that isn't older will do.

        Raises:
            RLJobError: it has.
        """
        self._require_writable(max_age_s)

    def write_manifest(self, document: Mapping[str, Any]) -> None:
        """Write the effective manifest: a tree of JSON values that the loader reads back equal."""
        self.require_writable()
        write_atomically(self.manifest, dump_yaml(document).encode())

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write ``result.json`` in one step; a number that isn't finite becomes null."""
        self.require_writable()
        text = json.dumps(finite(result), indent=2, allow_nan=False)
        write_atomically(self.result, f"{text}\n".encode())

    def read_result(self) -> dict[str, Any] | None:
        """Return ``result.json``, or None while there is none.

        Raises:
            ConfigError: it isn't JSON.
        """
        if not self.result.exists():
            return None
        try:
            document = json.loads(self.result.read_bytes())
        except ValueError as error:
            raise ConfigError(f"{self.result} is not JSON: {error}", remedy="remove it") from None
        return dict(document)

    def truncate_metrics(self, num_records: int) -> None:
        """Cut ``metrics.jsonl`` in one step to its first ``num_records`` records; later ones will come anew.

        An absent file stays absent.

        Raises:
            CheckpointError: the file has fewer records.
            StorageError: it can't be read or written.
        """
        if not self.metrics.exists():
            return
        kept: list[bytes] = []
        with storage_errors("read", self.metrics), open(self.metrics, "rb") as file:
            for line in file:
                if len(kept) == num_records or not line.endswith(b"\n"):
                    break
                kept.append(line)
        if len(kept) < num_records:
            raise CheckpointError(
                f"{self.metrics} has {len(kept)} records, but the checkpoint was written after {num_records}",
                remedy="remove the file to resume without its history",
            )
        write_atomically(self.metrics, b"".join(kept))

    def start_anew(self) -> None:
        """Drop the records of a run that ended before its first checkpoint.

        Raises:
            ConfigError: it holds a policy, which is saved after a checkpoint: it isn't such a run.
        """
        if self.policy.exists():
            raise ConfigError(
                f"{self.path} holds a run whose checkpoints are gone: there is nothing to go on from, and a new start"
                " would write over it",
                remedy="choose another folder with --out",
            )
        self.truncate_metrics(0)

    def discard(self) -> None:
        """Remove what a run that never began has left, so that the folder can be used again; other files stay."""
        if self.checkpoints.is_dir() and any(self.checkpoints.iterdir()):
            return
        with contextlib.suppress(OSError):
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            for path in (self.manifest, self.metrics, self.path / ORIGIN_FILE, self.path / LOCK_FILE):
                path.unlink(missing_ok=True)
            self.path.rmdir()

    def close(self) -> None:
        """Give the lock back. May be called twice."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class _Lock:
    """An exclusive `flock` on a file in the folder. Forked children let go of it at once."""

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK_FILE
        with storage_errors("lock", path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            in_use = _in_use(folder, self._descriptor)
            os.close(self._descriptor)
            raise in_use from None
        except OSError as error:
            os.close(self._descriptor)
            raise StorageError(
                f"cannot lock {path}: {error.strerror}; choose a folder on another file system"
            ) from error
        with storage_errors("write", path):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
            sync_folder(folder)
        in_forked_children(_release_in_child)
        _locks.add(self)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            _locks.discard(self)


def _in_use(folder: Path, descriptor: int) -> ConfigError:
    """Return the error that says which process holds a lock."""
    holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    return ConfigError(
        f"another process{f' (pid {holder})' if holder else ''} is training into {folder}",
        remedy="wait for it, stop it, or choose another folder with --out",
    )


def _require_not_in_use(folder: Path) -> None:
    """Raise ``ConfigError`` where another process trains into a folder: that is what its user should hear first."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(folder, descriptor) from None
        finally:
            os.close(descriptor)


def dump_yaml(document: Any) -> str:
    """Return YAML in block style that YAML 1.1 and 1.2 read alike: a string that isn't plainly a word is quoted."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """No anchors, no ambiguous plain scalars."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_PLAIN = re.compile(r"^[A-Za-z_/][A-Za-z0-9_./:\-]*[A-Za-z0-9_/]$|^[A-Za-z]$")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity"})


def _represent_string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.match(text) is not None and text.lower() not in _WORDS
    style = None if plain else "|" if "\n" in text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _represent_float(dumper: yaml.SafeDumper, number: float) -> yaml.ScalarNode:
    """Write the shortest digits that read back exactly, with a point, so that no reader takes them for a string."""
    if not math.isfinite(number):
        raise ValueError(f"a manifest can't hold {number}")
    mantissa, exponent_mark, exponent = repr(number).partition("e")
    if "." not in mantissa:
        mantissa += ".0"
    return dumper.represent_scalar("tag:yaml.org,2002:float", mantissa + exponent_mark + exponent)


_Dumper.add_representer(str, _represent_string)
_Dumper.add_representer(float, _represent_float)
_Dumper.add_representer(tuple, lambda dumper, items: dumper.represent_list(list(items)))


def _holds_run(path: Path) -> bool:
    begun = (path / MANIFEST_FILE).exists() and (path / LOCK_FILE).exists()
    return begun or any((path / name).exists() for name in _MARKS)


def _require_no_run(path: Path) -> None:
    """Raise ``ConfigError`` where a folder holds a run, or a manifest that a run would overwrite."""
    if _holds_run(path):
        raise ConfigError(
            f"the folder {path} already holds a run",
            remedy="add --resume to go on with it, or choose another folder with --out",
        )
    if (path / MANIFEST_FILE).exists():
        raise ConfigError(
            f"the folder {path} holds a {MANIFEST_FILE} that no run wrote", remedy="choose another folder with --out"
        )


def _release_in_child() -> None:
    for lock in list(_locks):
        lock.release()
