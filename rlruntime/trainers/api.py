"""Training from Python: the same as `rljob run`, without a terminal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlruntime.errors import ConfigError, MissingExtraError
from rlruntime.spec.loader import load_manifests
from rlruntime.spec.manifest import RLJob
from rlruntime.trainers.curves import plot_curves
from rlruntime.trainers.custom import CustomTrainer
from rlruntime.trainers.loop import Trainer
from rlruntime.trainers.observer import Observer
from rlruntime.trainers.run_folder import RunFolder
from rlruntime.user_code import code_folder, make_importable, remember_code

RUNS_FOLDER = Path("runs")


class AnyTrainer(Protocol):
    """What `make_trainer` returns."""

    job: RLJob

    def run(self, folder: RunFolder, *, resume: bool = False) -> dict[str, Any]:
        """Train into the folder and return what ``result.json`` says."""

    def close(self) -> None:
        """Free what a trainer that didn't run holds. May be called twice."""


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: with manifest, metrics, curves, checkpoints, policy and result.
        result: what ``result.json`` says.
    """

    folder: Path
    result: dict[str, Any]


def make_trainer(
    job: RLJob,
    *,
    observer: Observer | None = None,
    stop_signal: Callable[[], int | None] = lambda: None,
    acknowledge_stop: Callable[[], None] = lambda: None,
) -> Trainer | CustomTrainer:
    """Return the trainer for the manifest's algorithm; see the classes for arguments and errors."""
    kind = CustomTrainer if job.spec.training.algorithm == "Custom" else Trainer
    return kind(job, observer=observer, stop_signal=stop_signal, acknowledge_stop=acknowledge_stop)


def train(
    manifest: RLJob | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    observer: Observer | None = None,
) -> Run:
    """Train what a manifest says, on this machine.

    Args:
        manifest: a manifest, or the path of a file with one. The modules in the file's folder become importable.
        out: run folder; None makes ``runs/<name>-<n>``.
        resume: continue the run that ``out`` holds.
        observer: told what happens.

    Raises:
        ConfigError: the manifest can't work as it stands.
        RLJobError: training failed.
    """
    code = Path.cwd() if isinstance(manifest, RLJob) else code_folder(manifest)
    job = manifest if isinstance(manifest, RLJob) else load_one(manifest)
    make_importable(code)
    trainer = make_trainer(job, observer=observer)
    path = None if out is None else Path(out)
    with contextlib.closing(trainer), open_run_folder(job.metadata.name, path, resume=resume) as folder:
        remember_code(folder.path, code)
        result = trainer.run(folder, resume=resume)
        with contextlib.suppress(MissingExtraError):
            draw_curves(folder, job)
        return Run(folder.path, result)


def load_one(path: str | os.PathLike[str]) -> RLJob:
    """Return the one manifest of a file.

    Raises:
        ConfigError: it holds none or several.
    """
    jobs = load_manifests(os.fspath(path))
    if len(jobs) != 1:
        names = ", ".join(job.metadata.name for job in jobs)
        raise ConfigError(
            f"{os.fspath(path)} holds {len(jobs)} manifests ({names}) where one is run",
            remedy="give a file with one",
        )
    return jobs[0]


def open_run_folder(name: str, out: Path | None, *, resume: bool) -> RunFolder:
    """Return the locked folder of a new run, or of the one to resume: ``out``, else the newest of that name."""
    if out is not None:
        return RunFolder.create(out, resume=resume)
    if not resume:
        return RunFolder.create_next(RUNS_FOLDER, name)
    newest = RunFolder.newest(RUNS_FOLDER, name)
    if newest is None:
        raise ConfigError(
            f"there is no run of {name!r} in {RUNS_FOLDER} to resume", remedy="give its folder with --out"
        )
    return RunFolder.create(newest, resume=True)


def draw_curves(folder: RunFolder, job: RLJob) -> bool:
    """Draw ``curves.png``; return whether there was anything to draw."""
    if not folder.metrics.exists():
        return False
    goal = job.spec.training.evaluation.stop_at_reward
    return plot_curves(folder.metrics, [folder.curves], title=job.metadata.name, goal_reward=goal)
