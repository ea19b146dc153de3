"""What happens when a worker, the learner or an evaluator fails: real processes, real signals."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from collector_envs import env_config, env_seed, owner_killed, wait_until_ended

from rlruntime.collectors.async_process import AsyncProcessCollector
from rlruntime.collectors.sync_process import SyncProcessCollector
from rlruntime.envs.make import describe
from rlruntime.errors import ConfigError, EnvironmentFault
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.build import build_policy
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import EnvConfig
from rlruntime.spec.training.storages import TensorStorageConfig
from rlruntime.storages.buffer import ReplayBuffer
from rlruntime.storages.storage import TensorStorage

MLP = Component(type="MLP", config={"hiddenSizes": [4]})
KINDS = (SyncProcessCollector, AsyncProcessCollector)
BOTH = pytest.mark.parametrize("kind", KINDS)
Make = Callable[..., Any]


@pytest.fixture
def make(nothing_is_left: None) -> Iterator[Make]:
    """Make collectors of one worker with two copies; nothing of theirs may be left at the end."""
    made: list[Any] = []

    def make_one(kind: Any, config: EnvConfig, **arguments: Any) -> Any:
        made.append(kind(config, policy_for(config), **{"num_steps": 5, "num_workers": 1, **arguments}))
        return made[-1]

    yield make_one
    for collector in made:
        collector.close()
    made.clear()


def policy_for(config: EnvConfig) -> ActorCritic:
    return build_policy(describe(config).spaces, MLP)


def fault_of(collector: Any) -> EnvironmentFault:
    def collect_on() -> None:
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:  # the other worker goes on until the learner takes notice
            collector.collect()

    with pytest.raises(EnvironmentFault) as caught:
        collect_on()
    with pytest.raises(EnvironmentFault, match="has failed before; make a new one"):
        collector.collect()
    started = time.monotonic()
    collector.close()
    collector.close()
    assert time.monotonic() - started < 10.0
    return caught.value


@BOTH
def test_an_environment_that_raises_brings_its_worker_s_traceback(make: Make, kind: Any) -> None:
    config = env_config("toy_envs:FaultyEnv", 2, fault="raise", seed=env_seed(1), length=100)
    fault = fault_of(make(kind, config))
    words = "environment copy 1 (step 2 of its episode, 2 in total): step raised ValueError: the wheel came off"
    assert re.fullmatch(rf"{re.escape(words)} \(toy_envs\.py:\d+\)", str(fault))
    assert 'raise ValueError("the wheel came off")' in fault.worker_traceback


@BOTH
def test_a_worker_that_dies_is_named_with_how_it_died(make: Make, kind: Any) -> None:
    config = env_config("toy_envs:FaultyEnv", 2, fault="kill", seed=env_seed(1), length=100)
    collector = make(kind, config, num_workers=2)
    pid = collector.worker_pids[1]
    words = f"collection worker 1 (pid {pid}, copy 1) was killed by SIGKILL (out of memory?) during collect"
    assert str(fault_of(collector)) == words


@BOTH
def test_a_worker_killed_from_outside_is_noticed_by_the_learner(make: Make, kind: Any) -> None:
    collector = make(kind, env_config(num_envs=2))
    collector.collect()
    os.kill(collector.worker_pids[0], signal.SIGKILL)
    assert "collection worker 0" in str(fault_of(collector))


def test_a_dead_worker_is_a_fault_of_publishing_too(make: Make) -> None:
    collector = make(SyncProcessCollector, env_config(num_envs=2))
    os.kill(collector.worker_pids[0], signal.SIGKILL)
    assert wait_until_ended(collector.worker_pids[:1], 30.0) == []
    with pytest.raises(EnvironmentFault, match=r"worker 0 .* was killed by SIGKILL"):
        collector.publish()


@BOTH
def test_a_worker_that_hangs_is_a_fault_at_its_deadline_with_its_stack(make: Make, kind: Any) -> None:
    config = env_config("toy_envs:FaultyEnv", 2, timeout_s=1.0, fault="hang", seed=env_seed(1), length=100)
    fault = fault_of(make(kind, config))
    assert re.fullmatch(
        r"collection worker 0 \(pid \d+, copies 0-1\) did not finish a step of its environments \(after \d+\) "
        "within 1 s and was killed",
        str(fault),
    )
    assert "spin_forever" in fault.worker_traceback


@BOTH
def test_a_slow_learner_is_no_fault(make: Make, kind: Any) -> None:
    collector = make(kind, env_config(num_envs=2, timeout_s=0.5))
    for _ in range(2):
        collector.collect()
        time.sleep(1.0)
    assert collector.collect() is not None


@BOTH
def test_workers_end_by_themselves_when_the_learner_is_killed(kind: Any) -> None:
    workers, left = owner_killed(
        "import time\n"
        "from collector_envs import env_config\n"
        f"from {kind.__module__} import {kind.__name__}\n"
        "from rlruntime.envs.make import describe\n"
        "from rlruntime.policies.build import build_policy\n"
        "config = env_config('collector_envs:SleepingEnv', 2, sleep_s=0.01)\n"
        "policy = build_policy(describe(config).spaces)\n"
        f"collector = {kind.__name__}(config, policy, num_steps=20, num_workers=1)\n"
        "collector.collect()\n"
        "print(*collector.worker_pids, flush=True)\n"
        "while True:\n"
        "    collector.collect()\n"
    )
    assert len(workers) == 1
    assert left == []


def test_what_cannot_travel_or_be_built_is_said_before_anything_runs(make: Make) -> None:
    config = env_config(num_envs=2)
    with pytest.raises(ConfigError, match="can't write into this replay buffer"):
        make(SyncProcessCollector, config, buffer=ReplayBuffer(TensorStorage(TensorStorageConfig(capacity=10))))
    policy = policy_for(config)
    policy.describe = lambda: "a function that has no name elsewhere"  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="the policy can't travel to a worker process"):
        SyncProcessCollector(config, policy, num_steps=5, num_workers=1)
    other = env_config("collector_envs:LineEnv", 2)
    with pytest.raises(ConfigError, match="the policy was built for other spaces"):
        SyncProcessCollector(other, policy_for(config), num_steps=5, num_workers=1)
    broken = env_config("toy_envs:WrongEnv", 2, kind="raise_in_first_reset")
    with pytest.raises(EnvironmentFault, match="no simulator at port 5000"):
        SyncProcessCollector(broken, policy_for(config), num_steps=5, num_workers=1)
