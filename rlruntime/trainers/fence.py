"""The fence: of all attempts of a job, only the newest one's writes count, whatever the older ones still do.

After a node is lost, its trainer may live on and write, unseen, while a successor runs elsewhere. So each attempt has
a folder of its own, ``attempts/<n>/``, and an end that is settled once: ``fence/<n>/end.json``. It is put there by the
attempt itself, when it has finished the job (``Completed``: the completion record), or by a successor that takes over
(``Superseded``: it names the one checkpoint that counts of that attempt). Whoever comes second finds that out. What an
attempt commits after its end is in no record, so nobody ever reads it.

Both records are folders, filled under a hidden name and renamed: a rename to a name that is taken fails, which also
holds on network file systems, and needs no lock that dies with a node.

A successor takes over in this order, from the attempt before it downwards to the first that had taken over itself:

1. it copies the newest whole checkpoint, its hashes checked, and the history beside it into its own folder;
2. it settles that attempt's end, naming the checkpoint;
3. last of all it writes ``takeover.json``: from then on its folder is a whole run folder, and the newest.

An attempt that dies in between leaves ends that name what counts; the next one finds the same checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlruntime.attempts import ATTEMPTS_FOLDER, TAKEOVER_FILE, attempt_folder, attempt_numbers
from rlruntime.errors import EXIT_TRY_AGAIN, CheckpointError, RLJobError, StorageError
from rlruntime.trainers.durable import storage_errors, sync_folder, write_atomically
from rlruntime.trainers.run_folder import CHECKPOINTS_FOLDER, LOCK_FILE, POLICY_FOLDER, RESULT_FILE

FENCE_FOLDER = "fence"
END_FILE = "end.json"
OWNER_FILE = "owner.json"

_FORMAT_VERSION = 1
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
# What a successor doesn't copy: the checkpoints are chosen one by one, and the rest is written anew.
_OWN = frozenset({CHECKPOINTS_FOLDER, POLICY_FOLDER, RESULT_FILE, LOCK_FILE, OWNER_FILE, TAKEOVER_FILE})


class Fenced(RLJobError):
    """A newer attempt has taken over: this one must end, and write nothing more."""

    exit_code = EXIT_TRY_AGAIN


@dataclass(frozen=True)
class End:
    """How an attempt ended.

    Attributes:
        attempt: whose end it is.
        completed: it finished the job; else another took over.
        by: the attempt that took over; its own number where it finished.
        had_taken_over: whether the attempt had a run of its own by then.
        checkpoint: name of the checkpoint that counts of a superseded attempt; None where none does.
        digest: SHA-256 of that checkpoint's manifest.
        record: what a finished attempt has to say.
    """

    attempt: int
    completed: bool
    by: int
    had_taken_over: bool = True
    checkpoint: str | None = None
    digest: str | None = None
    record: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Takeover:
    """What an attempt found.

    Attributes:
        checkpoint: the copy in its own folder of the checkpoint to go on from; None to begin anew.
        source: the attempt that wrote it.
        completed: the end of the attempt that finished the job meanwhile.
    """

    checkpoint: Path | None = None
    source: int | None = None
    completed: End | None = None


def read_end(job: Path, number: int) -> End | None:
    """Return how an attempt ended, or None where that isn't settled.

    Raises:
        StorageError: the record can't be read.
    """
    path = job / FENCE_FOLDER / str(number) / END_FILE
    try:
        document = json.loads(path.read_bytes())
        return End(
            attempt=number,
            completed=document["state"] == "Completed",
            by=int(document["by"]),
            had_taken_over=bool(document["hadTakenOver"]),
            checkpoint=document.get("checkpoint"),
            digest=document.get("digest"),
            record=document.get("record"),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise StorageError(f"{path} is damaged; remove the job's folder to begin anew") from None


def find_completed(job: Path, up_to: int) -> End | None:
    """Return the end of the attempt that finished the job, among those with numbers up to ``up_to``, or None."""
    for number in range(up_to, -1, -1):
        end = read_end(job, number)
        if end is not None and end.completed:
            return end
    return None


class Attempt:
    """An attempt's place in the job's folder. Building it claims the place; nobody can claim it again.

    Args:
        job: the job's folder; made when absent.
        number: of the attempt, from 0.
        owner: who that is, for people who look.
        clock: seconds, monotonic.

    Attributes:
        folder: of the attempt's run.

    Raises:
        Fenced: the attempt has begun before, or a newer one has taken over.
        StorageError: the folder can't be made or written.
    """

    def __init__(
        self,
        job: Path,
        number: int,
        *,
        owner: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job, self.number, self.folder = job, number, attempt_folder(job, number)
        self._clock, self._checked_at = clock, clock()
        self._cleaned = False
        with storage_errors("make the job's folder", job):
            for folder in (job / ATTEMPTS_FOLDER, job / FENCE_FOLDER):
                folder.mkdir(parents=True, exist_ok=True)
            sync_folder(job)
        self.require_held()
        if not _put(self.folder, OWNER_FILE, {"attempt": number, **(owner or {})}):
            raise Fenced(f"attempt {number} has begun before, in {self.folder}; each number is used once")

    def require_held(self, max_age_s: float = 0.0) -> None:
        """Raise ``Fenced`` where a newer attempt has taken over.

        Args:
            max_age_s: a look that isn't older will do; on network file systems a look costs a round trip.
        """
        if max_age_s and self._clock() - self._checked_at < max_age_s:
            return
        if (self.job / FENCE_FOLDER / str(self.number)).exists():
            end = read_end(self.job, self.number)
            by = "itself, as the job is finished" if end is None or end.completed else f"attempt {end.by}"
            raise Fenced(f"attempt {self.number} was ended by {by}; it writes nothing more")
        self._checked_at = self._clock()

    def take_over(self) -> Takeover:
        """End all older attempts, and take over the newest checkpoint that counts.

        Raises:
            Fenced: a newer attempt has taken over.
            CheckpointError: there are checkpoints, and all are damaged.
            StorageError: the folder can't be read or written.
        """
        found = self._find()
        if found.completed is not None:
            return found
        self.require_held()
        adopted = None
        if found.checkpoint is not None:
            adopted = {"attempt": found.source, "checkpoint": found.checkpoint.name}
        text = json.dumps({"formatVersion": _FORMAT_VERSION, "attempt": self.number, "adopted": adopted})
        write_atomically(self.folder / TAKEOVER_FILE, f"{text}\n".encode())
        return found

    def complete(self, record: Mapping[str, Any]) -> None:
        """Put the completion record there, durably.

        Raises:
            Fenced: a newer attempt has taken over; the record doesn't count.
            StorageError: it can't be written.
        """
        end = {"state": "Completed", "by": self.number, "hadTakenOver": True, "record": dict(record)}
        if not _put(self.job / FENCE_FOLDER / str(self.number), END_FILE, end):
            self.require_held()

    def remove_superseded(self) -> None:
        """Remove the checkpoints and policies of older attempts, once this one has a checkpoint of its own.

        What else they left stays: their metrics and results say what happened. A failure is no harm.
        """
        if self._cleaned:
            return
        self._cleaned = True
        for number in attempt_numbers(self.job):
            if number < self.number:
                for name in (CHECKPOINTS_FOLDER, POLICY_FOLDER):
                    _remove(attempt_folder(self.job, number) / name)

    # Taking over.

    def _find(self) -> Takeover:
        for number in range(self.number - 1, -1, -1):
            end, copy = read_end(self.job, number), None
            if end is None:
                had_taken_over = (attempt_folder(self.job, number) / TAKEOVER_FILE).is_file()
                copy = self._copy_newest(number) if had_taken_over else None
                end = self._settle(number, copy, had_taken_over)
            if end.completed:
                return Takeover(completed=end)
            if end.by > self.number:
                raise Fenced(f"attempt {end.by} has taken over before attempt {self.number} could")
            if end.checkpoint is not None:
                if copy is None or end.by != self.number:
                    copy = self._copy_settled(end)
                self._copy_history(number)
                return Takeover(copy, number)
            if end.had_taken_over:
                break  # it had begun anew, so nothing before it counts
        return Takeover()

    def _settle(self, number: int, copy: Path | None, had_taken_over: bool) -> End:
        """End an older attempt, and return its end: another's, where that was faster."""
        document = {
            "state": "Superseded",
            "by": self.number,
            "hadTakenOver": had_taken_over,
            "checkpoint": None if copy is None else copy.name,
            "digest": None if copy is None else _digest(copy),
        }
        _put(self.job / FENCE_FOLDER / str(number), END_FILE, document)
        end = read_end(self.job, number)
        if end is None:
            raise StorageError(f"cannot end attempt {number} in {self.job / FENCE_FOLDER}; see that it can be written")
        return end

    def _copy_newest(self, number: int) -> Path | None:
        """Copy the newest whole checkpoint of an attempt; None where it has written none."""
        return self._copy_first(list(reversed(_checkpoints(self.job, number))))

    def _copy_settled(self, end: End) -> Path:
        """Copy the checkpoint that an end names, from where it still is whole; else an older one of the attempt."""
        name, theirs = str(end.checkpoint), _checkpoints(self.job, end.attempt)
        exact = [attempt_folder(self.job, end.by) / CHECKPOINTS_FOLDER / name, *theirs]
        exact = [path for path in exact if path.name == name and _digest(path) == end.digest]
        older = [path for path in reversed(theirs) if _frames(path.name) < _frames(name)]
        copy = self._copy_first([*exact, *older])
        if copy is None:
            raise CheckpointError(f"the checkpoint {name} of attempt {end.attempt} in {self.job} is gone")
        return copy

    def _copy_first(self, paths: list[Path]) -> Path | None:
        """Copy the first checkpoint that is whole, and return the copy; None where there is no checkpoint at all."""
        from rlruntime.trainers.checkpoint import copy_checkpoint  # with torch, which a finished job doesn't need

        damages: list[CheckpointError] = []
        for path in paths:
            try:
                return copy_checkpoint(path, self.folder / CHECKPOINTS_FOLDER)
            except CheckpointError as error:
                damages.append(error)
        if damages:
            raise damages[0]
        return None

    def _copy_history(self, number: int) -> None:
        """Copy what else the attempt left: metrics, what loggers remember, files of the user's. It may still write."""
        source = attempt_folder(self.job, number)
        with storage_errors("copy what is in", source):
            for entry in list(source.iterdir()):
                if entry.name in _OWN or (entry.name.startswith(".") and entry.name.endswith(".tmp")):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    _copy(entry, self.folder / entry.name)
            sync_folder(self.folder)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target, follow_symlinks=False)


def _put(folder: Path, name: str, document: Mapping[str, Any]) -> bool:
    """Make a folder with one file in one step; return whether it is ours: False where another was there before.

    Raises:
        StorageError: it can't be written.
    """
    token = uuid.uuid4().hex
    temporary = folder.with_name(f".{folder.name}-{token}")
    text = json.dumps({"formatVersion": _FORMAT_VERSION, **document, "token": token}, indent=2, allow_nan=False)
    with storage_errors("write", folder):
        try:
            temporary.mkdir()
            with open(temporary / name, "w", encoding="utf-8") as file:
                file.write(f"{text}\n")
                file.flush()
                os.fsync(file.fileno())
            sync_folder(temporary)
            try:
                os.rename(temporary, folder)
            except OSError as error:
                # A server that answered twice says that the name is taken, by ourselves.
                if error.errno not in (*_TAKEN, errno.ENOENT) or not folder.exists():
                    raise
                return _token(folder / name) == token
            sync_folder(folder.parent)
            return True
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _token(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_bytes())["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _checkpoints(job: Path, number: int) -> list[Path]:
    from rlruntime.trainers.checkpoint import list_checkpoints

    return list_checkpoints(attempt_folder(job, number) / CHECKPOINTS_FOLDER)


def _frames(name: str) -> int:
    return int(name.rpartition("-")[2])


def _digest(checkpoint: Path) -> str | None:
    """Return the SHA-256 of a checkpoint's manifest, which names that of every other file; None where it is gone."""
    try:
        return hashlib.sha256((checkpoint / "manifest.json").read_bytes()).hexdigest()
    except OSError:
        return None


def _remove(folder: Path) -> None:
    """Rename before removing, so that half a folder never bears its name."""
    trash = folder.with_name(f".trash-{folder.name}")
    with contextlib.suppress(OSError):
        os.rename(folder, trash)
    shutil.rmtree(trash, ignore_errors=True)
