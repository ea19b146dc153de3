"""`rljob version`: prints the versions of rljob, Python and the packages that matter for a run."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rlruntime import __version__
from rlruntime.errors import EXIT_OK

_PACKAGES = ("torch", "tensordict", "gymnasium", "numpy", "pydantic")


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "version", help="print versions", description="Print the versions of rljob, Python and what a run depends on."
    )
    parser.set_defaults(handler=run)


def run(_arguments: argparse.Namespace) -> int:
    """Print one line per package; nothing is imported for it."""
    print(f"rljob {__version__}")
    print(f"Python {platform.python_version()}")
    for package in _PACKAGES:
        try:
            print(f"{package} {version(package)}")
        except PackageNotFoundError:
            print(f"{package} is not installed")
    return EXIT_OK
