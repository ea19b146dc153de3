"""Where commands that read a run find the modules of its user: networks, transforms, environments."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ORIGIN_FILE = "origin.json"
"""In a run folder: where its manifest lay."""


def add_code_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--code DIR``."""
    parser.add_argument(
        "--code",
        metavar="DIR",
        type=Path,
        default=None,
        help="folder with your own modules, which the manifest names (default: that of the manifest that was run)",
    )


def remember_code(run: Path, folder: Path) -> None:
    """Note in a run folder where the modules of its manifest lie.

    Raises:
        StorageError: it can't be written.
    """
    from rlruntime.trainers.durable import storage_errors, write_atomically

    with storage_errors("write", run / ORIGIN_FILE):
        write_atomically(run / ORIGIN_FILE, f"{json.dumps({'codeFolder': str(folder.resolve())})}\n".encode())


def make_importable(run: Path, folder: Path | None) -> None:
    """Put a folder in front of the module path: ``folder``, else what `remember_code` noted, else the current one."""
    chosen = Path() if folder is None else folder
    origin = run / ORIGIN_FILE
    if folder is None and origin.is_file():
        try:
            chosen = Path(json.loads(origin.read_text(encoding="utf-8"))["codeFolder"])
        except (ValueError, KeyError, TypeError, OSError):
            chosen = Path()
    sys.path.insert(0, str(chosen.resolve()))
