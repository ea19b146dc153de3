"""Results as Markdown: medians over the rounds, and ratios."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Results = list[dict[str, Any]]
_NAMES = {
    "rljob": "RLJob",
    "kuberay": "KubeRay, tuned",
    "floor": "objects alone, no operator",
    "rljob-ends": "RLJob",
    "pytorchjob-ends": "PyTorchJob, limit raised",
    "rljob-ordered": "RLJob, trainer first",
}
_AT_ONCE = (
    "| {} | jobs | runs | all pods created s | all pods Running s | all jobs {} s | {} | operator CPU s | peak MiB"
    " | requests per job | API server CPU s | machine used |"
)
_ONE_BY_ONE = "| one job at a time | jobs | 4 pods Running p50 s | p99 s | job done p50 s | requests per job |"


def tables(results: Results) -> str:
    """Return all tables for which there are results."""
    at_once = [result for result in results if result["mode"] == "at once"]
    one_by_one = [result for result in results if result["mode"] == "one by one"]
    found = [
        _at_once(at_once, ("rljob", "kuberay", "floor", "rljob-ordered"), "Running", "pods run on", "running_s"),
        _at_once(at_once, ("rljob-ends", "pytorchjob-ends"), "Succeeded", "pods end after 1 s", "done_s"),
        _one_by_one(one_by_one),
    ]
    return "\n".join(table for table in found if table)


def _at_once(results: Results, cases: Sequence[str], done: str, title: str, compared: str) -> str:
    results = [result for result in results if result["case"] in cases]
    if not results:
        return ""
    peer = cases[1]
    lines = [_AT_ONCE.format(title, done, f"to {_NAMES[peer].partition(',')[0]}"), "|---" * 12 + "|"]
    for count in sorted({result["jobs"] for result in results}):
        base = _median([r for r in results if r["case"] == peer and r["jobs"] == count], lambda r: r[compared])
        for case in cases:
            runs = [result for result in results if result["case"] == case and result["jobs"] == count]
            if runs:
                lines.append(_line(case, count, runs, compared, base))
    return "\n".join(lines) + "\n"


def _line(case: str, count: int, runs: Results, compared: str, base: float | None) -> str:
    own = _median(runs, lambda run: run[compared])
    cells = [
        _NAMES[case],
        f"{count:,}",
        str(len(runs)),
        _number(_median(runs, lambda run: run["created_s"])),
        _number(_median(runs, lambda run: run["running_s"])),
        _number(_median(runs, lambda run: run["done_s"])),
        f"{own / base:.2f}x" if own and base else "",
        _number(_median(runs, lambda run: run["cpu_s"].get("operator"))),
        _number(_median(runs, lambda run: run["operator_peak_mib"]), digits=0),
        _number(_median(runs, lambda run: run["requests_per_job"] or None)),
        _number(_median(runs, lambda run: run["cpu_s"]["kube-apiserver"])),
        f"{100 * (_median(runs, lambda run: run['machine_used']) or 0):.0f} %",
    ]
    return "| " + " | ".join(cells) + " |"


def _one_by_one(results: Results) -> str:
    if not results:
        return ""
    lines = [_ONE_BY_ONE, "|---" * 6 + "|"]
    for case, shown in _NAMES.items():
        runs = [result for result in results if result["case"] == case]
        if runs:
            figures = [
                _number(_median(runs, lambda run, name=name: run[name]), digits=3)  # type: ignore[misc]
                for name in ("running_p50_s", "running_p99_s", "done_p50_s")
            ]
            requests = _number(_median(runs, lambda run: run["requests_per_job"] or None))
            lines.append(f"| {shown} | {runs[0]['jobs']} | {' | '.join(figures)} | {requests} |")
    return "\n".join(lines) + "\n"


def _median(runs: Results, of: Callable[[dict[str, Any]], float | None]) -> float | None:
    values = [value for run in runs if (value := of(run)) is not None]
    return statistics.median(values) if values else None


def _number(value: float | None, *, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text().splitlines()
    print(tables([json.loads(line) for line in lines if line.startswith("{")]))
