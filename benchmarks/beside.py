"""What collecting beside learning brings: SAC with the collector `AsyncProcess` on two cores, and in turns on one.

Prints a table of medians over rounds in which the cases take turns; see the README beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv

STEP_S = 0.005
FRAMES, WARM_UP_SHARE, RANDOM_FRAMES = 3_000, 1 / 3, 500
LIMIT_S = 900
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {"id": "Pendulum-v1"},
    "HalfCheetah-v5": {"id": "HalfCheetah-v5"},
    "Pendulum that sleeps 5 ms": {"factory": "beside:pendulum", "kwargs": {"work": "sleep"}},
    "Pendulum that computes 5 ms": {"factory": "beside:pendulum", "kwargs": {"work": "compute"}},
}
COLLECTORS = {"in turns, one core": "Inline", "beside, two cores": "AsyncProcess"}


class Slow(gym.Wrapper[np.ndarray, Any, np.ndarray, Any]):
    """A step takes `STEP_S` more: of sleep, as where a device or another machine answers, or of a processor."""

    def __init__(self, env: gym.Env[np.ndarray, Any], work: str) -> None:
        super().__init__(env)
        self._work = work

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        if self._work == "sleep":
            time.sleep(STEP_S)
        else:
            until = time.thread_time() + STEP_S
            while time.thread_time() < until:
                pass
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, info


def pendulum(work: str) -> gym.Env[Any, Any]:
    """Return a Pendulum whose steps take time."""
    return Slow(gym.wrappers.TimeLimit(PendulumEnv(), 200), work)


def measure(environment: str, collector: str, frames: int) -> dict[str, float]:
    """Return frames per second after the warm-up, and what shows whether learning suffered."""
    import torch

    from rlruntime.spec.loader import parse_manifest
    from rlruntime.trainers.loop import Trainer
    from rlruntime.trainers.observer import Observer, Record
    from rlruntime.trainers.run_folder import RunFolder

    class Clock(Observer):
        marks: list[tuple[float, int, float]]

        def __init__(self) -> None:
            self.marks = []

        def on_record(self, record: Record) -> None:
            mark = (time.perf_counter(), int(record["frames"]), float(record.get("collect/staleness", 0.0)))
            self.marks.append(mark)

    torch.set_num_threads(1)
    training = {
        "algorithm": "SAC",
        "totalFrames": frames,
        "numThreads": 1,
        "env": {"numEnvs": 1, **ENVIRONMENTS[environment]},
        "collector": {"type": collector},
        "sac": {
            "randomFrames": min(RANDOM_FRAMES, frames // 6),
            "iterationFrames": 50,
            "learningRate": 1e-3,
            "gamma": 0.98,
        },
    }
    document = {"apiVersion": "rljob.io/v1alpha1", "kind": "RLJob", "metadata": {"name": "beside"}}
    clock = Clock()
    trainer = Trainer(parse_manifest({**document, "spec": {"training": training}}, "benchmark"), observer=clock)
    with tempfile.TemporaryDirectory() as path, RunFolder.create(Path(path) / "run") as folder:
        result = trainer.run(folder)
    warm = next(mark for mark in clock.marks if mark[1] >= WARM_UP_SHARE * frames)
    last = clock.marks[-1]
    return {
        "frames_per_second": (last[1] - warm[1]) / (last[0] - warm[0]),
        "staleness": max(mark[2] for mark in clock.marks),
        "reward": result["evaluation"]["rewardMean"],
    }


def in_a_process(environment: str, collector: str, frames: int) -> dict[str, float]:
    """Measure in a process of its own, on one core or on two."""
    cores = sorted(os.sched_getaffinity(0))
    cores = cores[-1:] if collector == "Inline" else cores[-2:]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    search = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, __file__, "--case", environment, collector, "--frames", str(frames)],
        env={**os.environ, **threads, "PYTHONPATH": search},
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=FRAMES, help="of each run; the first third is warm-up")
    parser.add_argument("--only", default="", help="environments whose names hold this")
    parser.add_argument("--case", nargs=2, help="one measurement in this process")
    options = parser.parse_args()
    if options.case:
        environment, collector = options.case
        print(json.dumps(measure(environment, collector, options.frames)))
        return
    print("| environment | collecting | frames/s | to in turns | largest staleness | reward (each round) |")
    print("|---|---|---|---|---|---|")
    for environment in ENVIRONMENTS:
        if options.only not in environment:
            continue
        rounds = [
            {name: in_a_process(environment, name, options.frames) for name in COLLECTORS.values()}
            for _ in range(options.rounds)
        ]
        rates = {
            name: statistics.median(one[name]["frames_per_second"] for one in rounds) for name in COLLECTORS.values()
        }
        for words, name in COLLECTORS.items():
            cells = [
                f"{rates[name]:.1f}",
                f"{rates[name] / rates['Inline']:.2f}x",
                f"{max(one[name]['staleness'] for one in rounds):.0f}",
                ", ".join(f"{one[name]['reward']:.0f}" for one in rounds),
            ]
            print(f"| {environment} | {words} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
