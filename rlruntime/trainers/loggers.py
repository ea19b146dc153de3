"""Where the records of a run go: ``metrics.jsonl`` always, TensorBoard, Weights & Biases and MLflow on demand.

A record is a flat mapping with ``iteration`` and ``frames``; see `rlruntime.metrics.names`. Fields that begin with
``time/`` are the only ones that may differ between two runs of one seed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rlruntime.errors import ConfigError, MissingExtraError, RLJobError, one_line
from rlruntime.metrics import names
from rlruntime.metrics.json_values import finite
from rlruntime.registry import register
from rlruntime.spec.training.loggers import MLflowConfig, TensorBoardConfig, WandBConfig
from rlruntime.trainers.durable import storage_errors

Record = Mapping[str, float | int | str]


class Logger(Protocol):
    """Takes the record of every iteration, in order, from the thread that trains."""

    def log(self, record: Record) -> None:
        """Take one record.

        Raises:
            StorageError: it can't be written.
        """

    def close(self) -> None:
        """Write what is left and free what is held. May be called twice."""


@dataclass(frozen=True)
class LoggerContext:
    """What a logger learns of the run: every logger class is called as ``cls(config, context)``.

    Attributes:
        folder: the run's folder.
        manifest: the effective manifest, with names as in YAML.
        resumed_frames: frames at which a resumed run goes on; None for a new one. What another store holds of later
            records must not appear twice.
        resumed_records: records that were logged up to there. Several may have the same frames: an evaluation's has
            those
            of the iteration before it.
    """

    folder: Path
    manifest: Mapping[str, Any] = field(default_factory=dict)
    resumed_frames: int | None = None
    resumed_records: int = 0


class JsonLinesLogger:
    """One JSON object per line, in the file before ``log`` returns. Floats read back exactly; NaN becomes null.

    Args:
        path: appended to; a resumed run cuts it first (`RunFolder.truncate_metrics`).

    Raises:
        StorageError: the file can't be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with storage_errors("write", path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def log(self, record: Record) -> None:
        """See `Logger.log`. A line that doesn't fit on the disk is taken back, so that the file stays whole."""
        line = json.dumps(finite(record), allow_nan=False, ensure_ascii=False).encode() + b"\n"
        with storage_errors("write", self._path):
            before = os.fstat(self._descriptor).st_size
            try:
                written = 0
                while written < len(line):
                    written += os.write(self._descriptor, line[written:])
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, before)
                raise

    def sync(self) -> None:
        """Make what was logged durable."""
        with storage_errors("write", self._path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """See `Logger.close`."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a ``metrics.jsonl``; a last line that was cut short by a kill is left out.

    Raises:
        ConfigError: a line isn't JSON; says which.
        StorageError: the file can't be read.
    """
    with storage_errors("read", path):
        lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines[:-1], start=1):  # whatever follows the last line end was cut short
        try:
            records.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            raise ConfigError(f"{path}, line {number} is not a JSON object") from None
    return records


def without_time(record: Record) -> dict[str, float | int | str]:
    """Return the fields that two runs of one seed must agree on."""
    return {key: value for key, value in record.items() if not key.startswith(names.TIME_PREFIX)}


class Loggers:
    """Several loggers as one. A logger that fails to close doesn't keep the others from it."""

    def __init__(self, loggers: list[Logger]) -> None:
        self._loggers = loggers

    def log(self, record: Record) -> None:
        """Hand the record to each, in order."""
        for logger in self._loggers:
            logger.log(record)

    def sync(self) -> None:
        """Make what was logged durable where a logger can: before a checkpoint that counts these records is written."""
        for logger in self._loggers:
            if isinstance(logger, JsonLinesLogger):
                logger.sync()

    def close(self) -> None:
        """Close all, then raise what the first failure was."""
        failures: list[Exception] = []
        for logger in self._loggers:
            try:
                logger.close()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]


@register("logger", "TensorBoard")
class TensorBoardLogger:
    """Event files; the step is the frame count. After a resume TensorBoard discards what it had of later frames."""

    Config = TensorBoardConfig

    def __init__(self, config: TensorBoardConfig, context: LoggerContext) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError(
                "the logger TensorBoard", package="tensorboard", extra="rljob[tensorboard]"
            ) from None
        folder = Path(config.folder) if config.folder else context.folder / "tensorboard"
        purge = None if context.resumed_frames is None else context.resumed_frames + 1
        with storage_errors("write", folder):
            self._writer: Any = SummaryWriter(str(folder), purge_step=purge)
        self._folder = folder

    def log(self, record: Record) -> None:
        """See `Logger.log`."""
        step = int(record[names.FRAMES])
        with storage_errors("write", self._folder):
            for key, value in _numbers(record).items():
                self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        """See `Logger.close`."""
        with storage_errors("write", self._folder):
            self._writer.close()


@register("logger", "WandB")
class WandBLogger:
    """A run of Weights & Biases, the same one after a resume; the step is the frame count.

    Its store is append-only: what a resumed run logs again although the store has it is left out.
    """

    Config = WandBConfig

    def __init__(self, config: WandBConfig, context: LoggerContext) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingExtraError("the logger WandB", package="wandb", extra="rljob[wandb]") from None
        self._remote = _RemoteRun(context.folder / ".wandb.json", context)
        self._remote.run_id = self._remote.run_id or uuid.uuid4().hex
        with _service("WandB"):
            self._run: Any = wandb.init(
                project=config.project,
                entity=config.entity,
                name=config.name or context.folder.name,
                tags=list(config.tags),
                mode=config.mode,
                dir=str(context.folder),
                id=self._remote.run_id,
                resume="allow",
                config=dict(context.manifest),
            )
        self._remote.save()

    def log(self, record: Record) -> None:
        """See `Logger.log`."""
        if self._remote.lacks_next():
            with _service("WandB"):
                self._run.log(_numbers(record), step=int(record[names.FRAMES]))
            self._remote.save()

    def close(self) -> None:
        """See `Logger.close`."""
        self._remote.close()
        with _service("WandB"):
            self._run.finish()


@register("logger", "MLflow")
class MLflowLogger:
    """A run of MLflow, the same one after a resume; the step is the frame count.

    Its store is append-only: what a resumed run logs again although the store has it is left out.
    """

    Config = MLflowConfig

    def __init__(self, config: MLflowConfig, context: LoggerContext) -> None:
        try:
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise MissingExtraError("the logger MLflow", package="mlflow", extra="rljob[mlflow]") from None
        self._metric: Any = Metric
        self._closed = False
        self._remote = _RemoteRun(context.folder / ".mlflow.json", context)
        with _service("MLflow"):
            self._client: Any = MlflowClient(tracking_uri=config.tracking_uri)
            if self._remote.run_id:
                self._client.set_terminated(self._remote.run_id, status="RUNNING")
            else:
                self._remote.run_id = self._new_run(config, context)
        self._remote.save()

    def log(self, record: Record) -> None:
        """See `Logger.log`."""
        if self._remote.lacks_next():
            step, now_ms = int(record[names.FRAMES]), time.time_ns() // 1_000_000
            metrics = [self._metric(key, value, now_ms, step) for key, value in _numbers(record).items()]
            with _service("MLflow"):
                self._client.log_batch(self._remote.run_id, metrics=metrics)
            self._remote.save()

    def close(self) -> None:
        """See `Logger.close`."""
        if not self._closed:
            self._closed = True
            self._remote.close()
            with _service("MLflow"):
                self._client.set_terminated(self._remote.run_id, status="FINISHED")

    def _new_run(self, config: MLflowConfig, context: LoggerContext) -> str:
        experiment = self._client.get_experiment_by_name(config.experiment)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(config.experiment)
        run = self._client.create_run(experiment_id, run_name=config.name or context.folder.name)
        run_id = str(run.info.run_id)
        if context.manifest:
            self._client.log_dict(run_id, dict(context.manifest), "manifest.json")
        return run_id


class _RemoteRun:
    """A small file that says which run of a service belongs to a folder, and how many of the run's records it was told.

    It is rewritten in place after every record, in one short write of constant length that survives a kill of the
    process.
    """

    def __init__(self, path: Path, context: LoggerContext) -> None:
        self._path = path
        self._seen = context.resumed_records
        self.run_id, self._told = "", 0
        with storage_errors("write", path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if context.resumed_frames is not None:
                with contextlib.suppress(ValueError, KeyError):
                    document = json.loads(os.pread(self._descriptor, 4096, 0))
                    self.run_id, self._told = str(document["id"]), int(document["records"])
            if not self.run_id:
                os.ftruncate(self._descriptor, 0)

    def lacks_next(self) -> bool:
        """Count one more record, and return whether the service has yet to be told of it."""
        self._seen += 1
        return self._seen > self._told

    def save(self) -> None:
        """Remember that the service was told of all records until now."""
        self._told = max(self._told, self._seen)
        with storage_errors("write", self._path):
            os.pwrite(
                self._descriptor, f'{{"id": {json.dumps(self.run_id)}, "records": {self._told:20d}}}\n'.encode(), 0
            )

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextlib.contextmanager
def _service(name: str) -> Iterator[None]:
    """Make whatever the client of a service raises one line; training must not end in a stranger's traceback."""
    try:
        yield
    except RLJobError:
        raise
    except Exception as error:
        raise RLJobError(one_line(f"the logger {name} failed: {type(error).__name__}: {error}")) from error


def _numbers(record: Record) -> dict[str, float]:
    return {
        key: float(value) for key, value in record.items() if not isinstance(value, str) and math.isfinite(float(value))
    }
