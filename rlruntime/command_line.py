"""What all command lines of the project share: errors of usage in one line, and quiet ends.

Loads nothing but the standard library, so that Ctrl-C is heard from the first moment on.
"""

from __future__ import annotations

import argparse
import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

from rlruntime.errors import EXIT_FAULT, EXIT_IO, EXIT_SIGINT, shorten

_T = TypeVar("_T")

EXIT_USAGE = 2  # argparse's own
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and where the help is."""

    def error(self, message: str) -> NoReturn:
        """End the process with exit code 2."""
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def option_type(words: str) -> Callable[[Callable[[str], _T]], Callable[[str], _T]]:
    """Make a function the type of an option: where it raises a ValueError, ``words`` say what to give."""

    def decorate(convert: Callable[[str], _T]) -> Callable[[str], _T]:
        @functools.wraps(convert)
        def checked(text: str) -> _T:
            try:
                return convert(text)
            except ValueError:
                raise argparse.ArgumentTypeError(f"{words} (got {shorten(repr(text))})") from None

        return checked

    return decorate


def whole_number(text: str, least: int, most: int | None = None) -> int:
    """Return the number that ``text`` is in decimal digits.

    Raises:
        ValueError: it is none, or not between ``least`` and ``most``.
    """
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    number = int(text)
    if number < least or (most is not None and number > most):
        raise ValueError(text)
    return number


def seconds_of(text: str, *, zero: bool) -> float:
    """Return a finite number of seconds that isn't negative.

    Args:
        text: such as ``2.5``.
        zero: whether it may be 0.

    Raises:
        ValueError: it is none.
    """
    seconds = float(text)
    if not (0.0 <= seconds < float("inf")) or (seconds == 0.0 and not zero):
        raise ValueError(text)
    return seconds


def run_quietly(program: str, work: Callable[[], int]) -> int:
    """Return the exit code of ``work``, or what ended it: Ctrl-C, a reader that went away, a standard output that takes
    no more.
    """
    try:
        try:
            return work()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return EXIT_FAULT
    except KeyboardInterrupt:
        return EXIT_SIGINT
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_ROOM:  # a file's own error has its name
            raise
        _drop_output()
        print(f"{program}: error: can't write the output: {error.strerror}; make room for it", file=sys.stderr)
        return EXIT_IO


def _drop_output() -> None:
    """Let what is still to be written go nowhere, so that the interpreter's end says nothing of it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
