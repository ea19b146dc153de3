"""Records every curve that ``curves/`` lacks, one after the other; days of work may be spread over several calls."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from cases import CASES, curve_path

HERE = Path(__file__).parent
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def main() -> None:
    """Record them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers-python", required=True, help="interpreter of the peers' environment")
    parser.add_argument("--cases", nargs="+", metavar="CASE", choices=CASES, default=list(CASES))
    parser.add_argument("--learners", nargs="+", metavar="LEARNER", choices=("rljob", "sb3"), default=["rljob", "sb3"])
    arguments = parser.parse_args()
    for name in arguments.cases:
        for seed in range(CASES[name].seeds):
            for learner in (each for each in CASES[name].names() if each in arguments.learners):
                if curve_path(learner, name, seed).exists():
                    continue
                print(f"{name}: {learner}, seed {seed}", file=sys.stderr, flush=True)
                python, script = (
                    (sys.executable, "ours.py") if learner == "rljob" else (arguments.peers_python, "sb3.py")
                )
                command = [python, str(HERE / script), name, str(seed)]
                subprocess.run(command, env={**os.environ, **ONE_THREAD}, check=True)


if __name__ == "__main__":
    main()
