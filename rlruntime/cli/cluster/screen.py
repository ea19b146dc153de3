"""The live display: lines at the bottom of the terminal that are painted anew in their place.

It has no screen of its own and hides no cursor, so that a process that is stopped or killed leaves nothing to repair.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from rlruntime.cli.cluster.table import Line


def show_lines(stream: TextIO, lines: Sequence[Line]) -> None:
    """Print lines once, in colours where the terminal has any."""
    console = _console(stream)
    for line in lines:
        console.print(as_text(line), soft_wrap=True)


def shows_unicode(stream: TextIO) -> bool:
    """Return whether a stream can say bars and ellipses."""
    try:
        "█░…".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class Screen:
    """Lines that are painted anew, from ``with`` on; the last ones stay.

    Args:
        stream: a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._console = _console(stream)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop", redirect_stdout=False)
        self._width = self._console.width

    def __enter__(self) -> Self:
        self._live.start()
        self._console.show_cursor(True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, tb: TracebackType | None) -> None:
        self._live.stop()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines of now."""
        return self._console.width, self._console.height

    def paint(self, lines: Sequence[Line]) -> None:
        """Show ``lines`` in place of what was shown before."""
        if self._console.width != self._width:  # the terminal has wrapped what stands there in its own way
            self._width = self._console.width
            self._console.clear()
        self._live.update(Group(*(as_text(line) for line in lines)), refresh=True)


def _console(stream: TextIO) -> Console:
    return Console(file=stream, highlight=False)


def as_text(line: Line) -> Text:
    """Return a line with its styles."""
    text = Text(no_wrap=True, overflow="crop", end="\n")
    for cell in line:
        text.append(cell.text, style=cell.style)
    text.rstrip()
    return text
