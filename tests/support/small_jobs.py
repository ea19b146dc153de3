"""Small manifests that train for a second or two, and what tests read of the runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlruntime.spec.loader import parse_manifest
from rlruntime.spec.manifest import RLJob
from rlruntime.trainers.api import make_trainer
from rlruntime.trainers.loop import Trainer
from rlruntime.trainers.run_folder import RunFolder


def small_document(**training: Any) -> dict[str, Any]:
    """Return a manifest of 960 frames of CartPole in 4 copies; ``training`` takes the place of its fields."""
    return {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "small"},
        "spec": {
            "metrics": {"port": 0},
            "training": {
                "algorithm": "PPO",
                "totalFrames": 960,
                "numThreads": 1,
                "env": {"id": "CartPole-v1", "numEnvs": 4},
                "network": {"type": "MLP", "config": {"hiddenSizes": [16]}},
                "ppo": {"numSteps": 20, "minibatchSize": 32, "numEpochs": 2},
                "evaluation": {"everyFrames": 300, "episodes": 2},
                "checkpoint": {"everyFrames": 400},
                **training,
            },
        },
    }


def small_job(**training: Any) -> RLJob:
    """Return `small_document` as a manifest."""
    return parse_manifest(small_document(**training), "test")


OFF_POLICY_ENVS = {"SAC": "Pendulum-v1", "TD3": "Pendulum-v1", "DQN": "CartPole-v1"}


def off_policy_job(algorithm: str, **training: Any) -> RLJob:
    """Return a manifest of 240 frames in 2 copies, of which 40 are random; ``training`` takes the place of its fields,
    and ``env`` and the algorithm's section of theirs.
    """
    section = algorithm.lower()
    env = {"id": OFF_POLICY_ENVS[algorithm], "numEnvs": 2, "maxEpisodeSteps": 30, **training.pop("env", {})}
    settings = {"randomFrames": 40, "iterationFrames": 40, **training.pop(section, {})}
    document = small_document(
        **{
            "algorithm": algorithm,
            "totalFrames": 240,
            "env": env,
            section: settings,
            "network": {"type": "MLP", "config": {"hiddenSizes": [16, 16], "activation": "ReLU"}},
            "replay": {"batchSize": 16},
            "evaluation": {"everyFrames": 100, "episodes": 2},
            "checkpoint": {"everyFrames": 100},
            **training,
        }
    )
    del document["spec"]["training"]["ppo"]
    return parse_manifest(document, "test")


def off_policy_trainer(algorithm: str, **training: Any) -> Any:
    """Return a trainer of `off_policy_job` that hasn't run; its ``method`` is an `OffPolicy`."""
    return built_trainer(off_policy_job(algorithm, **training))


def run_job(job: RLJob, path: Path, *, resume: bool = False, stop_after: int | None = None) -> dict[str, Any]:
    """Train into ``path`` and return the result.

    Args:
        stop_after: records after which a signal to stop is made believe.
    """

    def stop_signal() -> int | None:
        return 15 if stop_after is not None and len(records(path)) >= stop_after else None

    trainer = make_trainer(job, stop_signal=stop_signal)
    with RunFolder.create(path, resume=resume) as folder:
        return trainer.run(folder, resume=resume)


def built_trainer(job: RLJob) -> Trainer:
    """Return a trainer that hasn't run."""
    trainer = make_trainer(job)
    assert isinstance(trainer, Trainer)
    return trainer


def records(path: Path) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl``."""
    metrics = path / "metrics.jsonl"
    if not metrics.exists():
        return []
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def timeless(path: Path) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl`` without the declared time fields."""
    return [{key: value for key, value in record.items() if not key.startswith("time/")} for record in records(path)]


def policy_bytes(path: Path) -> bytes:
    """Return the policy file of a run."""
    return (path / "policy" / "policy.safetensors").read_bytes()
