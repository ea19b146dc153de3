"""Where the modules of a user lie that a manifest names: networks, transforms, environments, callbacks.

A run folder remembers the folder of the manifest that was run, so that its policy can be loaded from anywhere.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rlruntime.attempts import find_run
from rlruntime.errors import StorageError

ORIGIN_FILE = "origin.json"
"""In a run folder: where its manifest lay."""


def code_folder(manifest: str | os.PathLike[str]) -> Path:
    """Return the folder whose modules a manifest may name: its own; the current one for ``-``, standard input."""
    return Path.cwd() if os.fspath(manifest) == "-" else Path(manifest).resolve().parent


def make_importable(folder: Path) -> None:
    """Put ``folder`` in front of Python's module path, unless it is on it."""
    path = str(folder.resolve())
    if path not in sys.path:
        sys.path.insert(0, path)


def remember_code(run: Path, folder: Path) -> None:
    """Note in a run folder where the modules of its manifest lie.

    Raises:
        StorageError: it can't be written.
    """
    path = run / ORIGIN_FILE
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(f"{json.dumps({'codeFolder': str(folder.resolve())})}\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"can't write {path}: {error.strerror}; free space or choose another folder") from None


def remembered_code(run: Path) -> Path | None:
    """Return the folder that `remember_code` noted in ``run``, or None where there is no readable note."""
    try:
        return Path(json.loads((find_run(run) / ORIGIN_FILE).read_text(encoding="utf-8"))["codeFolder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
