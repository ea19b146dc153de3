"""Checkpoints: folders ``step-<frames>/`` that are complete or absent, and a file ``latest`` that names one of them.

A folder holds ``manifest.json`` (format version, components, fingerprint, class of a resume, SHA-256 and size of every
file) and the files of `rlruntime.trainers.state_tree`. It is written under a hidden name, made durable, renamed, and
only then does ``latest`` move and the oldest folder go; a kill at any moment leaves the previous checkpoint as it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

import rlruntime
from rlruntime.attempts import find_run
from rlruntime.errors import CheckpointError, StorageError
from rlruntime.trainers.durable import storage_errors, sync_folder, write_atomically
from rlruntime.trainers.state_tree import BYTES_FILE, FileDigest, decode_state, save_state

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
LATEST_FILE = "latest"

ResumeClass = Literal["exact", "episodeRestart"]
Migration = Callable[[dict[str, Any], Any], tuple[dict[str, Any], Any]]

MIGRATIONS: dict[int, Migration] = {}
"""By format version: what makes a manifest and a state of that version those of the next one."""

_STEP_NAME = re.compile(r"^step-([0-9]+)$")
_TEMPORARY_PREFIX, _REPLACED_PREFIX, _TRASH_PREFIX = ".writing-", ".replaced-", ".trash-"


@dataclass(frozen=True)
class ComponentRecord:
    """One part of the job: its name in the manifest, such as `MLP`, its class as ``module:Class``, its settings."""

    type: str
    class_path: str
    config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, type_name: str, target: Any, config: Mapping[str, Any] | None = None) -> ComponentRecord:
        """Describe a class, a function, or the class of an object; ``config`` must be JSON."""
        described = target if hasattr(target, "__qualname__") else type(target)
        return cls(type_name, f"{described.__module__}:{described.__qualname__}", dict(config or {}))


@dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint says of itself, besides its state.

    Attributes:
        frames: frames collected when it was written; its name.
        iteration: iterations finished.
        resume_class: whether a resume continues bit for bit, or with new episodes.
        components: by path, such as ``policy.network``.
        fingerprint: what must be the same for an exact resume: device, library versions, threads, backend.
        created_by: distribution and version that wrote it.
        format_version: of the folder that was read.
    """

    frames: int
    iteration: int
    resume_class: ResumeClass
    components: dict[str, ComponentRecord] = field(default_factory=dict)
    fingerprint: dict[str, Any] = field(default_factory=dict)
    created_by: str = f"rljob {rlruntime.__version__}"
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and whose hashes are right."""

    path: Path
    info: CheckpointInfo
    state: Any


class CheckpointStore:
    """The checkpoints of one run, for the one process that writes them (a run folder's lock sees to that).

    Opening a store removes what killed writers left behind.

    Args:
        folder: where the ``step-<frames>`` folders go; made when absent.
        keep: newest checkpoints that stay.
        require_writable: called before a checkpoint is put in place; what it raises keeps it from that.

    Raises:
        StorageError: the folder can't be made or written.
    """

    def __init__(self, folder: Path, keep: int = 3, *, require_writable: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self.keep = keep
        self._require_writable = require_writable
        self._writing = threading.Lock()
        with storage_errors("open the checkpoint folder", folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._recover()

    def write(self, state: Any, info: CheckpointInfo, *, wait_s: float = 60.0) -> Path:
        """Write a checkpoint, move ``latest`` to it, remove the oldest; return its folder.

        ``state`` isn't changed, but must not change meanwhile: hand in ``snapshot_tree`` of live state when this runs
        in another thread.

        Args:
            wait_s: seconds to wait for another thread that is writing.

        Raises:
            TypeError: the state holds what a checkpoint can't; says where.
            StorageError: a full disk, no permission, another thread that doesn't end its writing. The previous
                checkpoint is untouched.
        """
        if not self._writing.acquire(timeout=wait_s):
            raise StorageError(f"cannot write a checkpoint to {self.folder}: another one is being written")
        try:
            return self._write(state, info)
        finally:
            self._writing.release()

    def _write(self, state: Any, info: CheckpointInfo) -> Path:
        final = self.folder / f"step-{info.frames}"
        temporary = self.folder / f"{_TEMPORARY_PREFIX}{final.name}"
        with storage_errors("write the checkpoint", final):
            try:
                self._require_writable()
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir()
                digests = save_state(state, temporary)
                _write_manifest(temporary, info, digests)
                sync_folder(temporary)
                self._require_writable()
                self._put_in_place(temporary, final)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            write_atomically(self.folder / LATEST_FILE, f"{final.name}\n".encode())
            self._prune()
        return final

    def rewind(self, checkpoint: Path) -> None:
        """Make ``checkpoint``, one of this store's, the latest, and remove those with more frames."""
        frames = _frames_of(checkpoint)
        with storage_errors("rewind the checkpoint folder", self.folder):
            write_atomically(self.folder / LATEST_FILE, f"{checkpoint.name}\n".encode())
            for path in list_checkpoints(self.folder):
                if _frames_of(path) > frames:
                    self._remove(path)

    def latest(self) -> Path | None:
        """Return the latest checkpoint's folder, or None."""
        return latest_checkpoint(self.folder)

    def _put_in_place(self, temporary: Path, final: Path) -> None:
        """Rename. An old folder of the name steps aside; after a kill in between, the next start brings it back."""
        replaced = self.folder / f"{_REPLACED_PREFIX}{final.name}"
        if final.exists():
            os.rename(final, replaced)
        os.rename(temporary, final)
        sync_folder(self.folder)
        if replaced.exists():
            self._remove(replaced)

    def _prune(self) -> None:
        latest = self.latest()
        checkpoints = list_checkpoints(self.folder)
        for path in checkpoints[: max(0, len(checkpoints) - self.keep)]:
            if path != latest:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        """Rename before removing, so that half a folder never bears a checkpoint's name."""
        trash = self.folder / f"{_TRASH_PREFIX}{path.name.lstrip('.')}"
        shutil.rmtree(trash, ignore_errors=True)
        os.rename(path, trash)
        shutil.rmtree(trash, ignore_errors=True)

    def _recover(self) -> None:
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith(_REPLACED_PREFIX):
                final = self.folder / path.name.removeprefix(_REPLACED_PREFIX)
                if not final.exists():
                    os.rename(path, final)
                    sync_folder(self.folder)
                    continue
            if path.name.startswith((_TEMPORARY_PREFIX, _TRASH_PREFIX, _REPLACED_PREFIX)):
                shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            (self.folder / f".{LATEST_FILE}.tmp").unlink()


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, fewest frames first; none where the folder is absent."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if path.is_dir() and _STEP_NAME.match(path.name)), key=_frames_of)


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint that ``latest`` names, else the one with most frames, else None."""
    checkpoints = list_checkpoints(folder)
    with contextlib.suppress(OSError, ValueError):
        named = folder / (folder / LATEST_FILE).read_text().strip()
        if named in checkpoints:
            return named
    return checkpoints[-1] if checkpoints else None


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is the folder of one checkpoint."""
    return (path / MANIFEST_FILE).is_file()


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint that a path means: itself, or the latest of a run folder or of a folder of checkpoints.

    Raises:
        CheckpointError: there is none.
    """
    if is_checkpoint(path):
        return path
    path = find_run(path)
    found = latest_checkpoint(path / "checkpoints") or latest_checkpoint(path)
    if found is None:
        problem = "holds no checkpoint" if path.exists() else "does not exist"
        raise CheckpointError(f"{path} {problem}", remedy="give a checkpoint folder (step-N) or a run folder with one")
    return found


def read_info(path: Path) -> CheckpointInfo:
    """Read what a checkpoint says of itself, without its state and without checking its files.

    Raises:
        CheckpointError: no manifest, one that can't be read, or one of a newer format.
    """
    return _info_of(_read_manifest(path), path)


def read_checkpoint(path: Path, *, own_run: bool = True) -> Checkpoint:
    """Read a checkpoint whole, check every hash, and migrate an older format.

    Args:
        path: the ``step-<frames>`` folder.
        own_run: False for another job's checkpoint: opaque environment snapshots, which may be pickles, stay unread and
            are None in the state.

    Raises:
        CheckpointError: a file is missing, cut short, or has another hash; the format is newer than this version's.
    """
    manifest = _read_manifest(path)
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise _damaged(path, f"{MANIFEST_FILE} lists no files")
    contents = {
        name: _read_verified(path, name, entry) for name, entry in files.items() if own_run or name != BYTES_FILE
    }
    try:
        state = decode_state(contents, with_bytes=own_run)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, str(error)) from None
    manifest, state = migrate(manifest, state)
    return Checkpoint(path, _info_of(manifest, path), state)


def copy_checkpoint(path: Path, folder: Path) -> Path:
    """Copy a checkpoint into a folder of checkpoints, see that the copy is whole, and make it the latest there.

    Files are linked where that is possible: nobody ever changes one.

    Returns:
        The copy.

    Raises:
        CheckpointError: a file is missing, cut short, or has another hash.
        StorageError: it can't be written.
    """
    temporary, final = folder / f"{_TEMPORARY_PREFIX}{path.name}", folder / path.name
    with storage_errors("copy the checkpoint to", final):
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            for name in (MANIFEST_FILE, *_read_manifest(path).get("files", ())):
                _link_or_copy(path, temporary, name)
            for name, entry in _read_manifest(temporary)["files"].items():
                _verify(temporary, name, entry)
            sync_folder(temporary)
            shutil.rmtree(final, ignore_errors=True)
            os.rename(temporary, final)
            sync_folder(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        write_atomically(folder / LATEST_FILE, f"{final.name}\n".encode())
    return final


def migrate(
    manifest: dict[str, Any], state: Any, *, to: int = FORMAT_VERSION, table: Mapping[int, Migration] | None = None
) -> tuple[dict[str, Any], Any]:
    """Bring a manifest and its state to format version ``to``, one version at a time.

    Raises:
        CheckpointError: there is no way from its version.
    """
    steps = MIGRATIONS if table is None else table
    while (version := manifest["formatVersion"]) != to:
        if version not in steps:
            raise CheckpointError(
                f"the checkpoint has format {version}, which can't be read any more",
                remedy="use the version of rljob that wrote it",
            )
        manifest, state = steps[version](manifest, state)
        manifest = {**manifest, "formatVersion": version + 1}
    return manifest, state


def require_same_components(checkpoint: Checkpoint, components: Mapping[str, ComponentRecord]) -> None:
    """See that a run has the components that the checkpoint was written with.

    Raises:
        CheckpointError: one differs, is missing or is new; names the first, and both sides.
    """
    theirs = checkpoint.info.components
    for name in sorted(theirs.keys() | components.keys()):
        old, new = theirs.get(name), components.get(name)
        if old != new:
            raise CheckpointError(
                f"the checkpoint {checkpoint.path} was written with {name} {_describe(old, new)}, "
                f"this run has {_describe(new, old)}",
                remedy="resume with the manifest that wrote it, or train into a new folder",
            )


def fingerprint_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what differs, as ``torch: 2.12.0 -> 2.13.0``, sorted; empty where an exact resume is possible."""
    return [
        f"{key}: {old.get(key, 'unset')} -> {new.get(key, 'unset')}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def _describe(record: ComponentRecord | None, other: ComponentRecord | None) -> str:
    if record is None:
        return "none"
    if other is None or record.type != other.type:
        return record.type
    if record.class_path != other.class_path:
        return f"{record.type} ({record.class_path})"
    differing = {k: v for k, v in sorted(record.config.items()) if other.config.get(k, _ABSENT) != v}
    return f"{record.type} {json.dumps(differing)}"


_ABSENT = object()


def _frames_of(path: Path) -> int:
    match = _STEP_NAME.match(path.name)
    if match is None:
        raise ValueError(f"{path} is not named like a checkpoint")
    return int(match.group(1))


def _write_manifest(folder: Path, info: CheckpointInfo, digests: Mapping[str, FileDigest]) -> None:
    document = {
        "formatVersion": FORMAT_VERSION,
        "createdBy": info.created_by,
        "frames": info.frames,
        "iteration": info.iteration,
        "resumeClass": info.resume_class,
        "components": {
            name: {"type": part.type, "class": part.class_path, "config": part.config}
            for name, part in info.components.items()
        },
        "fingerprint": info.fingerprint,
        "files": {
            name: {"sha256": digest["sha256"], "sizeBytes": digest["size_bytes"]}
            for name, digest in ((name, asdict(digest)) for name, digest in sorted(digests.items()))
        },
    }
    with open(folder / MANIFEST_FILE, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=2, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / MANIFEST_FILE).read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path} is no checkpoint: it has no {MANIFEST_FILE}", remedy=_other(path)) from None
    except OSError as error:
        raise CheckpointError(f"{path / MANIFEST_FILE} can't be read: {error.strerror}", remedy=_other(path)) from None
    except ValueError as error:
        raise _damaged(path, f"{MANIFEST_FILE} is not JSON ({error})") from None
    version = manifest.get("formatVersion") if isinstance(manifest, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _damaged(path, f"{MANIFEST_FILE} has no formatVersion")
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"the checkpoint {path} has format {version}, written by {manifest.get('createdBy', 'a newer version')}; "
            f"this version reads formats up to {FORMAT_VERSION}",
            remedy="upgrade rljob",
        )
    return cast("dict[str, Any]", manifest)


def _info_of(manifest: Mapping[str, Any], path: Path) -> CheckpointInfo:
    try:
        if manifest["resumeClass"] not in get_args(ResumeClass):
            raise ValueError(f"resumeClass {manifest['resumeClass']!r}")
        return CheckpointInfo(
            frames=int(manifest["frames"]),
            iteration=int(manifest["iteration"]),
            resume_class=manifest["resumeClass"],
            components={
                name: ComponentRecord(part["type"], part["class"], part["config"])
                for name, part in manifest["components"].items()
            },
            fingerprint=dict(manifest["fingerprint"]),
            created_by=str(manifest["createdBy"]),
            format_version=int(manifest["formatVersion"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, f"{MANIFEST_FILE} is not whole: {type(error).__name__} {error}") from None


def _read_verified(path: Path, name: str, entry: Any) -> bytes:
    """Return the bytes of one file after their size and hash were found right."""
    if Path(name).name != name or not isinstance(entry, dict):
        raise _damaged(path, f"{MANIFEST_FILE} names the file {name!r}")
    try:
        content = (path / name).read_bytes()
    except FileNotFoundError:
        raise _damaged(path, f"{name} is missing") from None
    except OSError as error:
        raise _damaged(path, f"{name} can't be read: {error.strerror}") from None
    if len(content) != entry.get("sizeBytes"):
        raise _damaged(path, f"{name} has {len(content)} bytes instead of {entry.get('sizeBytes')}")
    if hashlib.sha256(content).hexdigest() != entry.get("sha256"):
        raise _damaged(path, f"{name} does not have the SHA-256 that {MANIFEST_FILE} says")
    return content


def _link_or_copy(source: Path, target: Path, name: str) -> None:
    if Path(name).name != name:
        raise _damaged(source, f"{MANIFEST_FILE} names the file {name!r}")
    try:
        os.link(source / name, target / name)
    except FileNotFoundError:
        raise _damaged(source, f"{name} is missing") from None
    except OSError:  # another file system, or one without links
        shutil.copyfile(source / name, target / name)
        with open(target / name, "rb") as file:
            os.fsync(file.fileno())


def _verify(path: Path, name: str, entry: Any) -> None:
    """See that one file has the hash that the manifest says."""
    expected = entry.get("sha256") if isinstance(entry, dict) else None
    with open(path / name, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise _damaged(path, f"{name} does not have the SHA-256 that {MANIFEST_FILE} says")


def _other(path: Path) -> str:
    """Return what to do where the checkpoint at ``path`` can't be used."""
    others = [other for other in list_checkpoints(path.parent) if other.name != path.name]
    if not others:
        return "use another checkpoint, or train anew in another folder"
    return f"go on from another one in a new folder: --out NEW -o training.checkpoint.resumeFrom={others[-1]}"


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint {path} is damaged: {what}", remedy=_other(path))
