"""A job of about twenty seconds whose numbers are known, for tests that kill parts of it, and the check of its run.

It is PPO on a CartPole that sleeps in each step, so that it lasts as long on any machine. Its numbers don't depend on
the sleeping: what a run without it writes is what any run must have written, however often it was killed.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from rlruntime.attempts import find_run
from rlruntime.spec.loader import parse_manifest
from rlruntime.user_code import make_importable

MODULE = "sleepy_cartpole"
CODE = {
    f"{MODULE}.py": '''\
"""CartPole that takes its time."""

import time

from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class SleepyCartPole(CartPoleEnv):
    def __init__(self, delay_s=0.0):
        super().__init__()
        self.delay_s = delay_s

    def step(self, action):
        if self.delay_s:
            time.sleep(self.delay_s)
        return super().step(action)
'''
}
"""Files of the job's `code`, by name."""
TOTAL_FRAMES = 4000
CHECKPOINT_EVERY_FRAMES = 400


def kill_job(
    name: str = "kill", namespace: str = "default", *, code: str = "kill-code", seconds: float = 20.0, **spec: Any
) -> dict[str, Any]:
    """Return the manifest: 4,000 frames, a checkpoint every 400, episodes of at most 50 steps, two of them at the end.

    Args:
        code: name of the ConfigMap that `kill_code` returns.
        seconds: how long it collects; 0 for as fast as it goes. Start, learning and saving come on top: 3 s or so.
        spec: more fields of the spec, as in YAML: `storage`, `runPolicy`, `image`, `roles`.
    """
    return {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "code": {"configMap": {"name": code}},
            "training": {
                "algorithm": "PPO",
                "seed": 7,
                "totalFrames": TOTAL_FRAMES,
                "device": "cpu",
                "numThreads": 1,
                "env": {
                    "factory": f"{MODULE}:SleepyCartPole",
                    "kwargs": {"delay_s": seconds / TOTAL_FRAMES},
                    "numEnvs": 4,
                    "backend": "Loop",
                    "maxEpisodeSteps": 50,
                },
                "network": {"type": "MLP", "config": {"hiddenSizes": [16]}},
                "ppo": {"numSteps": 25, "minibatchSize": 50, "numEpochs": 2},
                "evaluation": {"episodes": 2},
                "checkpoint": {"everyFrames": CHECKPOINT_EVERY_FRAMES, "keep": 2},
            },
            **spec,
        },
    }


def kill_code(name: str = "kill-code", namespace: str = "default") -> dict[str, Any]:
    """Return the ConfigMap with the environment's module."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": CODE}


def write_code(folder: Path) -> Path:
    """Write the environment's module into ``folder`` and return that."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in CODE.items():
        (folder / name).write_text(text)
    return folder


def undisturbed_records(folder: Path) -> list[dict[str, Any]]:
    """Train without sleeping into ``folder``, in this process, and return the records that any run must have."""
    from rlruntime.trainers.api import train

    make_importable(write_code(folder / "code"))
    train(parse_manifest(kill_job(seconds=0.0), "kill job"), out=folder / "run")
    return timeless_records(folder / "run")


def timeless_records(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run, or of a job's newest attempt, without those fields that say how long things took."""
    lines = (find_run(run) / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def faults_of_run(run: Path, expected: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with a run that was killed and resumed; empty where every frame was trained exactly once.

    Args:
        run: a run folder, or the folder of a job on its storage.
        expected: what `undisturbed_records` returned.
    """
    records = timeless_records(run)
    faults = []
    frames = [record["frames"] for record in records]
    if any(later <= earlier for earlier, later in itertools.pairwise(frames)):
        faults.append(f"frames don't grow from record to record: {frames}")
    iterations = [record["iteration"] for record in records]
    if iterations != list(range(1, len(records) + 1)):
        faults.append(f"iterations are not 1, 2, 3, ...: {iterations}")
    if len(records) != len(expected):
        faults.append(f"{len(records)} records where an undisturbed run has {len(expected)}")
    for ours, theirs in zip(records, expected, strict=False):
        differing = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        if differing:
            faults.append(f"iteration {ours['iteration']} has another {', '.join(differing)} than an undisturbed run")
            break
    return faults
