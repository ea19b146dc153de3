"""`rljob tune-env FILE`: measures the environment backends for a manifest's environment, and says which to choose."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlruntime.command_line import option_type, seconds_of
from rlruntime.errors import EXIT_OK
from rlruntime.spec.loader import load_manifests

if TYPE_CHECKING:
    from rlruntime.envs.measure import BackendMeasurement


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "tune-env",
        help="measure the environment backends",
        description="Step a manifest's environment with random actions on every backend, and advise which to choose."
        " What is measured is the environment alone, without a policy.",
    )
    parser.add_argument("file", metavar="FILE", help="a manifest, or - for standard input")
    parser.add_argument("--seconds", type=_positive, default=3.0, help="how long each backend is stepped (default: 3)")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a table and the advice per manifest, and return the exit code."""
    from rlruntime.envs.measure import advise, measure_backends

    if arguments.file != "-":
        sys.path.insert(0, str(Path(arguments.file).resolve().parent))
    for job in load_manifests(arguments.file):
        config = job.spec.training.env
        print(f"{job.metadata.name}: {config.id or config.factory}, {config.num_envs} copies")
        measurements = measure_backends(config, arguments.seconds)
        for line in table(measurements):
            print(f"  {line}")
        print(f"  advice: {advise(config, measurements)}")
    return EXIT_OK


def table(measurements: list[BackendMeasurement]) -> list[str]:
    """Return the lines of the table: backend, workers, and frames per second or why it can't be used."""
    lines = [f"{'backend':<18}{'workers':>8}{'frames/s':>12}"]
    for m in measurements:
        workers = "" if m.num_workers is None else str(m.num_workers)
        if m.reason:
            lines.append(f"{m.backend:<18}{workers:>8}{'-':>12}  {m.reason}")
        else:
            lines.append(f"{m.backend:<18}{workers:>8}{m.frames_per_second:>12,.0f}")
    return lines


@option_type("give a positive number of seconds")
def _positive(text: str) -> float:
    return seconds_of(text, zero=False)
