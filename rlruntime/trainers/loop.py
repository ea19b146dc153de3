"""The training loop: collect, learn, evaluate, save, until there is a reason to stop.

What an iteration is, the method says (`rlruntime.trainers.methods`): on policy, one rollout and the update from it; off
policy, some frames and the updates that go with them. Between iterations lies a boundary: there the whole state is
consistent, evaluations run (they change nothing of it), checkpoints are written, and a copy of the state is kept in
memory. A signal is answered at the next boundary or in the middle of an evaluation. Where an iteration takes longer
than the grace period, the copy of a recent boundary is what is saved; a resumed run does that iteration again, with
the same numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from rlruntime.errors import RLJobError
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.policies.artifact import POLICY_FILE, save_policy
from rlruntime.policies.products import make_products
from rlruntime.registry import build
from rlruntime.seeding import CONFIRMATION, EVALUATION, FINAL_EVALUATION, stream_seed, stream_seeds
from rlruntime.spec.manifest import RLJob
from rlruntime.trainers.beside import EvaluationBeside
from rlruntime.trainers.callbacks import CallbackList, Stop
from rlruntime.trainers.checkpoint import (
    CheckpointInfo,
    CheckpointStore,
    find_checkpoint,
    fingerprint_differences,
    read_checkpoint,
    require_same_components,
)
from rlruntime.trainers.evaluation import EvaluationResult, EvaluationStopped, Evaluator
from rlruntime.trainers.loggers import JsonLinesLogger, Logger, LoggerContext, Loggers
from rlruntime.trainers.methods.collecting import open_environments
from rlruntime.trainers.methods.make import make_method, make_policy
from rlruntime.trainers.methods.method import Hooks
from rlruntime.trainers.observer import Observer, Record
from rlruntime.trainers.progress import Progress, first_due, next_due
from rlruntime.trainers.result import Outcome, Resumed, describe_result, timings_table
from rlruntime.trainers.run_folder import RunFolder
from rlruntime.trainers.run_state import RunState, load_initial_policy
from rlruntime.trainers.setup import (
    effective_training,
    fingerprint,
    require_same_seed,
    resolve_device,
    resolve_num_threads,
    restores_environments,
)

_WRITABLE_AGE_S = 1.0  # seconds after which the loop looks anew whether it may still write
_SNAPSHOT_SHARE = 0.01  # of the time may go into the copies that signals fall back to
_MAX_COPY_BYTES = 1 << 28  # a larger state, such as that with a long replay buffer, isn't held twice


class Interrupted(Exception):
    """A signal asks the run to stop; raised at a boundary."""


@dataclass
class _Snapshot:
    """A copy of the state at a boundary, ready to be written."""

    state: dict[str, Any] | None  # None once it is written, where it is too large to be kept
    info: CheckpointInfo
    written: bool = False


class Trainer:
    """Runs the training section of a manifest on this machine.

    Building it writes nothing; `run` does, into a run folder.

    Args:
        job: what to run; any algorithm but Custom.
        observer: told what happens.
        stop_signal: asked at every phase; not None once a signal asks to stop.
        acknowledge_stop: called once the loop has noticed, before it writes its state.

    Attributes:
        job: the effective manifest.
        method: what an iteration is.
        policy, collector, algorithm: its parts; callbacks may use them.
        progress: counters.

    Raises:
        ConfigError: a part can't be built from the manifest.
        EnvironmentFault: an environment failed as it was built.
    """

    def __init__(
        self,
        job: RLJob,
        *,
        observer: Observer | None = None,
        stop_signal: Callable[[], int | None] = lambda: None,
        acknowledge_stop: Callable[[], None] = lambda: None,
    ) -> None:
        training = effective_training(job.spec.training)
        self.job = job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})})
        self.training, self.observer = training, observer or Observer()
        self.stop_signal, self._acknowledge_stop = stop_signal, acknowledge_stop
        self.progress, self.timers = Progress(), PhaseTimers()
        self.callbacks = CallbackList(
            build("callback", part, field=f"spec.training.callbacks[{number}]")
            for number, part in enumerate(training.callbacks)
        )
        environments = open_environments(training)
        try:
            policy = make_policy(training, environments.spaces)
            self.device = resolve_device(training.device, policy)
            self.num_threads = resolve_num_threads(training.num_threads, policy)
            self.policy = policy.to(self.device)
            self.method = make_method(training, environments, self.policy, self._hooks(), self.timers)
        except BaseException:
            environments.close()
            raise
        self.algorithm, self.collector = self.method.algorithm, self.method.collector
        self.evaluator = Evaluator(
            training.env, episodes=training.evaluation.episodes, deterministic=training.evaluation.deterministic
        )
        self.beside = EvaluationBeside(training, self.policy) if training.evaluation.beside else None
        self.state = RunState(self.method, self.callbacks, self.progress, training.seed, self.beside)
        self._snapshot: _Snapshot | None = None
        self._next_snapshot_at = 0.0
        self._write_lock = threading.Lock()
        self._store: CheckpointStore | None = None
        self._folder: RunFolder | None = None
        self._loggers: Loggers | None = None
        self._last_checkpoint: Path | None = None
        self._resumed: Resumed | None = None
        self._went_on: tuple[Path, CheckpointInfo] | None = None  # the checkpoint of this run that it goes on from
        self._fresh = self._began = False
        self._started = 0.0
        self._ended = False

    def run(self, folder: RunFolder, *, resume: bool = False) -> dict[str, Any]:
        """Train, and leave the manifest, metrics, checkpoints, the policy and the result in ``folder``.

        Args:
            folder: of the run, locked by the caller.
            resume: continue from its latest checkpoint.

        Returns:
            What ``result.json`` says.

        Raises:
            RLJobError: training failed; the state of a recent boundary is saved, and ``result.json`` says what
            happened.
        """
        threads_before = torch.get_num_threads()
        torch.set_num_threads(self.num_threads)
        self._started, self._folder = perf_counter(), folder
        failure: BaseException | None = None
        try:
            with self.timers("start"):
                self._store = CheckpointStore(
                    folder.checkpoints, self.training.checkpoint.keep, require_writable=folder.require_writable
                )
                self._resumed = self._restore(folder, resume)
                self._fresh = self._resumed is None
                if self._fresh or self._reason_to_end() is None:  # a finished run keeps the manifest it was run with
                    folder.write_manifest(self.job.to_document())
                self._loggers = self._open_loggers(folder, self._resumed)
            outcome, final = self._train(self._loggers)
            result = self._result(outcome, final)
            self._ended = True
            folder.write_result(result)
            if self.training.log_timings:
                self.observer.on_message(timings_table(result["time"]))
            return result
        except BaseException as error:
            failure = error
            if isinstance(error, Exception):
                self._fail(folder, error)
            raise
        finally:
            torch.set_num_threads(threads_before)
            self._shut_down(failure)

    def close(self) -> None:
        """Close the environments; `run` does it by itself. May be called twice."""
        self._close_evaluators()
        self.method.close()

    def _close_evaluators(self) -> None:
        self.evaluator.close()
        if self.beside is not None:
            self.beside.close()

    def save_last_snapshot(self, wait_s: float = 60.0) -> None:
        """Write the state of the last boundary that was copied; safe to call from another thread while the loop is
        stuck in a phase.

        Args:
            wait_s: most seconds to wait for a checkpoint that another thread is writing; after them that one must do.
        """
        snapshot, store, folder = self._snapshot, self._store, self._folder
        if snapshot is None or store is None or folder is None:
            return
        if not self._write_lock.acquire(timeout=wait_s):
            return
        try:
            if not snapshot.written and snapshot.state is not None:
                if self._loggers is not None:
                    self._loggers.sync()
                self._last_checkpoint = store.write(snapshot.state, snapshot.info)
                save_policy(self.policy, folder.path / POLICY_FILE, snapshot.state["policy"])
                snapshot.written = True
        finally:
            self._write_lock.release()

    def abandon(self, signum: int) -> None:
        """Save the last copy of the state and say so in the result, for a process that is about to be ended by a
        signal.

        A run that has ended stays as it is: only its curves were missing.
        """
        if self._ended:
            return
        self.save_last_snapshot(wait_s=0.5)
        if self._folder is not None and self._began:
            self._folder.write_result(self._result(Outcome.stopped(signum)))

    # The loop.

    def _train(self, loggers: Loggers) -> tuple[Outcome, EvaluationResult | None]:
        try:
            with self.timers("start"):
                self._note_stop(self.callbacks.on_setup(self))
                self.method.start()
                self.collector.snapshot()  # the first one proves that it can be restored, and takes longer
                self._schedule()
                self.observer.on_start(self.progress)
            while True:
                self._boundary()
                self._raise_if_interrupted()
                if self._evaluation_due():
                    self._evaluate(loggers)
                    continue
                outcome = self._reason_to_end()
                if outcome is not None:
                    self._take_in(loggers)
                    break
                self._iterate(loggers)
            final = self._final_evaluation() if outcome.status == "Succeeded" else None
        except (Interrupted, EvaluationStopped):
            outcome, final = self._interrupted(), None
        self._save()
        return outcome, final

    def _iterate(self, loggers: Loggers) -> None:
        """One iteration: collect, learn, log."""
        progress, started, frames_before = self.progress, perf_counter(), self.progress.frames
        learned, episodes = self.method.iterate(frames_before / self.training.total_frames, self.timers)
        with self.timers("log"):
            progress.iteration += 1
            progress.frames = self.method.num_frames
            progress.add_episodes(episodes)
            record: dict[str, float | int | str] = {
                "iteration": progress.iteration,
                "frames": progress.frames,
                "episodes": progress.episodes,
                **progress.episode_means(),
                **learned,
            }
            self._note_stop(self.callbacks.on_update_end(self, record))
            record["time/frames_per_second"] = (progress.frames - frames_before) / (perf_counter() - started)
            self._log(loggers, record)

    def _log(self, loggers: Loggers, record: dict[str, float | int | str]) -> None:
        record.update({f"time/{name}_s": seconds for name, seconds in self.timers.flush().items()})
        self.progress.num_records += 1
        loggers.log(record)
        self.observer.on_record(record)

    def _evaluation_due(self) -> bool:
        due = self.progress.next_evaluation
        return due is not None and self.progress.frames >= due

    def _evaluate(self, loggers: Loggers) -> None:
        """Evaluate, in turn or beside what comes next, and stop the run where there is reason to."""
        settings, progress = self.training.evaluation, self.progress
        is_stopping = bool(progress.stop_reason)
        self._take_in(loggers)
        if self.beside is None or is_stopping or progress.reaches(settings.stop_at_reward) or self._is_at_end:
            self._evaluate_in_turn(loggers)
            return
        if not progress.stop_reason:
            with self.timers("evaluate"):
                self.beside.submit(self.policy, progress.frames)
        progress.next_evaluation = next_due(progress.next_evaluation, settings.every_frames, progress.frames)

    def _take_in(self, loggers: Loggers) -> None:
        """Let the evaluation beside training count, and wait for it; where none is under way, do nothing."""
        if self.beside is not None and self.beside.is_pending:
            self.observer.on_phase("evaluate")
            with self.timers("evaluate"):
                result = self.beside.take(lambda: self.stop_signal() is not None)
            self._note_evaluation(loggers, result)

    def _evaluate_in_turn(self, loggers: Loggers) -> None:
        """Evaluate, a second time on fresh seeds where the reward to stop at is reached."""
        settings, progress = self.training.evaluation, self.progress
        goal = settings.stop_at_reward
        with self.timers("evaluate"):
            result = self._run_evaluation(EVALUATION)
            confirmation = None
            if goal is not None and result.mean >= goal:
                confirmation = self._run_evaluation(CONFIRMATION, progress.evaluations)
        progress.next_evaluation = next_due(progress.next_evaluation, settings.every_frames, progress.frames)
        self._note_evaluation(loggers, result, confirmation)

    def _note_evaluation(
        self, loggers: Loggers, result: EvaluationResult, confirmation: EvaluationResult | None = None
    ) -> None:
        """Count and log an evaluation, and stop the run where there is reason to."""
        settings, progress = self.training.evaluation, self.progress
        goal = settings.stop_at_reward
        progress.add_evaluation(result.mean)
        record = {"iteration": progress.iteration, "frames": progress.frames, **result.record()}
        if confirmation is not None and goal is not None:
            record["evaluation/confirmation_mean"] = confirmation.mean
            if confirmation.mean >= goal:
                words = f"mean reward {result.mean:.4g}, and {confirmation.mean:.4g} on fresh seeds, reached {goal:.4g}"
                self._note_stop(Stop(words), "RewardReached")
                progress.stop_goal = goal
        if settings.patience is not None and progress.without_better >= settings.patience:
            words = f"no better mean reward than {progress.best_reward:.4g} in {settings.patience} evaluations"
            self._note_stop(Stop(words), "NoImprovement")
        with self.timers("log"):
            self._log(loggers, record)
            self._note_stop(self.callbacks.on_evaluation_end(self, result))

    def _run_evaluation(self, stream: str, *indices: int) -> EvaluationResult:
        self.observer.on_phase("evaluate")
        seed = self.training.seed
        return self.evaluator.evaluate(
            self.policy,
            stream_seeds(seed, stream, self.training.evaluation.episodes, *indices),
            noise_seed=stream_seed(seed, f"{stream}-noise", *indices),
            stop_requested=lambda: self.stop_signal() is not None,
        )

    def _final_evaluation(self) -> EvaluationResult:
        with self.timers("evaluate"):
            return self._run_evaluation(FINAL_EVALUATION)

    # Boundaries: checkpoints and the copies that signals fall back to.

    def _schedule(self) -> None:
        """Settle when the first evaluation and checkpoint are due: as the checkpoint says, unless a resumed run's
        manifest asks for them earlier, or no more.
        """
        progress, training = self.progress, self.training
        progress.next_evaluation = first_due(
            progress.next_evaluation, training.evaluation.every_frames, progress.frames
        )
        progress.next_checkpoint = first_due(
            progress.next_checkpoint, training.checkpoint.every_frames, progress.frames
        )

    def _boundary(self) -> None:
        """Between two iterations: write a checkpoint where one is due, else keep a copy of the state now and then."""
        progress, every = self.progress, self.training.checkpoint.every_frames
        self._require_folder().require_writable(_WRITABLE_AGE_S)
        self._began = True
        if progress.next_checkpoint is not None and progress.frames >= progress.next_checkpoint:
            progress.next_checkpoint = next_due(progress.next_checkpoint, every, progress.frames)
            self._save()
        elif self.method.state_bytes <= _MAX_COPY_BYTES and (
            self._snapshot is None or perf_counter() >= self._next_snapshot_at
        ):
            with self.timers("snapshot"):
                self._take_snapshot()

    def _take_snapshot(self) -> _Snapshot:
        started = perf_counter()
        with self._write_lock:  # another thread may be writing the last copy, parts of which are used again
            state, resume_class = self.state.capture(copy=self.method.state_bytes <= _MAX_COPY_BYTES)
        info = CheckpointInfo(
            frames=self.progress.frames,
            iteration=self.progress.iteration,
            resume_class=resume_class,
            components=self.method.components(),
            fingerprint=self._fingerprint(),
        )
        self._snapshot = _Snapshot(state, info)
        now = perf_counter()
        self._next_snapshot_at = now + (now - started) / _SNAPSHOT_SHARE
        return self._snapshot

    def _save(self) -> None:
        """Write a checkpoint of this boundary."""
        self.observer.on_phase("checkpoint")
        before = self._last_checkpoint
        with self.timers("checkpoint"):
            self.progress.checkpoints += 1
            snapshot = self._take_snapshot()
            self.save_last_snapshot()
            if self.method.state_bytes > _MAX_COPY_BYTES:
                snapshot.state = None
            path = self._last_checkpoint
            if path is not None and path != before:
                self._note_stop(self.callbacks.on_checkpoint(self, path))
                self.observer.on_checkpoint(path)

    # Reasons to stop.

    def _reason_to_end(self) -> Outcome | None:
        progress = self.progress
        if progress.stop_reason:
            return Outcome("Succeeded", progress.stop_reason, progress.stop_message)
        if self._is_at_end:
            return Outcome("Succeeded", "TotalFrames", "all frames collected")
        return None

    @property
    def _is_at_end(self) -> bool:
        return self.progress.frames >= self.training.total_frames

    def _note_stop(self, stop: Stop | None, reason: str = "Callback") -> None:
        if stop is not None and not self.progress.stop_reason:
            self.progress.stop_reason, self.progress.stop_message = reason, stop.reason

    def _raise_if_interrupted(self) -> None:
        if self.stop_signal() is not None:
            raise Interrupted

    def _interrupted(self) -> Outcome:
        number = self.stop_signal()
        self._acknowledge_stop()
        return Outcome.stopped(number)

    def _hooks(self) -> Hooks:
        active = self.callbacks.active
        return Hooks(
            phase=self.observer.on_phase,
            rollout=self._on_rollout if "on_rollout_end" in active else None,
            batch=self._on_batch if "on_batch" in active else None,
            before_step=self._before_step if "on_before_optimizer_step" in active else None,
        )

    def _on_rollout(self, rollout: Any) -> None:
        self._note_stop(self.callbacks.on_rollout_end(self, rollout.to_tensordict()))

    def _on_batch(self, batch: Any) -> None:
        self._note_stop(self.callbacks.on_batch(self, batch))

    def _before_step(self) -> None:
        self._note_stop(self.callbacks.on_before_optimizer_step(self))

    # Beginning and end.

    def _fingerprint(self) -> dict[str, Any]:
        products = make_products(self.policy.actor_head.weight).name
        return fingerprint(self.device, self.num_threads, self.training, products)

    def _restore(self, folder: RunFolder, resume: bool) -> Resumed | None:
        settings = self.training.checkpoint
        if resume:
            path = self._require_store().latest()
            if path is None:
                folder.start_anew()
                self.observer.on_message(f"{folder.path} holds no checkpoint yet; starting anew")
            else:
                return self._restore_from(path, folder, own_run=True)
        if settings.resume_from is not None:
            return self._restore_from(find_checkpoint(Path(settings.resume_from)), folder, own_run=False)
        if settings.init_from is not None:
            load_initial_policy(self.policy, Path(settings.init_from))
            self.collector.publish()
        return None

    def _restore_from(self, path: Path, folder: RunFolder, *, own_run: bool) -> Resumed:
        checkpoint = read_checkpoint(path, own_run=own_run)
        require_same_components(checkpoint, self.method.components())
        own = self._fingerprint()
        if own_run:
            require_same_seed(checkpoint.info.fingerprint, own)
        differences = fingerprint_differences(checkpoint.info.fingerprint, own)
        same_environments = restores_environments(checkpoint.info.fingerprint, own)
        resume_class = self.state.restore(checkpoint, environments=same_environments)
        if self.progress.stop_goal != self.training.evaluation.stop_at_reward:
            self.progress.forget_reward_reached()
        if own_run:
            self._went_on = path, checkpoint.info
            self._require_store().rewind(path)
            folder.truncate_metrics(self.progress.num_records)
            if not (folder.path / POLICY_FILE).exists():
                save_policy(self.policy, folder.path / POLICY_FILE)
        else:
            self.progress.num_records = 0
            self.progress.stop_reason = self.progress.stop_message = ""  # why the other job ended doesn't end this one
        resumed = Resumed(
            str(path), "episodeRestart" if differences else resume_class, self.progress.frames, differences
        )
        words = f"resumed at {self.progress.frames:,} frames from {path} ({resumed.resume_class})"
        if differences:
            words += f"; numbers may differ from an uninterrupted run: {', '.join(differences)}"
        if resume_class == "episodeRestart":
            cause = "could not be saved"
            if not same_environments:
                cause = "is of other environments"
            elif not own_run:
                cause = "is read from a run's own folder only"
            words += f"; the environments' state {cause}, so their episodes start anew"
        self.observer.on_message(words)
        return resumed

    def _open_loggers(self, folder: RunFolder, resumed: Resumed | None) -> Loggers:
        context = LoggerContext(
            folder.path,
            self.job.to_document(),
            resumed_frames=None if resumed is None else resumed.frames,
            resumed_records=self.progress.num_records,
        )
        loggers: list[Logger] = [JsonLinesLogger(folder.metrics)]
        for number, part in enumerate(self.training.loggers):
            loggers.append(build("logger", part, context, field=f"spec.training.loggers[{number}]"))
        return Loggers(loggers)

    def _result(self, outcome: Outcome, final: EvaluationResult | None = None) -> dict[str, Any]:
        path, saved = self._went_on or (None, None)  # while this process has saved nothing, that is what is left
        return describe_result(
            self.job,
            outcome,
            progress=self.progress,
            final=final,
            resumed=self._resumed,
            saved=saved if self._snapshot is None else self._snapshot.info,
            checkpoint=self._relative(self._last_checkpoint or path),
            elapsed_s=perf_counter() - self._started,
            phase_seconds=self.timers.totals(),
            fingerprint=self._fingerprint(),
        )

    def _relative(self, path: Path | None) -> str | None:
        folder = self._folder
        return None if path is None or folder is None else str(path.relative_to(folder.path))

    def _fail(self, folder: RunFolder, error: Exception) -> None:
        """Tell callbacks, save the last copy of the state, and say in the result what happened; never hide
        ``error``.
        """
        self.callbacks.on_exception(self, error)
        never_began = not self._began and (self._loggers is None or folder.result.exists())
        if never_began:  # an earlier run's result stays as it is
            if self._fresh and not folder.result.exists():
                folder.discard()
            return
        try:
            self.save_last_snapshot()
            folder.write_result(self._result(Outcome.failed(error)))
        except RLJobError as second:
            error.add_note(str(second))

    def _shut_down(self, failure: BaseException | None) -> None:
        """Close everything, whatever else fails on the way; what does becomes a note on ``failure`` where there is one,
        so that it never hides the cause.
        """
        closers: list[Callable[[], None]] = [lambda: self.callbacks.on_shutdown(self)]
        if self._loggers is not None:
            closers.append(self._loggers.close)
        closers += [self._close_evaluators, self.method.close]
        failures: list[Exception] = []
        for close in closers:
            try:
                close()
            except Exception as error:
                failures.append(error)
        if not failures:
            return
        shown = failures.pop(0) if failure is None else failure
        for other in failures:
            shown.add_note(f"while the run was shut down: {type(other).__name__}: {other}")
        if failure is None:
            raise shown

    def _require_folder(self) -> RunFolder:
        if self._folder is None:
            raise RuntimeError("the trainer has no run folder yet")
        return self._folder

    def _require_store(self) -> CheckpointStore:
        if self._store is None:
            raise RuntimeError("the trainer has no run folder yet")
        return self._store


__all__ = ["Interrupted", "Outcome", "Record", "Trainer"]
