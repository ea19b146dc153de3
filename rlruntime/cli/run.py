"""`rljob run FILE`: trains on this machine."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from rlruntime.command_line import option_type, seconds_of
from rlruntime.errors import EXIT_OK, ConfigError, RLJobError
from rlruntime.user_code import code_folder, make_importable, remember_code


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "run",
        help="train on this machine",
        description="Train what a manifest says on this machine, into a run folder with metrics, checkpoints"
        " and the policy."
        " Exit codes: 0 done, 2 bad command line, 78 bad configuration, 74 a file can't be written, 130 and 143 stopped"
        " by a signal (continue with --resume), 1 anything else.",
    )
    parser.add_argument("file", metavar="FILE", help="a manifest, or - for standard input")
    parser.add_argument(
        "-o",
        "--override",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="set a field, such as training.ppo.learningRate=1e-3, or, in a list,"
        " training.network.config.hiddenSizes[0]=128; may be given several times",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/NAME-N)")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out, or the newest of this name")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="how progress is printed")
    parser.add_argument(
        "--grace-seconds",
        type=_seconds,
        default=2.5,
        metavar="S",
        help="after a signal, how long to wait for the next phase before the last state is saved (default: 2.5)",
    )
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    job = load_job(arguments.file, arguments.override)
    # Torch and the rest are loaded here, once the manifest is known to be sound.
    from rlruntime.cli.run_observer import RunObserver
    from rlruntime.trainers.api import draw_curves, make_trainer, open_run_folder
    from rlruntime.trainers.interrupts import InterruptGuard
    from rlruntime.trainers.loop import Trainer

    quiet = arguments.quiet or sys.stdout is None  # so it is where the standard output was closed at the start
    observer = RunObserver(job, quiet=quiet, log_format=arguments.log_format, stream=sys.stdout)
    others = [role.name for role in job.spec.roles if role.type != "Trainer"]
    if others:
        observer.on_message(f"the roles {', '.join(others)} act on a cluster only: here one process does everything")
    trainer: Any = None

    def write_last_state(signum: int) -> None:
        if isinstance(trainer, Trainer):
            trainer.abandon(signum)

    with observer, InterruptGuard(write_last_state, grace_s=arguments.grace_seconds) as guard:
        trainer = make_trainer(
            job,
            observer=observer,
            stop_signal=lambda: guard.requested,
            acknowledge_stop=guard.acknowledge,
        )
        with (
            contextlib.closing(trainer),
            open_run_folder(job.metadata.name, arguments.out, resume=arguments.resume) as folder,
        ):
            remember_code(folder.path, code_folder(arguments.file))
            observer.on_folder(folder.path)
            result = trainer.run(folder, resume=arguments.resume)
            if result["status"] == "Succeeded":
                try:
                    draw_curves(folder, job)
                except RLJobError as error:
                    observer.on_message(f"no curves: {error}")
            observer.finish(result, folder.path)
        return EXIT_OK if result["status"] == "Succeeded" else guard.exit_code


def load_job(file: str, overrides: list[str]) -> Any:
    """Return the one manifest of ``file`` with overrides applied, its parts checked, its folder importable.

    Raises:
        ConfigError: it isn't valid, or the file holds several manifests.
    """
    from rlruntime.spec.loader import parse_document, parse_manifest, read_documents, read_source, source_name
    from rlruntime.spec.overrides import apply_overrides
    from rlruntime.spec.training.components import check_components

    source = source_name(file)
    documents = read_documents(read_source(file), source)
    if len(documents) != 1:
        raise ConfigError(f"{source} holds {len(documents)} manifests where one is run", remedy="give a file with one")
    document = documents[0]
    job = parse_document(document)
    check_components(job.spec.training, document.locate)
    if overrides:
        job = parse_manifest(apply_overrides(document.value, overrides), source)
        check_components(job.spec.training)
    make_importable(code_folder(file))
    return job


@option_type("give a number of seconds, at least 0")
def _seconds(text: str) -> float:
    return seconds_of(text, zero=True)
