"""The table of jobs: columns that fit a terminal of any width, or every value in full for a pipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.cells import cell_len

from rlruntime.cli.cluster.jobs import JobView
from rlruntime.cli.numbers import age, duration, number, short

_GAP = "  "
_NOTHING = "-"
_BAR_CELLS = 20
_EASY_CELLS = 16
_EIGHTHS = " ▏▎▍▌▋▊▉"
_PHASE_STYLES = {
    "Running": "green", "Pending": "yellow", "Restarting": "yellow", "Suspending": "yellow", "Suspended": "dim",
    "Failed": "red", "Succeeded": "green dim",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """Text of exactly its column's width, and a style of rich."""

    text: str
    style: str = ""


Line = list[Cell]


@dataclass(frozen=True)
class Column:
    """A column of the table on a terminal."""

    title: str
    text: Callable[[JobView, datetime], str]
    """Empty where there is nothing to say."""
    right: bool = False
    least: int | None = None
    """Cells down to which its text may be cut; None: it is never cut."""
    optional: bool = False
    """Left out while no job has anything to say there."""


def _progress(job: JobView, _now: datetime) -> str:
    return "" if job.percent is None else f"{job.percent}%"


def _reason(job: JobView, _now: datetime) -> str:
    return "" if job.reason in (job.phase, "Completed") else job.reason


def _known(value: float | None, words: Callable[[float], str]) -> str:
    return "" if value is None else words(value)


_NAMESPACE = Column("NAMESPACE", lambda job, _: job.namespace, least=8)
_NAME = Column("NAME", lambda job, _: job.name, least=12)
_PHASE = Column("PHASE", lambda job, _: job.phase or _NOTHING, least=10)
_REASON = Column("REASON", _reason, least=13, optional=True)
_PROGRESS = Column("PROGRESS", _progress, least=9)
_FRAMES = Column("FRAMES", lambda job, _: _known(job.frames, short), right=True)
_REWARD = Column("REWARD", lambda job, _: _known(job.reward, number), right=True)
_RATE = Column("FPS", lambda job, _: _known(job.frames_per_second, short), right=True)
_LEFT = Column("LEFT", lambda job, _: _known(job.remaining_seconds, duration), right=True, optional=True)
_RESTARTS = Column("RST", lambda job, _: str(job.restarts), right=True)
_AGE = Column("AGE", lambda job, now: _known(job.age_s(now), age), right=True)

_ORDER = (_NAMESPACE, _NAME, _PHASE, _REASON, _PROGRESS, _FRAMES, _REWARD, _RATE, _LEFT, _RESTARTS, _AGE)
_FIRST_TO_GO = (_LEFT, _FRAMES, _RESTARTS, _RATE, _AGE, _REASON, _NAMESPACE, _REWARD, _PROGRESS, _PHASE)


def table(
    jobs: Sequence[JobView], now: datetime, width: int, *, all_namespaces: bool = False, unicode: bool = True
) -> list[Line]:
    """Return the header and a line for each job. No line has more than ``width`` cells, however little that is.

    Columns are shortened first; then those that tell the least are left out.

    Args:
        all_namespaces: show which namespace a job is in.
        unicode: the terminal shows bars and ellipses; else signs of ASCII stand for them.
    """
    texts = {
        column: [column.text(job, now) for job in jobs]
        for column in _ORDER
        if (column is not _NAMESPACE or all_namespaces)
    }
    columns = [column for column in _ORDER if column in texts and (not column.optional or any(texts[column]))]
    widths = _fit(columns, {column: _natural(column, texts[column]) for column in columns}, width)
    header = [
        [Cell(_pad(_cut(column.title, cells, unicode), cells, column), "bold")] for column, cells in widths.items()
    ]
    rows = [
        [_cells(column, job, texts[column][number_of_job], cells, unicode) for column, cells in widths.items()]
        for number_of_job, job in enumerate(jobs)
    ]
    return [_joined(row) for row in (header, *rows)]


def plain(jobs: Sequence[JobView], now: datetime) -> list[str]:
    """Return the header and a line for each job, with the same columns always, and nothing shortened.

    A dash stands for what isn't known, so that every line has as many words as the header.
    """
    titles = ["NAMESPACE", "NAME", "PHASE", "REASON", "PERCENT", "FRAMES", "TOTAL", "REWARD", "FPS", "RESTARTS", "AGE"]
    rows = [titles]
    for job in jobs:
        row = [
            job.namespace,
            job.name,
            job.phase,
            job.reason,
            _known(job.percent, str),
            _known(job.frames, str),
            _known(job.total_frames, str),
            _known(job.reward, lambda value: f"{value:.6g}"),
            _known(job.frames_per_second, lambda value: f"{value:.6g}"),
            str(job.restarts),
            _known(job.age_s(now), age),
        ]
        rows.append([text.replace(" ", "_") or _NOTHING for text in row])
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(titles))]
    padded = [[text + " " * (cells - cell_len(text)) for text, cells in zip(row, widths, strict=True)] for row in rows]
    return ["   ".join(row).rstrip() for row in padded]


def text_of(line: Line) -> str:
    """Return a line without its styles."""
    return "".join(cell.text for cell in line).rstrip()


def counts(jobs: Sequence[JobView]) -> str:
    """Return how many jobs there are, and in which phases: ``3 jobs, 2 Running, 1 Succeeded``."""
    found: dict[str, int] = {}
    for job in jobs:
        phase = job.phase or "not seen yet"
        found[phase] = found.get(phase, 0) + 1
    order = [*_PHASE_STYLES, *sorted(found.keys() - _PHASE_STYLES.keys())]
    parts = [f"{found[phase]} {phase}" for phase in order if phase in found]
    return ", ".join(["1 job" if len(jobs) == 1 else f"{len(jobs)} jobs", *parts]) if jobs else "no jobs"


def cut_line(text: str, width: int, *, unicode: bool = True) -> str:
    """Return ``text`` in at most ``width`` cells."""
    return _cut(text, width, unicode)


def _natural(column: Column, texts: list[str]) -> int:
    if column is _PROGRESS:
        return _BAR_CELLS + len(" 100%")
    return max((cell_len(text) for text in (column.title, *texts)), default=0)


def _fit(columns: list[Column], natural: dict[Column, int], width: int) -> dict[Column, int]:
    """Return the columns that have room, and their widths."""
    kept = list(columns)
    for leaves in (None, *_FIRST_TO_GO):
        if leaves in kept:
            kept.remove(leaves)
        gaps = len(_GAP) * (len(kept) - 1)
        easy = _LEFT in kept or _FRAMES in kept
        least = {column: _least(column, natural[column], easy=easy) for column in kept}
        if sum(least.values()) + gaps <= width:
            widths = {column: natural[column] for column in kept}
            while sum(widths.values()) + gaps > width:  # the one that has the most to give gives a cell
                longest = max(kept, key=lambda column: (widths[column] - least[column], column is _PROGRESS))
                widths[longest] -= 1
            return widths
    return {_NAME: max(0, min(natural[_NAME], width))}


def _least(column: Column, natural: int, *, easy: bool) -> int:
    """Return the cells that a column needs, more where none is to be squeezed for others that are nice to have."""
    if column.least is None:
        return natural
    return min(natural, max(column.least, _EASY_CELLS) if easy else column.least)


def _cells(column: Column, job: JobView, text: str, cells: int, unicode: bool) -> list[Cell]:
    """Return what stands in a column, ``cells`` wide together."""
    if column is _PROGRESS:
        return _bar(job, cells, unicode)
    cut = _cut_middle(text, cells, unicode) if column is _NAME else _cut(text, cells, unicode)
    return [Cell(_pad(cut, cells, column), _style(column, job))]


def _bar(job: JobView, cells: int, unicode: bool) -> list[Cell]:
    """Return a bar with its percents: ``████░░░░  40%``."""
    if job.percent is None:
        return [Cell(" " * cells)]
    length = cells - len(" 100%")
    eighths = min(100, max(0, job.percent)) * length * 8 // 100
    whole, rest = divmod(eighths, 8)
    full = "█" * whole + (_EIGHTHS[rest] if rest else "") if unicode else "#" * whole
    empty = ("░" if unicode else ".") * (length - len(full))
    style = {"Failed": "red", "Succeeded": "green dim", "Running": "green"}.get(job.phase, "yellow")
    return [Cell(full, style), Cell(empty, "dim"), Cell(f"{job.percent:>4}%")]


def _joined(row: list[list[Cell]]) -> Line:
    line: Line = []
    for column in row:
        line += [Cell(_GAP), *column] if line else column
    return line


def _style(column: Column, job: JobView) -> str:
    if column in (_PHASE, _REASON):
        return _PHASE_STYLES.get(job.phase, "")
    if column is _RESTARTS and job.restarts:
        return "yellow"
    return "dim" if column in (_NAMESPACE, _AGE, _LEFT) else ""


def _pad(text: str, cells: int, column: Column) -> str:
    space = " " * (cells - cell_len(text))
    return space + text if column.right else text + space


def _cut(text: str, cells: int, unicode: bool) -> str:
    if cell_len(text) <= cells:
        return text
    mark = "…" if unicode else "~"
    return _first(text, cells - 1) + mark if cells > 0 else ""


def _cut_middle(text: str, cells: int, unicode: bool) -> str:
    """Names of a series differ at their end."""
    if cell_len(text) <= cells or cells < 5:
        return _cut(text, cells, unicode)
    end = (cells - 1) // 2
    return f"{_first(text, cells - 1 - end)}{'…' if unicode else '~'}{_first(text[::-1], end)[::-1]}"


def _first(text: str, cells: int) -> str:
    """Return as much of the beginning as has room; a character that is two cells wide isn't cut."""
    used = 0
    for position, character in enumerate(text):
        used += cell_len(character)
        if used > cells:
            return text[:position]
    return text
