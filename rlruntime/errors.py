"""Errors that a user meets, and the exit code each one ends a command with.

Every error is one line that says what is wrong, where, and what to do. Exit codes are those of ``sysexits.h``: 78 for a
configuration that can never work, 75 for what may work when tried again, 74 for input and output, 1 for the rest.
This module imports the standard library alone, so that every part of the project may raise these errors.
"""

from __future__ import annotations

from typing import Any

EXIT_OK = 0
EXIT_FAULT = 1
EXIT_IO = 74
EXIT_TRY_AGAIN = 75
EXIT_CONFIG = 78
EXIT_SIGINT = 130
EXIT_SIGTERM = 143

_MAX_VALUE_CHARS = 120


class RLJobError(Exception):
    """The root of the project's errors. ``str(error)`` is the one line that is shown to a user."""

    exit_code = EXIT_FAULT


class ConfigError(RLJobError):
    """A manifest, an option or a file that can never work as it stands.

    Args:
        problem: what is wrong, without a full stop.
        field: path of the field in the manifest, such as ``spec.training.env.id``; empty when there is none.
        value: the offending value, shown shortened; leave it out when there is none.
        remedy: what the user should do, as an imperative without a full stop.
        source: where the field stands, such as ``job.yaml:12``; empty when that isn't known.
    """

    exit_code = EXIT_CONFIG
    _NO_VALUE: Any = object()

    def __init__(
        self, problem: str, *, field: str = "", value: Any = _NO_VALUE, remedy: str = "", source: str = ""
    ) -> None:
        self.problem, self.field, self.remedy, self.source = problem, field, remedy, source
        self._value = value
        where = (f"{source}: " if source else "") + (f"{field}: " if field else "")
        written = "null" if value is None else repr(value)  # as YAML has it
        shown = "" if value is ConfigError._NO_VALUE else f" (got {shorten(written)})"
        hint = f"; {remedy}" if remedy else ""
        super().__init__(one_line(f"{where}{problem}{shown}{hint}"))

    def within(self, path: str) -> ConfigError:
        """Return the error of an object as that of the section of the manifest at ``path`` which describes the object:
        an argument such as ``batch_size`` is the field ``batchSize`` there.
        """
        first, *rest = self.field.split("_")
        field = first + "".join(word.capitalize() for word in rest)
        return self.at(f"{path}.{field}" if field else path)

    def at(self, field: str) -> ConfigError:
        """Return the same error of another field."""
        return ConfigError(self.problem, field=field, value=self._value, remedy=self.remedy, source=self.source)


class MissingExtraError(ConfigError):
    """A command or a field needs a package that isn't installed."""

    def __init__(self, what: str, *, package: str, extra: str, field: str = "") -> None:
        super().__init__(
            f"{what} needs the package {package!r}, which is not installed",
            field=field,
            remedy=f"install it with: pip install '{extra}'",
        )


class StorageError(RLJobError):
    """A file could not be written or read: a full disk, a folder without permission."""

    exit_code = EXIT_IO


class CheckpointError(ConfigError):
    """A checkpoint that can't be used: a wrong hash, a newer format, another network."""


class EnvironmentFault(RLJobError):
    """An environment raised, died, hung, or returned numbers that can't be learned from."""

    def __init__(self, message: str, *, worker_traceback: str = "") -> None:
        self.worker_traceback = worker_traceback
        super().__init__(one_line(message))


def shorten(text: str, limit: int = _MAX_VALUE_CHARS) -> str:
    """Return ``text`` cut in the middle to at most ``limit`` characters."""
    if len(text) <= limit:
        return text
    half = (limit - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


_CONTROLS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), " ")


def one_line(text: str) -> str:
    """Return ``text`` with every run of white space, line ends included, made one space.

    Characters that control a terminal, or turn the direction of writing, count as white space: others' words are shown.
    """
    return " ".join(text.translate(_CONTROLS).split())
