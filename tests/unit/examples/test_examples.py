"""Every manifest in examples/ is valid, and runs from the command line as it stands, only shorter."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rlruntime.cli.main import main
from rlruntime.spec.loader import load_manifests

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MANIFESTS = sorted(EXAMPLES.glob("*.yaml"))
SHORTER = {
    "training.totalFrames": 256,
    "training.env.maxEpisodeSteps": 20,
    "training.evaluation.everyFrames": 128,
    "training.evaluation.episodes": 2,
    "training.evaluation.stopAtReward": "null",
    "metrics.port": 0,
}
ALGORITHM = {
    "PPO": {
        "training.env.numEnvs": 4,
        "training.ppo.numSteps": 32,
        "training.ppo.minibatchSize": 64,
        "training.ppo.numEpochs": 2,
    },
    "SAC": {"training.sac.randomFrames": 64, "training.sac.iterationFrames": 64},
    "DQN": {"training.dqn.randomFrames": 64, "training.dqn.iterationFrames": 64},
}
OTHERS = {"async-slow-envs": {"training.collector.config.columns": 4, "training.env.kwargs.milliseconds": 0}}


def run_shortened(manifest: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (job,) = load_manifests(manifest)
    fields = {**SHORTER, **ALGORITHM[job.spec.training.algorithm], **OTHERS.get(job.metadata.name, {})}
    overrides = [argument for path, value in fields.items() for argument in ("-o", f"{path}={value}")]
    assert main(["run", str(manifest), "--out", str(out), "--quiet", *overrides]) == 0
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


def test_examples_are_numbered_without_a_gap_and_named_like_their_jobs() -> None:
    for number, path in enumerate(MANIFESTS, start=1):
        (job,) = load_manifests(path)
        assert path.name == f"{number:02d}-{job.metadata.name}.yaml"
        assert path.read_text().startswith("# ")


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_example_runs_to_success_and_leaves_its_files(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    result = run_shortened(manifest, out, monkeypatch)
    assert (result["status"], result["reason"]) == ("Succeeded", "TotalFrames")
    assert result["frames"] >= 256
    assert result["evaluation"]["episodes"] == 2
    assert result["resumeClass"] == ("episodeRestart" if "async" in manifest.name else "exact")
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert sum("evaluation/reward_mean" in record for record in records) >= 1
    assert (out / "curves.png").stat().st_size > 0
    assert (out / result["policy"]).is_file()
    assert (out / result["checkpoint"]).is_dir()
    assert [job.metadata.name for job in load_manifests(out / "manifest.yaml")] == [result["name"]]
