"""What several commands print or write in the same way."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from rlruntime.errors import EXIT_FAULT, EXIT_OK, RLJobError, StorageError


def print_error(error: RLJobError) -> None:
    """Print the one line of ``error`` on standard error."""
    print(f"rljob: error: {error}", file=sys.stderr)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--output`` and ``--check`` to a command that generates a file."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--output", metavar="FILE", type=Path, help="write into FILE instead of printing")
    group.add_argument("--check", metavar="FILE", type=Path, help="write nothing; exit 1 when FILE differs")


def emit(text: str, arguments: argparse.Namespace) -> int:
    """Print ``text``, write it, or compare it with a file, as `add_output_options` says; return the exit code.

    Raises:
        StorageError: the file can't be written or read.
    """
    if arguments.check is not None:
        return _check(text, arguments.check)
    if arguments.output is None:
        sys.stdout.write(text)
        return EXIT_OK
    try:
        arguments.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{arguments.output}: can't be written: {error.strerror}; choose another file") from None
    return EXIT_OK


def _check(text: str, path: Path) -> int:
    try:
        found = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}; give the file that was generated") from None
    if found == text:
        return EXIT_OK
    difference = difflib.unified_diff(found.splitlines(), text.splitlines(), str(path), "generated", lineterm="", n=1)
    print("\n".join(difference))
    print_error(RLJobError(f"{path} is stale; generate it anew"))
    return EXIT_FAULT
