"""What watches a run in a pod: the port with metrics, probes and status, and one JSON object a line for the log."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from prometheus_client import CollectorRegistry

from rlruntime import __version__
from rlruntime.cli.progress import make_reporter
from rlruntime.metrics import names
from rlruntime.metrics.exporter import MetricsExporter
from rlruntime.metrics.family import export_process
from rlruntime.services.health import HealthServer, Liveness
from rlruntime.spec.contract import PodIdentity, SharedSpec, TrainerReport
from rlruntime.spec.status import CheckpointStatus
from rlruntime.trainers.observer import Observer, Record
from rlruntime.trainers.progress import Progress

_RATE_WINDOW_S = 30.0
_CHECKPOINT_PREFIX = "step-"


class PodObserver(Observer):
    """Serves and logs how a trainer is doing. Its port is open from construction to ``close``.

    Args:
        identity: of the pod.
        spec: of the job.
        storage: root of the storage; paths are shown relative to it.
        stream: of the log.
        host: address to listen on.

    Attributes:
        liveness: behind ``/healthz``.
        after_checkpoint: called when a checkpoint was written.

    Raises:
        ConfigError: the port is taken.
    """

    def __init__(
        self, identity: PodIdentity, spec: SharedSpec, *, storage: Path, stream: TextIO, host: str = "0.0.0.0"
    ) -> None:
        self._training, self._storage = spec.training, storage
        self.liveness = Liveness(max(600.0, 2 * spec.training.env.step_timeout_seconds))
        self.after_checkpoint: Callable[[], None] = lambda: None
        self._ready = False
        self._folder: Path | None = None
        self._report = TrainerReport(
            uid=identity.uid,
            attempt=identity.attempt,
            round=identity.round,
            total_frames=spec.training.total_frames,
        )
        self._points: deque[tuple[float, int]] = deque()
        self._registry = CollectorRegistry()
        export_process(self._registry, names.BUILD_INFO, __version__)
        self._exporter: MetricsExporter | None = None
        self._reporter = make_reporter(
            spec.training.total_frames,
            quiet=False,
            log_format="json",
            stream=stream,
            fields={
                "job": identity.name,
                "namespace": identity.namespace,
                "role": identity.role,
                "index": identity.index,
                "attempt": identity.attempt,
            },
        )
        self._server = HealthServer(
            spec.metrics.port,
            host=host,
            registry=self._registry,
            live=self.liveness,
            ready=lambda: None if self._ready else "training hasn't begun",
            status=self._status,
        )
        self.port = self._server.port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the port. May be called twice."""
        self._server.close()

    def report(self, phase: str) -> TrainerReport:
        """Return the numbers of now, with ``phase`` as the last."""
        self._update(phase=phase)
        return self._report

    def show(self, report: TrainerReport) -> None:
        """Serve the numbers of an attempt that has finished the job."""
        self._report, self._ready = report, True

    def trains_into(self, folder: Path, checkpoint: Path | None) -> None:
        """Say where the attempt's run folder is, and which checkpoint it goes on from."""
        self._folder = folder
        if checkpoint is not None:
            self._note_checkpoint(checkpoint)

    def on_start(self, progress: Progress) -> None:
        self._exporter = MetricsExporter(
            self._registry,
            target_frames=self._training.total_frames,
            start_frames=progress.frames,
            start_iterations=progress.iteration,
            start_episodes=progress.episodes,
        )
        self._points.append((time.monotonic(), progress.frames))
        resumed = progress.frames if self._report.checkpoint is not None else None
        means = progress.episode_means()
        self._update(
            phase="Training",
            frames=progress.frames,
            resumed_frames=resumed,
            reward=means.get(names.EPISODE_REWARD_MEAN),
            best_reward=progress.best_reward,
        )
        self._ready = True
        if self._training.algorithm != "Custom":  # what a function of the user's waits for can't be seen from here
            self.liveness.begin()

    def on_record(self, record: Record) -> None:
        self.liveness.beat()
        if self._exporter is not None:
            self._exporter.observe_iteration(record)
        self._reporter.iteration(record)
        changes: dict[str, Any] = {}
        if names.FRAMES in record:
            frames = int(record[names.FRAMES])
            changes |= {"frames": frames, **self._rate(frames)}
        if names.EPISODE_REWARD_MEAN in record:
            changes["reward"] = float(record[names.EPISODE_REWARD_MEAN])
        if names.EVALUATION_REWARD_MEAN in record:
            changes["best_reward"] = self._best(float(record[names.EVALUATION_REWARD_MEAN]))
        self._update(**changes)

    def on_checkpoint(self, path: Path) -> None:
        if self._exporter is not None:
            self._exporter.checkpoint_written()
        self._note_checkpoint(path)
        self.after_checkpoint()

    def on_message(self, text: str) -> None:
        self._reporter.message(text)

    def on_phase(self, name: str) -> None:
        self.liveness.beat()

    def finish(self, result: Mapping[str, Any]) -> None:
        """Log the outcome, and make its numbers the last ones."""
        self.take_result(result)
        self._reporter.close(str(result.get("message", "")), result)

    def take_result(self, result: Mapping[str, Any]) -> None:
        """Make the numbers of a result the last ones: those of the final evaluation, and of what was saved."""
        evaluation = result.get("evaluation")
        changes: dict[str, Any] = {"frames": int(result["frames"])}
        if evaluation:
            changes |= {"reward": evaluation["rewardMean"], "best_reward": self._best(evaluation["rewardMean"])}
        if result["status"] == "Succeeded":
            changes["remaining_seconds"] = 0
        self._update(**changes)
        if self._folder is not None and result.get("checkpoint"):
            self._note_checkpoint(self._folder / str(result["checkpoint"]))

    def _status(self) -> dict[str, Any]:
        return self._report.to_document()

    def _rate(self, frames: int) -> dict[str, Any]:
        now_s = time.monotonic()
        self._points.append((now_s, frames))
        while len(self._points) > 2 and self._points[1][0] < now_s - _RATE_WINDOW_S:
            self._points.popleft()
        then_s, then_frames = self._points[0]
        if now_s <= then_s or frames <= then_frames:
            return {}
        rate = (frames - then_frames) / (now_s - then_s)
        left = max(0, self._training.total_frames - frames)
        return {"frames_per_second": rate, "remaining_seconds": round(left / rate)}

    def _best(self, reward: float) -> float:
        best = self._report.best_reward
        return reward if best is None else max(best, reward)

    def _note_checkpoint(self, path: Path) -> None:
        written = datetime.now(UTC)
        with contextlib.suppress(OSError):  # one that was taken over is older
            written = datetime.fromtimestamp((path / "manifest.json").stat().st_mtime, UTC)
        frames = int(path.name.removeprefix(_CHECKPOINT_PREFIX))
        shown = path.relative_to(self._storage) if path.is_relative_to(self._storage) else path
        self._update(
            checkpoint=CheckpointStatus(frames=frames, path=str(shown), time=written.strftime("%Y-%m-%dT%H:%M:%SZ"))
        )

    def _update(self, **changes: Any) -> None:
        """Take the place of the report in one step: other threads read it. What isn't finite is unknown."""
        known = {key: None if _is_not_finite(value) else value for key, value in changes.items()}
        self._report = self._report.model_copy(update=known)


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
