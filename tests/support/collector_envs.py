"""Environments of uneven speed, and what tests of collectors share. Importable in worker processes by their path."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from gymnasium import spaces
from toy_envs import CountingEnv

from rlruntime.seeding import ENVIRONMENT, stream_seed
from rlruntime.spec.training.env import EnvConfig

SUPPORT = str(Path(__file__).parent)
END_TIMEOUT_S = 60.0


class SleepingEnv(CountingEnv):
    """Counts; a step takes ``sleep_s``, ``slow_factor`` times that in the copy that was reset with ``slow_seed``."""

    def __init__(self, sleep_s: float = 0.002, slow_factor: float = 1.0, slow_seed: int = -1, length: int = 50) -> None:
        super().__init__(length=length)
        self.sleep_s, self.slow_factor, self.slow_seed = sleep_s, slow_factor, slow_seed

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(self.sleep_s * (self.slow_factor if self.seed_seen == self.slow_seed else 1.0))
        return super().step(action)


class GatedEnv(CountingEnv):
    """Counts; the copy that was reset with ``seed`` waits in step ``at`` of an episode for the file ``gate``."""

    def __init__(self, gate: str, seed: int, at: int = 2, length: int = 1000) -> None:
        super().__init__(length=length)
        self.gate, self.gated_seed, self.at = gate, seed, at

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.seed_seen == self.gated_seed and self.count + 1 == self.at:
            while not os.path.exists(self.gate):
                time.sleep(0.005)
        return super().step(action)


class LineEnv(CountingEnv):
    """Counts, and takes one number of any size as its action."""

    def __init__(self, length: int = 7) -> None:
        super().__init__(length=length)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)


def env_config(
    env: str = "toy_envs:CountingEnv", num_envs: int = 2, *, timeout_s: float = 60.0, **kwargs: Any
) -> EnvConfig:
    """Return the config of an environment of the tests."""
    return EnvConfig(factory=env, kwargs=kwargs, num_envs=num_envs, step_timeout_seconds=timeout_s)


def env_seed(copy: int, seed: int = 0) -> int:
    """Return what a copy is reset with at first."""
    return stream_seed(seed, ENVIRONMENT, copy)


def wait_until_ended(pids: list[int], timeout_s: float) -> list[int]:
    """Return the processes that are still there after ``timeout_s`` at most."""
    deadline = time.monotonic() + timeout_s
    left = list(pids)
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
        time.sleep(0.02)
    return left


def owner_killed(code: str) -> tuple[list[int], list[int]]:
    """Run ``code``, which prints process ids of its workers and waits; kill it, and say who was there and who stays.

    Returns:
        the workers, and those that are left 5 s after their owner's death.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([SUPPORT, *sys.path])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, text=True) as owner:
        assert owner.stdout is not None
        line = owner.stdout.readline()
        pids = [int(word) for word in line.split()]
        assert pids, "the owner printed nothing"
        assert all(psutil.pid_exists(pid) for pid in pids)
        owner.send_signal(signal.SIGKILL)
        owner.wait(END_TIMEOUT_S)
    return pids, wait_until_ended(pids, 5.0)
