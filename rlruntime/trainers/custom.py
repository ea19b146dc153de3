"""`algorithm: Custom`: a training function of the user's, given what every run has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from rlruntime.envs.protocol import VectorEnv
from rlruntime.errors import CheckpointError, ConfigError, RLJobError, one_line
from rlruntime.registry import import_object
from rlruntime.spec.manifest import RLJob
from rlruntime.spec.training.training import TrainingSpec
from rlruntime.trainers.checkpoint import Checkpoint, CheckpointInfo, CheckpointStore, read_checkpoint
from rlruntime.trainers.loggers import JsonLinesLogger
from rlruntime.trainers.observer import Observer
from rlruntime.trainers.progress import Progress
from rlruntime.trainers.run_folder import RunFolder
from rlruntime.transforms.staging import make_transformed_env

_WRITABLE_AGE_S = 1.0
_ENTRYPOINT_FIELD = "spec.training.custom.entrypoint"


@dataclass
class CustomContext:
    """What the function gets.

    Attributes:
        training: the training section; `seed`, `totalFrames` and the rest mean what they do elsewhere.
        config: ``custom.config``, as it is.
        folder: of the run.
        state: of the latest checkpoint, when the run is resumed; else None.
    """

    training: TrainingSpec
    config: dict[str, Any]
    folder: Path
    state: Any
    _stop_signal: Callable[[], int | None]
    _observer: Observer
    _logger: JsonLinesLogger
    _store: CheckpointStore
    _acknowledge_stop: Callable[[], None] = lambda: None
    _require_writable: Callable[[float], None] = lambda max_age_s: None
    _progress: Progress = field(default_factory=Progress)

    @property
    def stop_requested(self) -> bool:
        """Whether a signal asks the function to save its state and return; look at least once a second.

        A function that hasn't looked within the grace period is ended; one that has may take its time to save.
        """
        if self._stop_signal() is None:
            return False
        self._acknowledge_stop()
        return True

    def make_env(self) -> VectorEnv:
        """Return the environment of the manifest; the function closes it."""
        return make_transformed_env(self.training.env)

    def log(self, record: Mapping[str, float | int | str]) -> None:
        """Add a record to the metrics. ``frames`` and ``iteration`` in it are the run's progress."""
        self._require_writable(_WRITABLE_AGE_S)
        self._progress.frames = int(record.get("frames", self._progress.frames))
        self._progress.iteration = int(record.get("iteration", self._progress.iteration))
        self._progress.num_records += 1
        self._logger.log(record)
        self._observer.on_record(record)

    def save(self, state: Any, frames: int) -> Path:
        """Write a checkpoint of ``state``, a tree of dicts, lists, tensors, arrays, bytes, numbers, strings and None.

        Raises:
            TypeError: the tree holds something else.
            StorageError: it can't be written.
        """
        self._progress.frames = frames
        info = CheckpointInfo(frames=frames, iteration=self._progress.iteration, resume_class="episodeRestart")
        path = self._store.write({"state": state, "numRecords": self._progress.num_records}, info)
        self._observer.on_checkpoint(path)
        return path


class CustomTrainer:
    """Runs the function that a manifest with ``algorithm: Custom`` names.

    Args:
        job: the manifest.
        observer: told what happens.
        stop_signal: not None once a signal asks to stop.
        acknowledge_stop: called once the function has noticed.

    Raises:
        ConfigError: the function can't be imported.
    """

    def __init__(
        self,
        job: RLJob,
        *,
        observer: Observer | None = None,
        stop_signal: Callable[[], int | None] = lambda: None,
        acknowledge_stop: Callable[[], None] = lambda: None,
    ) -> None:
        custom = job.spec.training.custom
        if custom is None:
            raise ConfigError("the section is missing", field="spec.training.custom", remedy="give an entrypoint")
        self.job, self.observer = job, observer or Observer()
        self.stop_signal, self._acknowledge_stop = stop_signal, acknowledge_stop
        self.entrypoint, self.config = custom.entrypoint, dict(custom.config)
        self.function = import_object(custom.entrypoint, field=_ENTRYPOINT_FIELD)
        if not callable(self.function):
            raise ConfigError(
                "the entrypoint can't be called",
                field=_ENTRYPOINT_FIELD,
                value=custom.entrypoint,
                remedy="name a function that takes a CustomContext",
            )

    def close(self) -> None:
        """Do nothing: the function closes what it opens."""

    def run(self, folder: RunFolder, *, resume: bool = False) -> dict[str, Any]:
        """Call the function and write what it returns, a mapping or None, into ``result.json``.

        Raises:
            CheckpointError: the checkpoint to resume from was written by another algorithm.
            RLJobError: the function raised.
        """
        started, training = perf_counter(), self.job.spec.training
        store = CheckpointStore(folder.checkpoints, training.checkpoint.keep, require_writable=folder.require_writable)
        latest = store.latest() if resume else None
        saved: dict[str, Any] = {"state": None, "numRecords": 0}
        progress = Progress()
        if latest is not None:
            checkpoint = read_checkpoint(latest)
            saved = _state_of_custom(checkpoint)
            progress.frames, progress.iteration = checkpoint.info.frames, checkpoint.info.iteration
        folder.write_manifest(self.job.to_document())
        folder.truncate_metrics(int(saved["numRecords"]))
        logger = JsonLinesLogger(folder.metrics)
        context = CustomContext(
            training,
            self.config,
            folder.path,
            saved["state"],
            self.stop_signal,
            self.observer,
            logger,
            store,
            self._acknowledge_stop,
            folder.require_writable,
            progress,
        )
        progress.num_records = int(saved["numRecords"])
        self.observer.on_start(progress)
        result: dict[str, Any] = {"name": self.job.metadata.name, "status": "Failed", "seed": training.seed}
        try:
            returned = self.function(context)
            stopped = context.stop_requested
            result |= {"status": "Stopped" if stopped else "Succeeded", "reason": "Signal" if stopped else "Returned"}
            result["returned"] = returned
            return result
        except Exception as error:
            result |= {"reason": type(error).__name__, "message": one_line(str(error))}
            if isinstance(error, RLJobError):
                raise
            raise RLJobError(
                one_line(f"{self.entrypoint} raised {type(error).__name__}: {error}; see where with --debug")
            ) from error
        finally:
            logger.close()
            elapsed = perf_counter() - started
            result |= {"frames": progress.frames, "time": {"elapsedSeconds": elapsed}}
            folder.write_result(result)


def _state_of_custom(checkpoint: Checkpoint) -> dict[str, Any]:
    state = checkpoint.state
    if not isinstance(state, dict) or state.keys() != {"state", "numRecords"}:
        raise CheckpointError(
            f"the checkpoint {checkpoint.path} was not written by algorithm Custom",
            field="spec.training.algorithm",
            remedy="resume with the manifest that wrote it, or train into a new folder",
        )
    return state
