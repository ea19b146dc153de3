"""`rljob export RUN`: writes a run's policy for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rlruntime.cli.user_code import add_code_option, use_code
from rlruntime.errors import EXIT_OK

_FORMATS = ("safetensors", "torch", "onnx")


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "export",
        help="export a trained policy",
        description="Write a run's policy as files that map raw observations to the most probable action, in the"
        " environment's own units: policy.safetensors (for rlruntime.load_policy), policy.pt2 (torch.export),"
        " policy.onnx (needs rljob[onnx]), and policy.json, which names inputs and outputs.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="the folder that rljob run wrote, or a policy file")
    parser.add_argument("--format", choices=(*_FORMATS, "all"), default="all", help="which file (default: all)")
    parser.add_argument("--output", metavar="DIR", type=Path, help="where the files go (default: RUN/export)")
    add_code_option(parser)
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Export, print a line per file, and return the exit code."""
    use_code(arguments.run, arguments.code)
    from rlruntime.policies.export import export_policy

    source: Path = arguments.run
    folder = arguments.output or (source.parent if source.is_file() else source) / "export"
    formats = _FORMATS if arguments.format == "all" else (arguments.format,)
    for path in export_policy(source, folder, formats).values():
        print(f"{path}  {path.stat().st_size:,} bytes")
    return EXIT_OK
