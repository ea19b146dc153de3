"""Finds the command, runs it, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
import traceback
from collections.abc import Callable, Sequence

from rlruntime.cli.output import print_error
from rlruntime.command_line import EXIT_USAGE, Parser, run_quietly
from rlruntime.errors import EnvironmentFault, MissingExtraError, RLJobError

CLUSTER_COMMANDS: tuple[str, ...] = ("cluster.top", "cluster.logs", "cluster.suspension")
"""Those of `COMMANDS` that are `kubectl rlj` as well."""
COMMANDS: tuple[str, ...] = (
    "run", "validate", "evaluate", "export", "tune_env", *CLUSTER_COMMANDS, "role", "crd", "schema", "version",
)  # fmt: skip
"""Modules of this package, each with a function ``add_parser(subparsers)``, in the order of the help.

It adds a parser and sets its default ``handler``: a function from the parsed arguments to the exit code.
"""

_EXTRA_OF_PACKAGE = {
    **dict.fromkeys(
        ("torch", "tensordict", "gymnasium", "numpy", "safetensors", "prometheus_client", "rich", "matplotlib"),
        "runtime",
    ),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "imageio": "video",
    "mujoco": "mujoco",
    "envpool": "envpool",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``rljob`` with ``argv`` (default: the process's arguments) and return its exit code."""
    return run_quietly("rljob", lambda: _run(parser, argv))


def kubectl_main(argv: Sequence[str] | None = None) -> int:
    """Run ``kubectl rlj``, the commands about a cluster alone; as `main` otherwise."""
    words = "Jobs of reinforcement learning on this cluster. The same commands are `rljob top` and so on."
    about_clusters = functools.partial(parser, CLUSTER_COMMANDS, program="kubectl rlj", description=words)
    return run_quietly("kubectl rlj", lambda: _run(about_clusters, argv))


def _run(make_parser: Callable[[], argparse.ArgumentParser], argv: Sequence[str] | None) -> int:
    root = make_parser()
    arguments = root.parse_args(argv)
    if arguments.command is None:
        root.print_help(sys.stderr)
        return EXIT_USAGE
    try:
        return int(arguments.handler(arguments))
    except RLJobError as error:
        return _report(error, debug=arguments.debug)
    except ModuleNotFoundError as error:
        missing = missing_extra(error, f"rljob {arguments.command}")
        if missing is None:
            raise
        return _report(missing, debug=arguments.debug)


def parser(
    commands: Sequence[str] = COMMANDS,
    *,
    program: str = "rljob",
    description: str = "Reinforcement-learning jobs: one manifest, on a laptop and on Kubernetes.",
) -> argparse.ArgumentParser:
    """Return the parser of ``commands``."""
    root = Parser(prog=program, description=description)
    debug = "show the traceback of an error"
    root.add_argument("--debug", action="store_true", help=debug)
    subparsers = root.add_subparsers(dest="command", metavar="COMMAND")
    for name in commands:
        importlib.import_module(f"rlruntime.cli.{name}").add_parser(subparsers)
    for command in subparsers.choices.values():
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=debug)
    return root


def missing_extra(error: ModuleNotFoundError, what: str) -> MissingExtraError | None:
    """Return the error that says which extra holds the package that ``what`` lacks, or None where no extra does."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRA_OF_PACKAGE:
        return None
    return MissingExtraError(what, package=package, extra=f"rljob[{_EXTRA_OF_PACKAGE[package]}]")


def _report(error: RLJobError, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
        if isinstance(error, EnvironmentFault) and error.worker_traceback:
            print(f"\nWhere the environment raised:\n{error.worker_traceback}", file=sys.stderr)
    for problem in getattr(error, "problems", (error,)):  # those of a ManifestError
        print_error(problem)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
