"""What a run shows while it goes: a live bar on a terminal, lines in a pipe, JSON lines, or nothing."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TextIO

from rlruntime.cli.numbers import duration, number, short
from rlruntime.metrics import names
from rlruntime.metrics.json_values import finite

LogFormat = Literal["text", "json"]
Record = Mapping[str, Any]

_LIVE_EVERY_S = 0.2
_LINE_EVERY_S = 5.0
_RATE_WINDOW_S = 10.0
_SHOWN_PHASES = 4


class Reporter(Protocol):
    """Told of everything by the thread that trains; shows what is worth it. Never raises over its stream."""

    def iteration(self, record: Record) -> None:
        """Take the record of an iteration; see `rlruntime.metrics.names`."""

    def message(self, text: str) -> None:
        """Show a line."""

    def close(self, summary: str = "", result: Mapping[str, Any] | None = None) -> None:
        """Show where the run got to and ``summary``, and leave the terminal as it was. May be called twice.

        Args:
            summary: last words for a person.
            result: what a program wants to know; only shown by the JSON format.
        """


def make_reporter(
    total_frames: int,
    *,
    quiet: bool,
    log_format: LogFormat,
    stream: TextIO,
    title: str = "",
    start_frames: int = 0,
    fields: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Reporter:
    """Return the reporter for a stream: nothing when ``quiet``, JSON lines, a live bar on a terminal, else plain lines.

    Args:
        total_frames: frames after which training ends.
        start_frames: frames a resumed run begins with.
        fields: of each JSON line, in front of its own.
        clock: seconds, monotonic.
    """
    if quiet:
        return _Silent()
    progress = _Progress(total_frames, start_frames, clock)
    if log_format == "json":
        return _JsonLines(stream, progress, fields or {})
    if stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
        return _LiveBar(stream, progress, title)
    return _Lines(stream, progress)


@dataclass
class _Progress:
    """The numbers behind every display."""

    total_frames: int
    start_frames: int
    clock: Callable[[], float]
    frames: int = 0
    reward: float | None = None
    evaluation: float | None = None
    evaluation_frames: int = 0
    phases_s: dict[str, float] = field(default_factory=dict)
    samples: deque[tuple[float, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.frames = self.start_frames
        self.started_s = self.clock()
        self.samples.append((self.started_s, self.start_frames))

    def update(self, record: Record) -> None:
        """Keep what the next display needs; a few dictionary look-ups."""
        self.frames = record.get(names.FRAMES, self.frames)
        reward = record.get(names.EPISODE_REWARD_MEAN)
        if reward is not None:
            self.reward = reward
        evaluation = record.get(names.EVALUATION_REWARD_MEAN)
        if evaluation is not None:
            self.evaluation, self.evaluation_frames = evaluation, self.frames
        for key, value in record.items():
            if key.startswith(names.TIME_PREFIX) and (phase := names.whole_phase_of(key)) is not None:
                self.phases_s[phase] = self.phases_s.get(phase, 0.0) + value

    def sample(self, now_s: float) -> None:
        """Remember a point of the rate; points older than the window go, but for one."""
        self.samples.append((now_s, self.frames))
        while len(self.samples) > 2 and self.samples[1][0] < now_s - _RATE_WINDOW_S:
            self.samples.popleft()

    @property
    def fraction(self) -> float:
        return min(1.0, self.frames / max(1, self.total_frames))

    @property
    def frames_per_second(self) -> float:
        (then_s, then_frames), (now_s, now_frames) = self.samples[0], self.samples[-1]
        return (now_frames - then_frames) / (now_s - then_s) if now_s > then_s else 0.0

    @property
    def mean_frames_per_second(self) -> float:
        passed_s = self.samples[-1][0] - self.started_s
        return (self.frames - self.start_frames) / passed_s if passed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        rate = self.frames_per_second
        return max(0, self.total_frames - self.frames) / rate if rate > 0 else None

    def split(self) -> list[tuple[str, float]]:
        """Return the largest phases and their percent of all time that was timed, in the order of an iteration."""
        total_s = sum(self.phases_s.values())
        if total_s <= 0:
            return []
        largest = sorted(self.phases_s, key=lambda phase: -self.phases_s[phase])[:_SHOWN_PHASES]
        shares = [(phase, 100 * self.phases_s[phase] / total_s) for phase in self.phases_s if phase in largest]
        return [(phase, percent) for phase, percent in shares if percent >= 0.5]


class _Silent:
    def iteration(self, record: Record) -> None:
        pass

    def message(self, text: str) -> None:
        pass

    def close(self, summary: str = "", result: Mapping[str, Any] | None = None) -> None:
        pass


class _Written:
    """A stream that goes quiet when its reader went away: a run doesn't end because nobody watches."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream

    def line(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            _discard_rest(self._stream)
            self._stream = None


def _discard_rest(stream: TextIO) -> None:
    """Let what the stream still holds go nowhere; else Python writes it at exit, and complains."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


class _Throttled:
    """What lines and JSON lines share: one display per ``_LINE_EVERY_S``, and one for each evaluation."""

    def __init__(self, stream: TextIO, progress: _Progress) -> None:
        self._out = _Written(stream)
        self._progress = progress
        self._next_s = progress.started_s + 1.0  # the first one soon, to show that it runs
        self._shown_frames = -1
        self._closed = False

    def iteration(self, record: Record) -> None:
        progress = self._progress
        progress.update(record)
        now_s = progress.clock()
        if now_s < self._next_s and names.EVALUATION_REWARD_MEAN not in record:
            return
        self._next_s = now_s + _LINE_EVERY_S
        progress.sample(now_s)
        self._shown_frames = progress.frames
        self._show(record)

    def _show(self, record: Record) -> None:
        raise NotImplementedError


class _Lines(_Throttled):
    def message(self, text: str) -> None:
        self._out.line(text)

    def close(self, summary: str = "", result: Mapping[str, Any] | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        progress = self._progress
        if progress.frames > progress.start_frames and self._shown_frames != progress.frames:
            progress.sample(progress.clock())
            self._show({})
        if summary:
            self._out.line(summary)

    def _show(self, record: Record) -> None:
        self._out.line("  ".join([f"{_count(self._progress)} ({_percent(self._progress)})", *_facts(self._progress)]))


class _JsonLines(_Throttled):
    def __init__(self, stream: TextIO, progress: _Progress, fields: Mapping[str, Any]) -> None:
        super().__init__(stream, progress)
        self._fields = dict(fields)

    def message(self, text: str) -> None:
        self._write({"event": "message", "message": text})

    def close(self, summary: str = "", result: Mapping[str, Any] | None = None) -> None:
        if not self._closed:
            self._closed = True
            self._write({"event": "end", "message": summary, names.FRAMES: self._progress.frames, **(result or {})})

    def _show(self, record: Record) -> None:
        self._write({"event": "iteration", **record})

    def _write(self, document: Mapping[str, Any]) -> None:
        self._out.line(json.dumps(finite({**self._fields, **document}), allow_nan=False, ensure_ascii=False))


class _LiveBar:
    """Two lines that stay at the bottom of the terminal: the bar with rate and time left, and what is learned."""

    def __init__(self, stream: TextIO, progress: _Progress, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._progress = progress
        self._title = title
        self._next_s = progress.started_s
        self._closed = False
        self._console = Console(file=stream, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()
        self._console.show_cursor(True)  # a process that is killed can't give a hidden one back

    def iteration(self, record: Record) -> None:
        progress = self._progress
        progress.update(record)
        now_s = progress.clock()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LIVE_EVERY_S
        progress.sample(now_s)
        self._refresh()

    def message(self, text: str) -> None:
        if self._closed:
            return
        try:
            self._console.print(text, markup=False, soft_wrap=True)
        except (OSError, ValueError):
            self._closed = True

    def close(self, summary: str = "", result: Mapping[str, Any] | None = None) -> None:
        if self._closed:
            return
        self._progress.sample(self._progress.clock())
        if self._progress.frames > self._progress.start_frames:
            self._refresh(final=True)
        try:
            self._live.stop()
            if summary:
                self._console.print(summary, markup=False, soft_wrap=True)
        except (OSError, ValueError):
            pass
        self._closed = True

    def _refresh(self, final: bool = False) -> None:
        if self._closed:
            return
        try:
            self._live.update(self._render(final), refresh=True)
        except (OSError, ValueError):
            self._closed = True

    def _render(self, final: bool) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        progress = self._progress
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        count = f"{short(progress.frames)} / {short(progress.total_frames)}"
        tail = Text(f"{_percent(progress):>4}  {count}  ", style="default")
        rate = progress.mean_frames_per_second if final else progress.frames_per_second
        tail.append(f"{short(rate)} frames/s  ", style="cyan")
        left_s = progress.left_s
        took_s = progress.samples[-1][0] - progress.started_s
        tail.append(f"took {duration(took_s)}" if final else f"left {'-:--' if left_s is None else duration(left_s)}")
        colour = "green" if progress.fraction >= 1 else "blue"
        gauge = ProgressBar(total=1.0, completed=progress.fraction, complete_style=colour, finished_style="green")
        bar.add_row(Text(self._title, style="bold"), gauge, tail)
        facts = Text("  ", overflow="ellipsis", no_wrap=True)
        for fact, style in _learning(progress):
            facts.append(fact + "   ", style=style)
        facts.append(_split(progress), style="dim")
        return Group(bar, facts)


def _facts(progress: _Progress) -> list[str]:
    """Return the words of a plain line that follow the count."""
    left_s = progress.left_s
    words = [f"{short(progress.frames_per_second)} frames/s"]
    if left_s is not None and progress.fraction < 1:
        words.append(f"left {duration(left_s)}")
    words += [fact for fact, _ in _learning(progress)]
    split = _split(progress)
    return [*words, split] if split else words


def _learning(progress: _Progress) -> list[tuple[str, str]]:
    facts = []
    if progress.reward is not None:
        facts.append((f"reward {number(progress.reward)}", "default"))
    if progress.evaluation is not None:
        facts.append((f"evaluation {number(progress.evaluation)} at {short(progress.evaluation_frames)}", "magenta"))
    return facts


def _split(progress: _Progress) -> str:
    return " · ".join(f"{phase} {percent:.0f}%" for phase, percent in progress.split())


def _count(progress: _Progress) -> str:
    return f"{progress.frames:,} / {progress.total_frames:,} frames"


def _percent(progress: _Progress) -> str:
    return f"{int(progress.fraction * 100)}%"  # 100% is said at the end only
