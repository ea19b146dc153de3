"""Where the attempts of a job lie in its folder on a cluster's storage, for whoever reads a run.

``<job>/attempts/<n>/`` is a whole run folder, written by attempt `n` alone. It counts from the moment that it holds
``takeover.json``: then the attempt has taken over what its predecessor left.
"""

from __future__ import annotations

from pathlib import Path

ATTEMPTS_FOLDER = "attempts"
TAKEOVER_FILE = "takeover.json"
"""In an attempt's folder: what it went on from."""


def attempt_folder(job: Path, number: int) -> Path:
    """Return the folder of an attempt."""
    return job / ATTEMPTS_FOLDER / str(number)


def attempt_numbers(job: Path) -> list[int]:
    """Return the attempts that have a folder, in order; none where there is no such job."""
    folder = job / ATTEMPTS_FOLDER
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def newest_attempt(job: Path) -> Path | None:
    """Return the folder of the newest attempt that counts, or None."""
    for number in reversed(attempt_numbers(job)):
        folder = attempt_folder(job, number)
        if (folder / TAKEOVER_FILE).is_file():
            return folder
    return None


def find_run(path: Path) -> Path:
    """Return the run folder that a path means: of a job's folder its newest attempt's, else the path itself."""
    return newest_attempt(path) or path
