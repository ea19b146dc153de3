"""How a pod's process ends: an exit code, and a last message for Kubernetes, on every path that it chooses."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from rlruntime.cli.output import print_error
from rlruntime.errors import EXIT_FAULT, EXIT_TRY_AGAIN, EnvironmentFault, RLJobError, one_line
from rlruntime.spec.contract import TerminationMessage, TrainerReport


class Ending:
    """The last message of this process. The first one stays: what comes after it is a consequence.

    Args:
        path: of the file that Kubernetes reads; where it can't be written, that is said on standard error. None where
            nobody reads one.

    Attributes:
        report: returns a trainer's last numbers, or None where there are none; goes with the message.
    """

    def __init__(self, path: Path | None) -> None:
        self.report: Callable[[str], TrainerReport | None] = lambda phase: None
        self._path = path
        self._lock = threading.Lock()
        self._written = False

    def write(self, message: TerminationMessage) -> None:
        """Write the message, unless there is one. Safe to call from any thread."""
        with self._lock:
            if self._written or self._path is None:
                return
            self._written = True
            try:
                self._path.write_text(message.to_text(), encoding="utf-8", errors="replace")
            except OSError as error:
                print(f"rljob: can't write the last message to {self._path}: {error.strerror}", file=sys.stderr)

    def fail(self, error: BaseException) -> int:
        """Show an error, make it the last message, and return the exit code."""
        known = _as_known(error)
        _show_where(error)
        print_error(known)
        # What was an exception of another kind keeps its name, unless it became an error of ours that says more.
        reason = type(error).__name__ if type(known) is RLJobError else type(known).__name__
        phase = "Fenced" if known.exit_code == EXIT_TRY_AGAIN else "Failed"
        self.write(TerminationMessage(reason, str(known), self.report(phase)))
        return known.exit_code


def run_to_its_end(path: Path | None, work: Callable[[Ending], int]) -> int:
    """Do a role's work and return the exit code; whatever it raises becomes the last message."""
    ending = Ending(path)
    try:
        return work(ending)
    except SystemExit as error:  # by the user's code; a trainer that has not trained to its end did not succeed
        code = error.code if isinstance(error.code, int) and 0 < error.code < 256 else EXIT_FAULT
        words = f"the job's own code ended the process by sys.exit({error.code!r})"
        ending.write(TerminationMessage("SystemExit", words, ending.report("Failed")))
        print_error(RLJobError(words))
        return code
    except Exception as error:
        return ending.fail(error)


def _show_where(error: BaseException) -> None:
    """Show where an error was raised, unless its one line says all: a pod can't be run again with --debug."""
    if isinstance(error, EnvironmentFault) and error.worker_traceback:
        print(f"Where the environment raised:\n{error.worker_traceback}", file=sys.stderr)
    elif not isinstance(error, RLJobError) or error.__cause__ is not None:
        traceback.print_exception(error)


def _as_known(error: BaseException) -> RLJobError:
    """Return the error that says the same in one line."""
    from rlruntime.cli.main import missing_extra

    if isinstance(error, RLJobError):
        return error
    if isinstance(error, ModuleNotFoundError) and (extra := missing_extra(error, "rljob role")) is not None:
        return extra
    return RLJobError(one_line(f"{type(error).__name__}: {error}"))
