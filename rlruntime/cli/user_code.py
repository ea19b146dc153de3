"""The option of commands that read a run: where its user's modules lie."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlruntime.errors import ConfigError
from rlruntime.user_code import make_importable, remembered_code


def add_code_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--code DIR``."""
    parser.add_argument(
        "--code",
        metavar="DIR",
        type=Path,
        default=None,
        help="folder with your own modules, which the manifest names (default: that of the manifest that was run)",
    )


def use_code(run: Path, folder: Path | None) -> None:
    """Make modules importable: those in ``folder``, else those that ``run`` remembers, else the current folder's.

    Raises:
        ConfigError: ``folder`` is none.
    """
    if folder is not None and not folder.is_dir():
        raise ConfigError(
            "there is no such folder", field="--code", value=str(folder), remedy="give that of your modules"
        )
    make_importable(folder or remembered_code(run) or Path())
