"""`rljob role TYPE`: what a pod of a job runs. See `rlruntime.spec.contract` for what it is told, and how it ends."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from rlruntime.cli.role_ending import run_to_its_end
from rlruntime.command_line import option_type, seconds_of
from rlruntime.errors import ConfigError
from rlruntime.spec.contract import CONFIG_DIR, STORAGE_DIR, TERMINATION_FILE, PodIdentity

_GRACE_S = 20.0


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "role",
        help="do the work of a pod; the operator's pods run this",
        description="Do the work of one pod of a job, as its RLJOB_* variables and mounted files say."
        " Exit codes: 0 done, 78 bad configuration, 75 try again (a newer attempt has taken over), 74 a file can't be"
        " read or written, 130 and 143 stopped by a signal, 1 anything else.",
    )
    parser.add_argument("type", metavar="TYPE", help="trainer or service")
    parser.add_argument(
        "--config-dir", type=Path, default=Path(CONFIG_DIR), metavar="DIR", help=f"what the pod is told ({CONFIG_DIR})"
    )
    parser.add_argument(
        "--storage-dir", type=Path, default=Path(STORAGE_DIR), metavar="DIR", help=f"the job's storage ({STORAGE_DIR})"
    )
    parser.add_argument(
        "--termination-file",
        type=Path,
        metavar="FILE",
        help=f"where the last message goes (default: {TERMINATION_FILE} where there is one, as in every container)",
    )
    parser.add_argument(
        "--grace-seconds",
        type=_seconds,
        default=_GRACE_S,
        metavar="S",
        help="after a signal, how long to wait for the next phase before the last state is saved"
        f" (default: {_GRACE_S:g})",
    )
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code; the last message is written on every path."""
    default = Path(TERMINATION_FILE)
    path = arguments.termination_file or (default if default.exists() else None)
    return run_to_its_end(path, lambda ending: _work(arguments, ending))


def _work(arguments: argparse.Namespace, ending: Any) -> int:
    if arguments.type in ("collector", "inference"):
        raise ConfigError(
            f"this version of rljob has no pods of type {arguments.type.title()}",
            field="spec.roles",
            remedy="remove the role: the trainer collects by itself",
        )
    if arguments.type not in ("trainer", "service"):
        raise ConfigError(
            "this version of rljob has no pods of this type",
            field="TYPE",
            value=arguments.type,
            remedy="use an image as new as the operator",
        )
    identity = PodIdentity.from_variables(os.environ)
    if arguments.type == "service":
        from rlruntime.cli.role_service import serve

        return serve(identity, arguments, ending)
    from rlruntime.cli.role_trainer import train

    return train(identity, arguments, ending)


@option_type("give a number of seconds, at least 0")
def _seconds(text: str) -> float:
    return seconds_of(text, zero=True)
