"""Writing files so that a kill, a full disk or a power cut leaves the old content or the new, and one line of error."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlruntime.errors import StorageError, one_line

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_PERMISSION = {errno.EACCES, errno.EPERM, errno.EROFS}
_IN_THE_WAY = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY}


@contextmanager
def storage_errors(action: str, path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a StorageError, such as ``cannot write PATH: No space left on device; ...``."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StorageError(one_line(f"cannot {action} {path}: {reason}; {_remedy(error.errno)}")) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the content of ``path`` in one step and make it durable.

    Raises:
        StorageError: the folder can't be written or is full; the old content is untouched.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with storage_errors("write", path):
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable; file systems that can't do that for folders are left alone."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _remedy(number: int | None) -> str:
    if number in _NO_SPACE:
        return "free space there, or choose another folder"
    if number in _NO_PERMISSION:
        return "choose a folder that you may write"
    if number in _IN_THE_WAY:
        return "remove what stands in its way, or choose another folder"
    return "see that the folder exists and can be written"
