"""What `rljob top` fills a terminal with: counts, the table, and what keeps it from saying what is so."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rlruntime.cli.cluster.jobs import JobView
from rlruntime.cli.cluster.table import Cell, Line, counts, cut_line, table

_UNSEEN_S = 30.0
"""Age at which a job without a status is worth a word."""
_SILENT_S = 120.0
"""Seconds without news of a running job that are worth a word; there are some every 15."""


def frame(
    jobs: Sequence[JobView],
    now: datetime,
    width: int,
    height: int,
    *,
    place: str,
    all_namespaces: bool = False,
    trouble: str = "",
    unicode: bool = True,
) -> list[Line]:
    """Return lines of at most ``width`` cells, fewer than ``height`` of them where that is four or more.

    Args:
        jobs: in their order; those that have no room are counted.
        now: in the time zone that is shown.
        place: what is looked at, in words.
        trouble: what is wrong with the connection; empty where nothing is.
        unicode: the terminal shows bars and ellipses.
    """
    notes = notes_of(jobs, now, trouble)[: max(0, height - 4)]
    room = max(1, height - 3 - len(notes))  # of the counts, the header, and the line that the cursor is in
    shown = jobs if len(jobs) <= room else jobs[: room - 1]
    lines = [[Cell(cut_line(f"{place}, {now:%H:%M:%S}: {counts(jobs)}", width, unicode=unicode), "bold")]]
    if shown:
        lines += table(shown, now, width, all_namespaces=all_namespaces, unicode=unicode)
    if len(shown) < len(jobs):
        lines.append([Cell(cut_line(f"and {len(jobs) - len(shown)} more", width, unicode=unicode), "dim")])
    return [*lines, *([Cell(cut_line(note, width, unicode=unicode), "yellow")] for note in notes)]


def notes_of(jobs: Sequence[JobView], now: datetime, trouble: str = "") -> list[str]:
    """Return what keeps the table from saying what is so: a server that is away, operators that say nothing."""
    notes = [f"not up to date: {trouble}; trying again"] if trouble else []
    unseen = [job for job in jobs if not job.phase and job.ours and (job.age_s(now) or 0) > _UNSEEN_S]
    if unseen:
        notes.append(f"no operator has seen {_named(unseen)}; does one run for this namespace?")
    silent = [job for job in jobs if job.silent_s(now) > _SILENT_S]
    if silent and not trouble:
        notes.append(f"no news of {_named(silent)} for {_SILENT_S / 60:.0f} minutes; does the operator run?")
    return notes


def _named(jobs: Sequence[JobView]) -> str:
    more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return f"{jobs[0].name}{more}"
