"""`rljob validate FILE...`: says of each manifest whether it is valid, and if not, all that is wrong with it."""

from __future__ import annotations

import argparse
from typing import Any

from rlruntime.cli.output import print_error
from rlruntime.errors import EXIT_CONFIG, EXIT_OK, ConfigError, RLJobError
from rlruntime.spec.loader import Document, parse_document, read_documents, read_source, repeated_names, source_name
from rlruntime.spec.manifest import KIND
from rlruntime.spec.problems import ManifestError
from rlruntime.spec.training.components import check_components


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "validate",
        help="check manifests",
        description="Check manifests: fields, types, combinations, and the settings of built-in parts."
        " A file may hold several documents. Exit code 78 when anything is wrong.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a manifest, or - for standard input")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Check every file, print a line per document or problem, and return the exit code."""
    codes = [_validate_file(file) for file in arguments.files]
    return EXIT_CONFIG if EXIT_CONFIG in codes else max(codes)


def _validate_file(file: str) -> int:
    try:
        documents = read_documents(read_source(file), source_name(file))
    except RLJobError as error:
        print_error(error)
        return error.exit_code
    problems = repeated_names(documents)
    for document in documents:
        problems.extend(_validate_document(document))
    for problem in problems:
        print_error(problem)
    return EXIT_CONFIG if problems else EXIT_OK


def _validate_document(document: Document) -> tuple[ConfigError, ...]:
    """Return what is wrong with ``document``, or print that it is valid."""
    try:
        job = parse_document(document)
        check_components(job.spec.training, document.locate)
    except ManifestError as error:
        return error.problems
    print(f"{document.source}: {KIND} {job.metadata.name}: valid")
    return ()
