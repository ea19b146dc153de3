"""Where the time of an iteration goes, summed as plain integers of a monotonic clock."""

from __future__ import annotations

from time import perf_counter_ns
from types import TracebackType


class Phase:
    """The clock of one phase; ``with phase:`` adds what passes inside. Phases nest, a phase within itself doesn't."""

    __slots__ = ("_now_ns", "_started_ns", "elapsed_ns", "flushed_ns")

    def __init__(self) -> None:
        self.elapsed_ns = 0
        self.flushed_ns = 0
        self._started_ns = 0
        self._now_ns = perf_counter_ns

    def __enter__(self) -> None:
        if self._started_ns:
            raise RuntimeError("a phase can't be entered while it is running")
        self._started_ns = self._now_ns()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.elapsed_ns += self._now_ns() - self._started_ns
        self._started_ns = 0


class PhaseTimers:
    """Timers by phase name.

    ``with timers("collect"):`` times a coarse phase; a hot loop sums its own ``perf_counter_ns`` differences and calls
    ``add_ns`` once. Not thread-safe: a timer belongs to the thread that drives the loop.
    """

    __slots__ = ("_phases",)

    def __init__(self) -> None:
        self._phases: dict[str, Phase] = {}

    def __call__(self, name: str) -> Phase:
        """Return the clock of the phase, to be used in a ``with`` statement."""
        phase = self._phases.get(name)
        if phase is None:
            phase = self._phases[name] = Phase()
        return phase

    def within(self, name: str) -> PhaseTimers:
        """Return timers whose phases are parts of the phase ``name``: ``loss`` of them is ``<name>/loss`` of these."""
        return _PartTimers(self, name)

    def add(self, name: str, seconds: float) -> None:
        """Add ``seconds`` that were measured elsewhere."""
        self(name).elapsed_ns += round(seconds * 1e9)

    def add_ns(self, name: str, nanoseconds: int) -> None:
        """Add nanoseconds that were measured elsewhere."""
        self(name).elapsed_ns += nanoseconds

    def flush(self) -> dict[str, float]:
        """Return the seconds of every phase since the last flush; a phase that is still running counts when it ends."""
        seconds = {}
        for name, phase in self._phases.items():
            seconds[name] = (phase.elapsed_ns - phase.flushed_ns) * 1e-9
            phase.flushed_ns = phase.elapsed_ns
        return seconds

    def totals(self) -> dict[str, float]:
        """Return the seconds of every phase since the start."""
        return {name: phase.elapsed_ns * 1e-9 for name, phase in self._phases.items()}


class _PartTimers(PhaseTimers):
    """Phases within a phase of other timers."""

    __slots__ = ("_prefix", "_whole")

    def __init__(self, whole: PhaseTimers, name: str) -> None:
        self._whole, self._prefix = whole, f"{name}/"
        super().__init__()

    def __call__(self, name: str) -> Phase:
        return self._whole(self._prefix + name)
