"""What a run says of itself at its end: the content of ``result.json``."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlruntime.errors import EnvironmentFault
from rlruntime.policies.artifact import POLICY_FILE
from rlruntime.spec.manifest import RLJob
from rlruntime.trainers.checkpoint import CheckpointInfo, ResumeClass
from rlruntime.trainers.evaluation import EvaluationResult
from rlruntime.trainers.progress import Progress


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: ``Succeeded``, ``Stopped`` (by a signal) or ``Failed``.
        reason: ``TotalFrames``, ``RewardReached``, ``Callback``, ``Signal`` or the name of the error.
        message: one line for people.
        traceback: of the error, in the process where it was raised; empty without one.
    """

    status: str
    reason: str
    message: str = ""
    traceback: str = ""

    @classmethod
    def failed(cls, error: BaseException) -> Outcome:
        """Return the outcome of a run that ``error`` ended."""
        raised_there = error.worker_traceback if isinstance(error, EnvironmentFault) else ""
        lines = raised_there or "".join(traceback.format_exception(error))
        return cls("Failed", type(error).__name__, str(error), lines)

    @classmethod
    def stopped(cls, signum: int | None) -> Outcome:
        """Return the outcome of a run that a signal stopped."""
        name = signal.Signals(signum).name if signum is not None else "a signal"
        return cls("Stopped", "Signal", f"{name} received; continue with --resume")


@dataclass(frozen=True)
class Resumed:
    """Where a resumed run went on.

    Attributes:
        source: the checkpoint.
        resume_class: whether it continues bit for bit.
        frames: of the checkpoint.
        differences: settings and versions that differ from those the checkpoint was written with.
    """

    source: str
    resume_class: ResumeClass
    frames: int
    differences: list[str] = field(default_factory=list)


def describe_result(
    job: RLJob,
    outcome: Outcome,
    *,
    progress: Progress,
    final: EvaluationResult | None,
    resumed: Resumed | None,
    saved: CheckpointInfo | None,
    checkpoint: str | None,
    elapsed_s: float,
    phase_seconds: Mapping[str, float],
    fingerprint: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what ``result.json`` says.

    Args:
        job: the effective manifest.
        outcome: how it ended.
        progress: its counters.
        final: the last evaluation, where there was one.
        resumed: where it went on, if it did.
        saved: of the state that was saved last.
        checkpoint: the folder of that, relative to the run's; None where none was written.
        elapsed_s: seconds since this process began the run.
        phase_seconds: seconds of each phase in this process.
        fingerprint: what the numbers depend on.
    """
    training = job.spec.training
    # What came after the saved state is lost where the run didn't end by itself.
    complete = outcome.status == "Succeeded" or saved is None
    frames = progress.frames if complete or saved is None else saved.frames
    frames_here = frames - (resumed.frames if resumed is not None else 0)
    return {
        "name": job.metadata.name,
        "status": outcome.status,
        "reason": outcome.reason,
        "message": outcome.message,
        **({"traceback": outcome.traceback} if outcome.traceback else {}),
        "frames": frames,
        "iterations": progress.iteration if complete or saved is None else saved.iteration,
        "episodes": progress.episodes,
        "seed": training.seed,
        "evaluation": None if final is None else _evaluation(final, training.evaluation.deterministic),
        "bestEvaluationReward": progress.best_reward,
        "resumeClass": saved.resume_class if saved is not None else None,
        "resumed": None if resumed is None else _resumed(resumed),
        "checkpoint": checkpoint,
        "policy": str(POLICY_FILE) if checkpoint is not None else None,
        "time": {
            "elapsedSeconds": elapsed_s,
            "framesPerSecond": frames_here / elapsed_s if elapsed_s > 0 else 0.0,
            "phaseSeconds": dict(phase_seconds),
        },
        "fingerprint": dict(fingerprint),
    }


def timings_table(time: Mapping[str, Any]) -> str:
    """Return the phases of a run with their seconds and shares of it, parts below the phase that they belong to.

    Args:
        time: as in ``result.json``.
    """
    elapsed_s, phases = time["elapsedSeconds"], time["phaseSeconds"]
    lines = [f"{'phase':<20} {'seconds':>10} {'share':>7}"]

    def order(name: str) -> tuple[float, str, float]:
        whole = name.partition("/")[0]
        return -phases.get(whole, 0.0), whole, 0.0 if name == whole else 1.0 / (1e-9 + phases[name])

    for name in sorted(phases, key=order):
        whole, _, part = name.partition("/")
        shown = f"  {part}" if part and whole in phases else name
        share = phases[name] / elapsed_s if elapsed_s > 0 else 0.0
        lines.append(f"{shown:<20} {phases[name]:>10.3f} {share:>7.1%}")
    return "\n".join(lines)


def _evaluation(final: EvaluationResult, deterministic: bool) -> dict[str, Any]:
    return {
        "rewardMean": final.mean,
        "rewardStd": final.std,
        "lengthMean": float(final.lengths.mean()),
        "episodes": len(final.returns),
        "deterministic": deterministic,
    }


def _resumed(resumed: Resumed) -> dict[str, Any]:
    return {
        "from": resumed.source,
        "class": resumed.resume_class,
        "frames": resumed.frames,
        "differences": resumed.differences,
    }
