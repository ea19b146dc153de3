"""Draws the curves of a run folder into a file; the ending (`.png`, `.svg`) says the format."""

from __future__ import annotations

import sys
from pathlib import Path

from rlruntime.spec.loader import load_manifests
from rlruntime.trainers.curves import plot_curves
from rlruntime.trainers.run_folder import RunFolder


def main(run: str, output: str) -> int:
    """Draw the run in the folder ``run`` into ``output``; return 1 when it has no metrics yet."""
    folder = RunFolder.open(Path(run))
    job = load_manifests(str(folder.manifest))[0]
    env = job.spec.training.env
    title = f"{job.metadata.name}: {job.spec.training.algorithm} on {env.id or env.factory}"
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    goal = job.spec.training.evaluation.stop_at_reward
    return 0 if plot_curves(folder.metrics, [Path(output)], title=title, goal_reward=goal) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
