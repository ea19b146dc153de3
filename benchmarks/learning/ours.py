"""Records the curve of one run of RLJob: ``ours.py CASE SEED``; by `rljob run` with the manifest of the case."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from cases import CASES, Curve

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def main(name: str, seed: int) -> None:
    """Train, and write the curve."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as path:
        run = Path(path) / "run"
        command = [str(Path(sys.executable).with_name("rljob")), "run", str(EXAMPLES / case.manifest)]
        command += ["--quiet", "--out", str(run), "-o", f"training.seed={seed}", "-o", "training.numThreads=1"]
        for override in case.overrides:
            command += ["-o", override]
        subprocess.run(command, check=True)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        result = json.loads((run / "result.json").read_text())
    evaluated = [record for record in records if "evaluation/reward_mean" in record]
    Curve(
        learner="rljob",
        case=name,
        seed=seed,
        frames=[record["frames"] for record in evaluated],
        rewards=[record["evaluation/reward_mean"] for record in evaluated],
        confirmed=result["evaluation"]["rewardMean"],
    ).write()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
