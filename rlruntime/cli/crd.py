"""`rljob crd`: prints the CustomResourceDefinition."""

from __future__ import annotations

import argparse
from typing import Any

from rlruntime.cli.output import add_output_options, emit


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "crd", help="print the CustomResourceDefinition", description="Print the CustomResourceDefinition of RLJob."
    )
    add_output_options(parser)
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Print, write or check it."""
    from rlruntime.spec.crd import crd_yaml

    return emit(crd_yaml(), arguments)
