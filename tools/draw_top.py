"""Draws what `rljob top` shows of a played set of jobs in a terminal of 80 columns: `make top-picture`."""

from __future__ import annotations

import io
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from rlruntime.cli.cluster.frame import frame
from rlruntime.cli.cluster.jobs import JobView, in_order
from rlruntime.cli.cluster.screen import as_text

NOW = datetime(2026, 5, 4, 14, 2, 11, tzinfo=UTC)
WIDTH, HEIGHT = 80, 24
PROGRESS = ("percent", "frames", "totalFrames", "reward", "framesPerSecond", "remainingSeconds")


def job(
    name: str, age_s: float, phase: str, reason: str = "", progress: tuple[Any, ...] = (), faults: int = 0
) -> dict[str, Any]:
    """Return a job as the API server would give it."""
    said = dict(zip(PROGRESS, progress, strict=False))
    if said:
        said["updateTime"] = f"{NOW - timedelta(seconds=5):%Y-%m-%dT%H:%M:%SZ}"
    status: dict[str, Any] = {"phase": phase, "progress": said, "restarts": {"faults": faults}}
    if reason:
        status["reason"] = reason
    created = f"{NOW - timedelta(seconds=age_s):%Y-%m-%dT%H:%M:%SZ}"
    return {
        "metadata": {"namespace": "team-a", "name": name, "uid": name, "creationTimestamp": created},
        "status": status,
    }


JOBS = [
    job("ppo-cartpole", 40, "Running", progress=(40, 40448, 100000, 288.1, 11216, 5)),
    job("sac-halfcheetah", 1260, "Running", progress=(71, 142000, 200000, 6312.4, 118, 491)),
    job(
        "dqn-breakout-lr-0003",
        5400,
        "Restarting",
        "BackOff",
        progress=(12, 1200000, 10000000, 3.2, 910, 9670),
        faults=1,
    ),
    job("ppo-minigrid", 12, "Pending", "Unschedulable"),
    job("ppo-memory", 7800, "Suspended", "Suspended", progress=(66, 20048, 30000, 0.61)),
    job("ppo-acrobot", 10000, "Succeeded", "Completed", progress=(50, 101664, 200000, -80.2)),
    job("sac-pendulum-late", 90000, "Failed", "DeadlineExceeded", progress=(83, 16600, 20000, -412.7), faults=2),
]


def main() -> int:
    """Draw it into the file that is named."""
    path = Path(sys.argv[1])
    jobs = in_order([JobView.of(item) for item in JOBS])
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in frame(jobs, NOW, WIDTH, HEIGHT, place="namespace team-a"):
        console.print(as_text(line), soft_wrap=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # no font from elsewhere
    path.write_text(console.export_svg(title="rljob top", unique_id="top", code_format=form), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
