"""`rljob schema`: prints the JSON Schema for editors, or the reference page of the manifest."""

from __future__ import annotations

import argparse
from typing import Any

from rlruntime.cli.output import add_output_options, emit


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "schema",
        help="print the JSON Schema of a manifest, or its reference page",
        description="Print the JSON Schema of a manifest, for editors that complete YAML, or the page that describes"
        " every field.",
    )
    parser.add_argument("--format", choices=("json", "markdown"), default="json", help="what to print (default: json)")
    add_output_options(parser)
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Print, write or check it."""
    if arguments.format == "markdown":
        from rlruntime.spec.reference import reference_markdown

        return emit(reference_markdown(), arguments)
    from rlruntime.spec.crd import json_schema_text

    return emit(json_schema_text(), arguments)
