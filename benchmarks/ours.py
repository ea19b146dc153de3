"""One measurement of RLJob on one thread, as a JSON line; see the README beside this file."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from prometheus_client import CollectorRegistry
from torch import nn

import rlruntime
from rlruntime.metrics.exporter import MetricsExporter
from rlruntime.metrics.timers import PhaseTimers
from rlruntime.spec.loader import parse_manifest
from rlruntime.spec.training.component import Component
from rlruntime.trainers.loggers import JsonLinesLogger
from rlruntime.trainers.loop import Trainer
from rlruntime.trainers.observer import Observer, Record
from rlruntime.trainers.run_folder import RunFolder

NUM_ENVS, NUM_STEPS = 16, 128
WARM_UP_FRAMES, TRAIN_FRAMES = 4_096, 100_000
SAC_WARM_UP_FRAMES, SAC_FRAMES, SAC_RANDOM_FRAMES = 1_000, 4_000, 500


def collect(backend: str) -> dict[str, float]:
    """Return valid frames per second, and the time of one step of all copies."""
    config = rlruntime.EnvConfig(id="CartPole-v1", num_envs=NUM_ENVS)
    env = rlruntime.make_vector_env(config, backend=backend)
    policy = rlruntime.build_policy(env.spaces, Component(type="MLP"))
    collector = rlruntime.InlineCollector(env, policy, num_steps=NUM_STEPS)
    for _ in range(5):
        collector.collect()
    before, rollouts, started = collector.num_frames, 0, time.perf_counter()
    while time.perf_counter() - started < 4.0:
        collector.collect()
        rollouts += 1
    elapsed = time.perf_counter() - started
    collector.close()
    return {
        "frames_per_second": (collector.num_frames - before) / elapsed,
        "step_us": elapsed / (rollouts * NUM_STEPS) * 1e6,
    }


def bare(mode: str) -> dict[str, float]:
    """Return the time of one step of Gymnasium's own vector environment plus that of one forward pass of the policy."""
    env = gym.make_vec("CartPole-v1", num_envs=NUM_ENVS, vectorization_mode=mode)
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(64)]
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    observation = torch.zeros(NUM_ENVS, 4)

    def step(number: int) -> None:
        env.step(actions[number % 64])

    def forward(_number: int) -> None:
        policy(observation)

    with torch.no_grad():
        env_us, forward_us = (_microseconds(function) for function in (step, forward))
    return {"step_us": env_us + forward_us, "env_us": env_us, "forward_us": forward_us}


def train(backend: str) -> dict[str, float]:
    """Return frames per second of PPO's whole run after its warm-up, the seconds of that, and what it had learned."""
    training = {
        "algorithm": "PPO",
        "totalFrames": TRAIN_FRAMES,
        "env": {"id": "CartPole-v1", "numEnvs": NUM_ENVS, "backend": backend},
        "ppo": {"numSteps": NUM_STEPS, "minibatchSize": 256, "numEpochs": 4},
    }
    return _whole_run(training, WARM_UP_FRAMES)


def sac(env_id: str) -> dict[str, float]:
    """Return the same of SAC: one copy, an update a frame, batches of 256, two layers of 256."""
    training = {
        "algorithm": "SAC",
        "totalFrames": SAC_FRAMES,
        "env": {"id": env_id, "numEnvs": 1},
        "sac": {"randomFrames": SAC_RANDOM_FRAMES},
    }
    return _whole_run(training, SAC_WARM_UP_FRAMES)


def _whole_run(training: dict[str, Any], warm_up_frames: int) -> dict[str, float]:
    document = {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "bench"},
        "spec": {"training": {"numThreads": 1, **training}},
    }
    clock = _Clock(warm_up_frames)
    trainer = Trainer(parse_manifest(document, "benchmark"), observer=clock)
    with tempfile.TemporaryDirectory() as path, RunFolder.create(Path(path) / "run") as folder:
        result = trainer.run(folder)
    return {
        "frames_per_second": (clock.end[1] - clock.warm[1]) / (clock.end[0] - clock.warm[0]),
        "warm_up_s": clock.warm[0] - clock.begun,
        "reward": result["evaluation"]["rewardMean"],
    }


def overhead(_which: str) -> dict[str, float]:
    """Return the time that timers, exporter and the line in ``metrics.jsonl`` take of each iteration."""
    timers, exporter = PhaseTimers(), MetricsExporter(CollectorRegistry(), target_frames=TRAIN_FRAMES)
    learner = {f"policy/value_{number}": 0.5 for number in range(10)}

    with tempfile.TemporaryDirectory() as path:
        logger = JsonLinesLogger(Path(path) / "metrics.jsonl")

        def iteration(number: int) -> None:
            for name in ("collect", "learn", "evaluate", "checkpoint"):
                with timers(name):
                    pass
            seconds = {f"time/{name}_s": value for name, value in timers.flush().items()}
            record = {"iteration": number, "frames": number * 512, "episodes": number, **learner, **seconds}
            logger.log(record)
            exporter.observe_iteration(record)

        iteration_us = _microseconds(iteration)
        logger.close()
    return {"iteration_us": iteration_us}


class _Clock(Observer):
    """Notes when warm-up and training ended, and at how many frames."""

    def __init__(self, warm_up_frames: int) -> None:
        self.warm_up_frames = warm_up_frames
        self.begun = time.perf_counter()
        self.warm = self.end = (0.0, 0)

    def on_record(self, record: Record) -> None:
        now = (time.perf_counter(), int(record["frames"]))
        if not self.warm[1] and now[1] >= self.warm_up_frames:
            self.warm = now
        self.end = now


def _microseconds(function: Any) -> float:
    for number in range(500):
        function(number)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < 2.0:
        for number in range(200):
            function(number)
        count += 200
    return (time.perf_counter() - started) / count * 1e6


def main() -> None:
    """Run the case named on the command line."""
    torch.set_num_threads(1)
    kind, _, which = sys.argv[1].partition(":")
    measure = {"collect": collect, "bare": bare, "train": train, "sac": sac, "overhead": overhead}[kind]
    print(json.dumps({"case": sys.argv[1], **measure(which)}))


if __name__ == "__main__":
    main()
