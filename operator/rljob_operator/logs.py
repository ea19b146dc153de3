"""The log: one line an entry, as text for people or as JSON for machines. It holds no user's data and no secret."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

Format = Literal["text", "json"]

_KEYS = ("job", "namespace", "uid", "attempt")
"""What an entry may say of the job that it is about; given as ``extra``."""


def configure(form: Format, *, debug: bool) -> None:
    """Have all entries written to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    if not debug:
        handler.addFilter(_without_noise_of_kopf)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    for name, level in (("kopf", logging.WARNING), ("aiohttp", logging.WARNING), ("asyncio", logging.WARNING)):
        logging.getLogger(name).setLevel(logging.DEBUG if debug else level)


def _without_noise_of_kopf(record: logging.LogRecord) -> bool:
    """kopf tells of every request that it tries again, and shows its own insides where the server refused something.

    Of the first its session tells in fewer words; of the second the message says enough.
    """
    if record.name.partition(".")[0] != "kopf":
        return True
    record.exc_info, record.exc_text = None, None
    return not record.getMessage().startswith("Request attempt ")


def _about(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key in _KEYS if (value := getattr(record, key, None)) is not None}


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        about = " ".join(f"{key}={value}" for key, value in _about(record).items())
        line = f"{time} {record.levelname.lower()} {record.getMessage()}" + (f" [{about}]" if about else "")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **_about(record),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)
