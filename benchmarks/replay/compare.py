"""Runs all measurements of replay in turn, several rounds, and prints medians and ratios as Markdown."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import ours
import peers

HERE = Path(__file__).parent
LIMIT_S = 300
Results = dict[str, list[dict[str, float]]]
UNIFORM = ("uniform", "uniform, 16 rows a write", "memory-mapped", "shared")
ROW = "| {} | {} | {} | {} | {} |"


def measure(python: str, script: str, case: str) -> dict[str, float] | None:
    """Run one measurement in a process of its own, on one core, and return what it printed, None where it failed."""
    core = max(os.sched_getaffinity(0))
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, str(HERE / script), case],
        env={**os.environ, **threads},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    if done.returncode != 0:
        print(f"{script} {case!r} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}", file=sys.stderr)
        return None
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def python_with(package: str, pythons: list[str]) -> str | None:
    """Return the first interpreter that has a package."""
    for python in pythons:
        look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        if subprocess.run([python, "-c", look], capture_output=True, check=False).returncode == 0:
            return python
    return None


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers-python", nargs="*", default=[], help="interpreters of environments that have peers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    arguments = parser.parse_args()
    runs = [(sys.executable, "ours.py", case) for case in ours.CASES]
    for case, (package, _) in peers.CASES.items():
        python = python_with(package, arguments.peers_python)
        if python is None:
            print(f"left out, as no interpreter has {package}: {case}", file=sys.stderr)
        else:
            runs.append((python, "peers.py", case))
    results: Results = {}
    for number in range(arguments.rounds):
        for python, script, case in runs:
            if arguments.only in case:
                print(f"round {number + 1}: {case}", file=sys.stderr)
                name = f"rljob {case}" if script == "ours.py" else case
                measured = measure(python, script, case)
                if measured is not None:
                    results.setdefault(name, []).append(measured)
    print(f"Medians of {arguments.rounds} rounds, one core.\n")
    print(table(results))


def table(results: Results) -> str:
    """Return the rates in millions of rows a second, each beside the best of the peers that do the same."""
    lines = [ROW.format("case", "written", "to the best peer", "sampled", "to the best peer"), "|---|---|---|---|---|"]
    medians = {
        name: {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        for name, rounds in results.items()
    }
    for name, rates in medians.items():
        cells = []
        for key in ("write", "sample"):
            peers_rates = [
                of_peer[key]
                for peer, of_peer in medians.items()
                if not peer.startswith("rljob") and does(peer, key) == does(name, key)
            ]
            cells.append(f"{rates[key] / 1e6:.2f}" if key in rates else "")
            cells.append(f"{rates[key] / max(peers_rates):.2f}x" if key in rates and peers_rates else "")
        lines.append(ROW.format(name, *cells))
    return "\n".join(lines)


def does(name: str, key: str) -> str:
    """Return what a case does: rows of all storages are sampled alike, however they were written."""
    case = name.partition(" ")[2]
    return "uniform" if key == "sample" and case in UNIFORM else case


if __name__ == "__main__":
    main()
