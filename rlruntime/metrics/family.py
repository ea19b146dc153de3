"""A metric as data: what is exported, the page in docs and the checks of dashboards and alerts are made of it.

This module also settles that a process of ours exports no ``_created`` series, which would double those of counters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call]

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Family:
    """One metric, with all its series.

    Attributes:
        name: as it is scraped, that of a histogram without ``_bucket``, ``_sum`` and ``_count``. It ends with the unit,
            and that of a counter with ``_total``.
        help: one sentence.
        labels: what tells its series apart; what they mean stands with the names of each half.
        when: what a process must do so that it is exported; empty for always.
        buckets: upper bounds of a histogram's buckets.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    when: str = ""
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its series in Prometheus."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)

    def counter(self, registry: CollectorRegistry) -> Counter:
        """Return the counter, registered."""
        return Counter(self.name, self.help, self.labels, registry=registry)

    def gauge(self, registry: CollectorRegistry) -> Gauge:
        """Return the gauge, registered."""
        return Gauge(self.name, self.help, self.labels, registry=registry)

    def histogram(self, registry: CollectorRegistry) -> Histogram:
        """Return the histogram, registered."""
        return Histogram(self.name, self.help, self.labels, registry=registry, buckets=self.buckets)


PROCESS = (
    Family("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds."),
    Family("process_resident_memory_bytes", "gauge", "Resident memory size in bytes."),
    Family("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes."),
    Family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds."),
    Family("process_open_fds", "gauge", "Number of open file descriptors."),
    Family("process_max_fds", "gauge", "Maximum number of open file descriptors."),
)
"""What every process of ours says of itself, as processes of others do. Linux only. Children aren't counted in."""


def export_process(registry: CollectorRegistry, info: Family, version: str) -> None:
    """Register `PROCESS`, and ``info``: 1, with the version as its only label."""
    ProcessCollector(registry=registry)
    info.gauge(registry).labels(version).set(1)


def by_name(*families: Family) -> dict[str, Family]:
    """Return families by name.

    Raises:
        ValueError: two bear the same.
    """
    found: dict[str, Family] = {}
    for family in families:
        if found.setdefault(family.name, family) is not family:
            raise ValueError(f"two metrics are called {family.name}")
    return found
