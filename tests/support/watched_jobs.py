"""Jobs whose series dashboards and alerts are seen with: two that are well, and one for each thing that goes wrong.

Their environments sleep, so that they cost little and last as long on any machine.
"""

from __future__ import annotations

from typing import Any

from cluster_harness.images import RUNTIME
from scene import CLAIM

MODULE, CONFIG_MAP = "watched_envs", "watched-envs"
CODE = {
    f"{MODULE}.py": '''\
"""Environments that sleep, and some that fail or hang."""

import sys
import time

from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv


class Sleepy(CartPoleEnv):
    """CartPole.

    Args:
        delay_s: of each step.
        fail_at, hang_at: steps after which it raises, or sleeps for ever.
        in_workers: do so in processes of environments alone, not where it is evaluated.
    """

    def __init__(self, delay_s=0.0, fail_at=0, hang_at=0, in_workers=False):
        super().__init__()
        ill = not in_workers or sys.argv[0] == "-c"
        self.delay_s, self.fail_at, self.hang_at, self.steps = delay_s, fail_at * ill, hang_at * ill, 0

    def step(self, action):
        self.steps += 1
        if self.fail_at and self.steps > self.fail_at:
            raise RuntimeError("the pole broke")
        if self.hang_at and self.steps > self.hang_at:
            time.sleep(3600)
        time.sleep(self.delay_s)
        return super().step(action)


class SleepyPendulum(PendulumEnv):
    """Pendulum."""

    def __init__(self, delay_s=0.0):
        super().__init__()
        self.delay_s = delay_s

    def step(self, action):
        time.sleep(self.delay_s)
        return super().step(action)
'''
}
"""Files of the jobs' `code`, by name."""
MANY_FRAMES = 10_000_000


def code(namespace: str) -> dict[str, Any]:
    """Return the ConfigMap with the environments' module."""
    metadata = {"name": CONFIG_MAP, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": CODE}


def ppo_job(name: str, *, env: dict[str, Any] | None = None, frames: int = MANY_FRAMES, **spec: Any) -> dict[str, Any]:
    """Return PPO on `Sleepy`.

    Args:
        env: fields of `training.env` beside its own; ``kwargs`` are those of the environment.
        spec: fields of the spec; those of `training` beside its own.
    """
    training: dict[str, Any] = {
        "algorithm": "PPO",
        "seed": 3,
        "totalFrames": frames,
        "numThreads": 1,
        "env": {
            "factory": f"{MODULE}:Sleepy",
            "kwargs": {"delay_s": 0.004},
            "numEnvs": 4,
            "backend": "Loop",
            "maxEpisodeSteps": 200,
            **(env or {}),
        },
        "network": {"type": "MLP", "config": {"hiddenSizes": [32, 32]}},
        "ppo": {"numSteps": 64, "minibatchSize": 64, "numEpochs": 4},
        "evaluation": {"episodes": 2},
        **spec.pop("training", {}),
    }
    return _job(name, training, **spec)


def sac_job(name: str, *, frames: int = MANY_FRAMES, **spec: Any) -> dict[str, Any]:
    """Return SAC on `SleepyPendulum` with a worker process and a small replay buffer; `spec` as in `ppo_job`."""
    training: dict[str, Any] = {
        "algorithm": "SAC",
        "seed": 3,
        "totalFrames": frames,
        "numThreads": 1,
        "env": {
            "factory": f"{MODULE}:SleepyPendulum",
            "kwargs": {"delay_s": 0.03},
            "numEnvs": 2,
            "maxEpisodeSteps": 100,
        },
        "network": {"type": "MLP", "config": {"hiddenSizes": [32, 32], "activation": "ReLU"}},
        "sac": {"randomFrames": 100, "iterationFrames": 60, "trainEverySteps": 10},
        "replay": {"storage": {"type": "Tensor", "config": {"capacity": 1500}}, "batchSize": 64},
        "collector": {"type": "AsyncProcess", "config": {"numWorkers": 1}},
        "evaluation": {"everyFrames": 1200, "episodes": 2},
        **spec.pop("training", {}),
    }
    return _job(name, training, **spec)


def well(name: str = "ppo") -> dict[str, Any]:
    """Return a job to which nothing happens but that processes of its environments fail, and are replaced."""
    pool = {"backend": "ProcessPool", "numWorkers": 1, "restartWorkers": True}
    env = {**pool, "kwargs": {"delay_s": 0.004, "fail_at": 1500, "in_workers": True}}
    saving = {"evaluation": {"everyFrames": 2000, "episodes": 2}, "checkpoint": {"everyFrames": 2000, "keep": 2}}
    return ppo_job(name, env=env, training=saving, storage=CLAIM)


def stale(name: str = "stale") -> dict[str, Any]:
    """Return a job that learns from one column of one environment at a time, of sixteen that don't wait for each other:
    while each is filled, fifteen publications go by.
    """
    settings = {"workers": "Threads", "columns": 1}
    return ppo_job(
        name,
        env={"kwargs": {"delay_s": 0.05}, "numEnvs": 16},
        training={
            "collector": {"type": "AsyncEnv", "config": settings},
            "ppo": {"numSteps": 16, "minibatchSize": 16, "numEpochs": 1},
        },
    )


def frozen(name: str = "frozen") -> dict[str, Any]:
    """Return a job with storage whose environment hangs: it runs, goes no further, and saves nothing."""
    return ppo_job(name, env={"kwargs": {"delay_s": 0.004, "hang_at": 400}}, storage=CLAIM)


def broken(name: str = "broken") -> dict[str, Any]:
    """Return a job whose environment fails in every attempt."""
    return ppo_job(name, env={"kwargs": {"delay_s": 0.004, "fail_at": 100}}, runPolicy={"backoffLimit": 4})


def stuck(name: str = "stuck") -> dict[str, Any]:
    """Return a job that no node has room for."""
    return ppo_job(name, roles=[_role("4000")])


def _role(cpu: str) -> dict[str, Any]:
    return {"name": "trainer", "type": "Trainer", "resources": {"requests": {"cpu": cpu}}}


def _job(name: str, training: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name},
        "spec": {
            "image": RUNTIME,
            "code": {"configMap": {"name": CONFIG_MAP}},
            "training": training,
            "roles": [_role("250m")],  # a pod that asks for nothing starves beside whatever else a machine does
            **spec,
        },
    }
