"""The kernel's locks of open file descriptions, on ranges of a file's bytes. Linux only.

Such a lock belongs to an open file, not to a process: threads that open the file anew exclude each other as processes
do, and the kernel frees it with the last descriptor of that opening, whatever ends its holder. Taking and freeing one
also orders what processors see of memory.
"""

from __future__ import annotations

import fcntl
import os
import struct

SHARED, ALONE, NONE = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
_FLOCK = struct.Struct("@hhqqi4x")


def try_lock(descriptor: int, kind: int, first: int, count: int = 1) -> bool:
    """Ask for a lock once, without waiting; return whether the kernel agreed.

    Args:
        descriptor: of the open file that is to hold it.
        kind: `SHARED`, `ALONE`, or `NONE` to give it up, which is always agreed to.
        first: the first byte of the range.
        count: bytes of the range.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, first, count, 0))
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as POSIX has it
        return False
    return True
