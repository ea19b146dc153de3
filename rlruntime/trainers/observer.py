"""What a run tells those who watch it: the command line, the metrics port."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlruntime.trainers.progress import Progress

Record = Mapping[str, float | int | str]


class Observer:
    """Base of observers; by itself it does nothing. Called by the thread that trains, so it must be quick."""

    def on_start(self, progress: Progress) -> None:
        """Everything is built or restored; training starts at ``progress``."""

    def on_record(self, record: Record) -> None:
        """An iteration ended; ``record`` is what the loggers get."""

    def on_checkpoint(self, path: Path) -> None:
        """A checkpoint was written."""

    def on_message(self, text: str) -> None:
        """One line that a person should read."""

    def on_phase(self, name: str) -> None:
        """A phase begins: ``collect``, ``learn``, ``evaluate``, ``checkpoint``; also called as a long evaluation goes
        on.
        """
