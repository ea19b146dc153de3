"""What watches a run from the command line: the progress display, and the port with metrics, probes and status."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from prometheus_client import CollectorRegistry

from rlruntime import __version__
from rlruntime.cli.progress import LogFormat, Reporter, make_reporter
from rlruntime.errors import ConfigError
from rlruntime.metrics import names
from rlruntime.metrics.exporter import MetricsExporter
from rlruntime.metrics.family import export_process
from rlruntime.services.health import HealthServer, Heartbeat
from rlruntime.spec.manifest import RLJob
from rlruntime.trainers.observer import Observer, Record
from rlruntime.trainers.progress import Progress

_SILENCE_S = 600.0  # a phase may rightly take minutes: an image environment, a long evaluation


class RunObserver(Observer):
    """Shows and serves how a run is doing.

    Args:
        job: what runs.
        quiet: show nothing.
        log_format: ``text`` or ``json``.
        stream: where progress goes.

    Raises:
        ConfigError: the metrics port that the manifest asks for is taken.
    """

    def __init__(self, job: RLJob, *, quiet: bool, log_format: LogFormat, stream: TextIO) -> None:
        self.job = job
        self._quiet, self._log_format, self._stream = quiet, log_format, stream
        self._reporter: Reporter | None = None
        self._waiting: list[str] = []
        self._registry = CollectorRegistry()
        export_process(self._registry, names.BUILD_INFO, __version__)
        self._exporter: MetricsExporter | None = None
        self._heartbeat = Heartbeat(_SILENCE_S)
        self._ready = False
        self._status: dict[str, Any] = {"name": job.metadata.name, "phase": "Starting"}
        self._server = self._serve()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.close()
        if self._reporter is None and error is None:
            self._reporter = self._make_reporter(0)
        if self._reporter is not None:
            for text in self._waiting:
                self._reporter.message(text)
            self._reporter.close()

    def on_folder(self, path: Path) -> None:
        """Say where the run's folder and its port are."""
        self.on_message(f"run folder: {path}   metrics: http://127.0.0.1:{self._server.port}/metrics")

    def on_start(self, progress: Progress) -> None:
        self._reporter = self._make_reporter(progress.frames)
        for text in self._waiting:
            self._reporter.message(text)
        self._waiting.clear()
        self._exporter = MetricsExporter(
            self._registry,
            target_frames=self.job.spec.training.total_frames,
            start_frames=progress.frames,
            start_iterations=progress.iteration,
            start_episodes=progress.episodes,
        )
        self._ready = True
        self._set_progress("Running", {"frames": progress.frames})

    def on_record(self, record: Record) -> None:
        self._heartbeat.beat()
        if self._exporter is not None:
            self._exporter.observe_iteration(record)
        if self._reporter is not None:
            self._reporter.iteration(record)
        self._set_progress("Running", record)

    def on_checkpoint(self, path: Path) -> None:
        if self._exporter is not None:
            self._exporter.checkpoint_written()
        self._status = {**self._status, "checkpoint": {"path": str(path)}}

    def on_message(self, text: str) -> None:
        if self._reporter is None:
            self._waiting.append(text)
        else:
            self._reporter.message(text)

    def on_phase(self, name: str) -> None:
        self._heartbeat.beat()

    def finish(self, result: Mapping[str, Any], folder: Path) -> None:
        """Show the outcome."""
        evaluation = result.get("evaluation")
        words = [f"{result['status'].lower()}: {result.get('message', '')}".rstrip(": ")]
        if evaluation:
            mean, std = _rounded(evaluation["rewardMean"], 4), _rounded(evaluation["rewardStd"], 2)
            words.append(f"final evaluation {mean} ± {std} over {evaluation['episodes']} fresh episodes")
        words.append(f"{result['frames']:,} frames in {result['time']['elapsedSeconds']:.1f} s")
        words.append(f"see {folder}")
        if self._reporter is not None:
            self._reporter.close("; ".join(words), result)

    def _make_reporter(self, start_frames: int) -> Reporter:
        return make_reporter(
            self.job.spec.training.total_frames,
            quiet=self._quiet,
            log_format=self._log_format,
            stream=self._stream,
            title=self.job.metadata.name,
            start_frames=start_frames,
        )

    def _set_progress(self, phase: str, record: Record) -> None:
        frames, total = int(record["frames"]), self.job.spec.training.total_frames
        progress: dict[str, Any] = {
            "frames": frames,
            "totalFrames": total,
            "percent": min(100, frames * 100 // total),
            "reward": record.get("train/episode_reward_mean"),
            "framesPerSecond": record.get("time/frames_per_second"),
        }
        evaluation = record.get("evaluation/reward_mean")
        last = self._status.get("progress", {}).get("evaluationReward")
        progress["evaluationReward"] = evaluation if evaluation is not None else last
        self._status = {**self._status, "phase": phase, "progress": progress}

    def _serve(self) -> HealthServer:
        """Open the port of the manifest; where it was not asked for by name and is taken, any free one."""
        metrics = self.job.spec.metrics
        try:
            return self._server_on(metrics.port)
        except ConfigError:
            asked_for = "metrics" in self.job.spec.model_fields_set and "port" in metrics.model_fields_set
            if asked_for:
                raise
            return self._server_on(0)

    def _server_on(self, port: int) -> HealthServer:
        return HealthServer(
            port,
            registry=self._registry,
            live=self._heartbeat,
            ready=lambda: None if self._ready else "starting",
            status=lambda: self._status,
        )


def _rounded(value: float, digits: int) -> str:
    """Return that many significant digits, or the whole number where it has more: no exponent."""
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"
