"""Where commands that read a run find the modules of its user: networks, transforms, environments."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_code_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--code DIR``."""
    parser.add_argument(
        "--code",
        metavar="DIR",
        type=Path,
        default=Path(),
        help="folder with your own modules, which the manifest names (default: the current folder)",
    )


def make_importable(folder: Path) -> None:
    """Put ``folder`` in front of Python's module path."""
    sys.path.insert(0, str(folder.resolve()))
