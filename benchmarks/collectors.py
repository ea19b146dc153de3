"""How collectors scale with environments that take time without a processor, and what they cost where those take none.

Prints a table of medians over rounds in which the cases take turns; see the README beside this file.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from rlruntime.collectors.async_envs import AsyncEnvCollector
from rlruntime.collectors.async_process import AsyncProcessCollector
from rlruntime.collectors.inline import InlineCollector
from rlruntime.collectors.sync_process import SyncProcessCollector
from rlruntime.envs.async_pool import AsyncEnvPool
from rlruntime.envs.make import describe, make_vector_env
from rlruntime.policies.build import build_policy
from rlruntime.seeding import ENVIRONMENT, stream_seed
from rlruntime.spec.training.env import EnvConfig

SLEEP_S = 0.002
NUM_ENVS = 8
NUM_STEPS = 64


class Sleeper(gym.Env[np.ndarray, Any]):
    """Sleeps in every step, ten times as long in the copy that was reset with ``slow_seed``."""

    def __init__(self, slow_seed: int = -1, sleep_s: float = SLEEP_S) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
        self.action_space: Any = gym.spaces.Discrete(2)
        self.slow_seed, self.sleep_s, self.factor, self.count = slow_seed, sleep_s, 1.0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.factor = 10.0 if seed == self.slow_seed else 1.0
        self.count = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(self.sleep_s * self.factor)
        self.count += 1
        return np.zeros(4, np.float32), 1.0, False, self.count >= 500, {}


def config(num_envs: int, *, slow: bool = False) -> EnvConfig:
    """Return the config of sleeping environments, of which the first may be slow."""
    slow_seed = stream_seed(0, ENVIRONMENT, 0) if slow else -1
    return EnvConfig(factory="collectors:Sleeper", kwargs={"slow_seed": slow_seed}, num_envs=num_envs)


def inline(env: EnvConfig) -> InlineCollector:
    """Return the inline collector: the time of environments adds up."""
    return InlineCollector(make_vector_env(env), build_policy(describe(env).spaces), num_steps=NUM_STEPS)


def sync_process(env: EnvConfig) -> SyncProcessCollector:
    """Return the synchronous one with a worker for each environment."""
    return SyncProcessCollector(env, build_policy(describe(env).spaces), num_steps=NUM_STEPS, num_workers=env.num_envs)


def async_process(env: EnvConfig) -> AsyncProcessCollector:
    """Return the asynchronous one with a worker for each environment."""
    return AsyncProcessCollector(
        env,
        build_policy(describe(env).spaces),
        num_steps=NUM_STEPS,
        num_workers=env.num_envs,
        max_staleness=2 * env.num_envs,
    )


def async_env(env: EnvConfig) -> AsyncEnvCollector:
    """Return the one with an asynchronous pool of processes."""
    pool = AsyncEnvPool(env)
    return AsyncEnvCollector(pool, build_policy(pool.spaces), num_steps=NUM_STEPS)


def frames_per_second(collector: Any, seconds: float) -> float:
    """Return valid frames per second over at least so many seconds, once it has warmed up."""
    before, started = collector.num_frames, time.perf_counter()
    while time.perf_counter() - started < seconds:
        collector.collect()
    return float((collector.num_frames - before) / (time.perf_counter() - started))


def cartpole(make: Callable[[EnvConfig], Any]) -> Any:
    """Return a collector of 8 copies of CartPole, whose step takes next to nothing."""
    return make(EnvConfig(id="CartPole-v1", num_envs=NUM_ENVS))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--only", default="", help="cases whose names hold this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    even, uneven, one = config(NUM_ENVS), config(NUM_ENVS, slow=True), config(1)
    cases: dict[str, tuple[int, Callable[[], Any]]] = {
        "8 even, sync processes": (8, lambda: sync_process(even)),
        "8 even, async processes": (8, lambda: async_process(even)),
        "8 even, async pool": (8, lambda: async_env(even)),
        "7 even and 1 slow, sync processes": (7, lambda: sync_process(uneven)),
        "7 even and 1 slow, async processes": (7, lambda: async_process(uneven)),
        "7 even and 1 slow, async pool": (7, lambda: async_env(uneven)),
        "8 CartPole, inline": (0, lambda: cartpole(inline)),
        "8 CartPole, 2 sync processes": (0, lambda: cartpole(sync_process_of_two)),
        "8 CartPole, async pool": (0, lambda: cartpole(async_env)),
    }
    print("| case | frames/s | of ideal | the learner's CPU us a frame |\n|---|---|---|---|")
    single = inline(one)
    single.collect()
    for name, (num_fast, make) in cases.items():
        if options.only in name:
            measure(name, num_fast, make, single, options.rounds, options.seconds)
    single.close()


def measure(
    name: str, num_fast: int, make: Callable[[], Any], single: InlineCollector, rounds: int, seconds: float
) -> None:
    """Print the medians of one case.

    Args:
        num_fast: environments that are not slow; ideal is as many times the rate of ``single`` in the same round. 0
            where there is no ideal.
        make: makes the collector.
        single: collects from one environment in this process.
    """
    collector = make()
    rates, shares, costs = [], [], []
    try:
        collector.collect()
        for _ in range(rounds):
            alone = frames_per_second(single, seconds / 2) if num_fast else 0.0
            used, frames = time.process_time(), collector.num_frames
            rates.append(frames_per_second(collector, seconds))
            costs.append((time.process_time() - used) / (collector.num_frames - frames) * 1e6)
            shares.append(rates[-1] / (num_fast * alone) if num_fast else 0.0)
    finally:
        collector.close()
    share = f"{statistics.median(shares):.2f}" if num_fast else ""
    print(f"| {name} | {statistics.median(rates):,.0f} | {share} | {statistics.median(costs):.0f} |", flush=True)


def sync_process_of_two(env: EnvConfig) -> SyncProcessCollector:
    """Return the synchronous one with two workers."""
    return SyncProcessCollector(env, build_policy(describe(env).spaces), num_steps=NUM_STEPS, num_workers=2)


if __name__ == "__main__":
    main()
