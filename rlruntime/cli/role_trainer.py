"""`rljob role trainer`: trains in a pod, into the attempt's own folder on the job's storage."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from rlruntime.cli.pod_observer import PodObserver
from rlruntime.cli.role_ending import Ending
from rlruntime.errors import EXIT_OK, EXIT_TRY_AGAIN, ConfigError, RLJobError
from rlruntime.metrics.json_values import finite
from rlruntime.spec.contract import (
    CODE_DIR,
    CONFIG_DIR,
    SPEC_FILE,
    TOKEN_FILE,
    PodIdentity,
    SharedSpec,
    TerminationMessage,
    job_folder,
    read_token,
)
from rlruntime.spec.manifest import RLJob
from rlruntime.spec.training.components import check_components
from rlruntime.trainers.fence import Attempt, End, Fenced, find_completed
from rlruntime.trainers.interrupts import InterruptGuard
from rlruntime.trainers.run_folder import RunFolder
from rlruntime.user_code import remember_code

_WRITE_S = 60.0  # of the pod's 120 s until SIGKILL, after the grace of a signal
_WATCH_EVERY_S = 2.0
_FENCED_GRACE_S = 10.0


def train(identity: PodIdentity, arguments: argparse.Namespace, ending: Ending) -> int:
    """Train, or report again what an earlier attempt achieved, and return the exit code.

    Raises:
        ConfigError: the job can't work as it stands.
        Fenced: a newer attempt has taken over.
        RLJobError: training failed.
    """
    run = _Run(identity, arguments.storage_dir, ending)
    with InterruptGuard(run.abandon, grace_s=arguments.grace_seconds, write_s=_WRITE_S) as guard:
        spec = read_spec(arguments.config_dir)
        require_one_trainer(identity, spec)
        check_components(spec.training)
        with PodObserver(identity, spec, storage=arguments.storage_dir, stream=sys.stdout) as observer:
            run.observer, ending.report = observer, observer.report
            completed = find_completed(run.job, identity.attempt)
            if completed is not None:
                return run.report_again(completed)
            return run.train(spec, guard)


def read_spec(config_dir: Path) -> SharedSpec:
    """Return the job's spec, and see that the token, where there is one, is a token.

    Raises:
        ConfigError: they aren't what they should be.
        StorageError: the spec can't be read.
    """
    spec = SharedSpec.read(_below(config_dir, SPEC_FILE))
    token = _below(config_dir, TOKEN_FILE)
    if token.exists():
        read_token(token)
    return spec


def require_one_trainer(identity: PodIdentity, spec: SharedSpec) -> None:
    """Raise ``ConfigError`` unless the pod is the one trainer, of one process, that this version knows."""
    number = next((number for number, role in enumerate(spec.roles) if role.name == identity.role), None)
    if number is None or spec.roles[number].type != "Trainer":
        known = ", ".join(f"{role.name} ({role.type})" for role in spec.roles)
        raise ConfigError(
            "the job has no Trainer of this name", field="RLJOB_ROLE", value=identity.role, remedy=f"it has {known}"
        )
    several = "needs distributed training, which this version of rljob doesn't have"
    replicas = spec.roles[number].replicas or 1
    if replicas > 1:
        raise ConfigError(
            f"a Trainer of several replicas {several}",
            field=f"spec.roles[{number}].replicas",
            value=replicas,
            remedy="set replicas: 1",
        )
    if identity.processes > 1:
        raise ConfigError(
            f"a Trainer of several processes {several}",
            field=f"spec.roles[{number}].processesPerReplica",
            value=identity.processes,
            remedy="set processesPerReplica: 1",
        )


class _Run:
    """One attempt at the job."""

    def __init__(self, identity: PodIdentity, storage: Path, ending: Ending) -> None:
        self.identity, self.ending = identity, ending
        self.job = storage / job_folder(identity.name, identity.uid).name
        self.observer: PodObserver | None = None
        self._trainer: Any = None
        self._folder: RunFolder | None = None

    def train(self, spec: SharedSpec, guard: InterruptGuard) -> int:
        """Claim the attempt's place, take over, train, and say what came of it."""
        observer = self._observer()
        owner = {"pod": socket.gethostname(), "namespace": self.identity.namespace, "role": self.identity.role}
        attempt = Attempt(self.job, self.identity.attempt, owner=owner)
        with _fence_as_cause(attempt, self._note_result), _FenceWatch(attempt, self.ending, observer):
            # Torch and the rest are loaded here, while the port answers already.
            from rlruntime.trainers.api import make_trainer

            manifest = as_manifest(self.identity, spec)
            trainer = self._trainer = make_trainer(
                manifest,
                observer=observer,
                stop_signal=lambda: _noticed(observer, guard),
                acknowledge_stop=guard.acknowledge,
            )
            with contextlib.closing(trainer):
                if guard.requested is not None:
                    guard.acknowledge()
                    return self._stopped(guard.requested, guard.exit_code)
                found = attempt.take_over()
                if found.completed is not None:
                    return self.report_again(found.completed)
                observer.trains_into(attempt.folder, found.checkpoint)
                observer.after_checkpoint = attempt.remove_superseded
                observer.liveness.mark = lambda: _steps(trainer)
                folder = self._folder = RunFolder.guarded(attempt.folder, attempt.require_held)
                remember_code(folder.path, _code_folder())
                result = trainer.run(folder, resume=found.checkpoint is not None)
            observer.finish(result)
            if result["status"] != "Succeeded":
                return self._stopped(guard.requested, guard.exit_code)
            return self._succeeded(attempt, result)

    def report_again(self, end: End) -> int:
        """Say what the attempt said that finished the job."""
        record = end.record or {}
        message = TerminationMessage.from_document(record.get("termination"))
        if message is None:
            message = TerminationMessage("Succeeded", f"attempt {end.attempt} has finished the job")
        observer = self._observer()
        if message.report is not None:
            observer.show(message.report)
        observer.on_message(f"attempt {end.attempt} has finished the job; reporting what it said")
        self.ending.write(message)
        return EXIT_OK

    def abandon(self, signum: int) -> None:
        """Save the last copy of the state, as the loop hasn't answered a signal in time. Runs in another thread."""
        from rlruntime.trainers.loop import Trainer

        try:
            if isinstance(self._trainer, Trainer):
                self._trainer.abandon(signum)
            self._note_result()
        except RLJobError as error:
            print(f"rljob: the last state was not saved: {error}", file=sys.stderr, flush=True)
        self._stopped(signum, 128 + signum)

    def _succeeded(self, attempt: Attempt, result: dict[str, Any]) -> int:
        """The completion record comes first: without it, a pod that vanishes now would have to train again."""
        report = self._observer().report("Succeeded")
        message = TerminationMessage("Succeeded", _summary(result), report)
        termination = message.to_document()
        attempt.complete({"exitClass": "Done", "termination": termination, "result": finite(result)})
        self.ending.write(message)
        return EXIT_OK

    def _stopped(self, signum: int | None, code: int) -> int:
        name = signal.Signals(signum).name if signum is not None else "a signal"
        report = None if self.observer is None else self.observer.report("Stopped")
        saved = None if report is None or report.checkpoint is None else report.checkpoint.frames
        what = "nothing was saved yet" if saved is None else f"saved at {saved:,} frames"
        self.ending.write(TerminationMessage("Stopped", f"{name} received; {what}", report))
        return code

    def _note_result(self) -> None:
        """Take what was saved at last from the result that the trainer wrote as it ended."""
        if self._folder is None or self.observer is None:
            return
        result = self._folder.read_result()
        if result is not None:
            self.observer.take_result(result)

    def _observer(self) -> PodObserver:
        if self.observer is None:
            raise RuntimeError("the port isn't open yet")
        return self.observer


class _FenceWatch:
    """Sees every few seconds whether a newer attempt has taken over; ends the process where its loop doesn't notice."""

    def __init__(self, attempt: Attempt, ending: Ending, observer: PodObserver) -> None:
        self._attempt, self._ending, self._observer = attempt, ending, observer
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rljob-fence", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._left.set()
        self._thread.join(_WATCH_EVERY_S)

    def _watch(self) -> None:
        while not self._left.wait(_WATCH_EVERY_S):
            try:
                self._attempt.require_held()
            except Fenced as fenced:
                if not self._left.wait(_FENCED_GRACE_S):
                    self._ending.write(TerminationMessage("Fenced", str(fenced), self._observer.report("Fenced")))
                    os._exit(EXIT_TRY_AGAIN)
                return
            except RLJobError:
                continue  # storage that can't be read now; the loop says so when it writes


@contextlib.contextmanager
def _fence_as_cause(attempt: Attempt, note_result: Any) -> Iterator[None]:
    """Where an attempt fails after a newer one has taken over, that is the cause, whatever the failure looks like."""
    try:
        yield
    except Fenced:
        raise
    except Exception as error:
        with contextlib.suppress(RLJobError):
            note_result()
        try:
            attempt.require_held()
        except Fenced as fenced:
            raise fenced from error
        raise


def as_manifest(identity: PodIdentity, spec: SharedSpec) -> RLJob:
    """Return the manifest that trains what the pod is told to; roles and policies stay with the operator."""
    training = spec.training.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    document = {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": identity.name, "namespace": identity.namespace, "uid": identity.uid},
        "spec": {"training": training},
    }
    return RLJob.model_validate(document, by_alias=True, by_name=False)


def _noticed(observer: PodObserver, guard: InterruptGuard) -> int | None:
    """The loop asks at every phase, and in every step of an evaluation, whether to stop: so it is alive."""
    observer.liveness.beat()
    return guard.requested


def _summary(result: dict[str, Any]) -> str:
    words = [str(result.get("message") or "the training function returned"), f"{int(result['frames']):,} frames"]
    evaluation = result.get("evaluation")
    if evaluation:
        words.append(f"final evaluation {evaluation['rewardMean']:.6g} over {evaluation['episodes']} episodes")
    return "; ".join(words)


def _code_folder() -> Path:
    """Return where the user's modules lie: what is mounted for the job, else where the command was started."""
    return Path(CODE_DIR) if CODE_DIR in os.environ.get("PYTHONPATH", "").split(os.pathsep) else Path.cwd()


def _below(config_dir: Path, path: str) -> Path:
    return config_dir / PurePosixPath(path).relative_to(CONFIG_DIR)


def _steps(trainer: object) -> int | None:
    """Return the environment steps that a trainer has taken; None where it steps none by a collector."""
    collector = getattr(trainer, "collector", None)
    return None if collector is None else int(collector.stats().steps)
