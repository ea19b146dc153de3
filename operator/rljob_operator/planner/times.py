"""Times as they stand in the status: RFC 3339, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def stamp(time: datetime) -> str:
    """Return ``time`` in whole seconds, as Kubernetes writes it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stamp_ms(time: datetime) -> str:
    """Return ``time`` in milliseconds, for what is waited for."""
    return f"{time.astimezone(UTC).isoformat(timespec='milliseconds')[:-6]}Z"


def parse(text: str | None) -> datetime | None:
    """Return the time that ``text`` says; None where there is none, or it can't be read."""
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
