"""Numbers and times as people read them."""

from __future__ import annotations

_AGES = ((365 * 86400, "y"), (86400, "d"), (3600, "h"), (60, "m"))


def number(value: float) -> str:
    """Return a reward or the like with three digits or so: 0.96, 21.0, -1234.5."""
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def short(value: float) -> str:
    """Return three digits or so: 950, 12.3k, 4.50M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            scaled = value / size
            return f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f}{unit}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Return minutes and seconds, with hours where there are any: 0:49, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def age(seconds: float) -> str:
    """Return a time in its largest unit, rounded down: 59s, 12m, 5h, 3d, 2y. No age is below 0s."""
    whole = max(0, int(seconds))
    for size, unit in _AGES:
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"
