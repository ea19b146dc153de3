"""Evaluation beside training: which weights were evaluated, and what happens when the process fails."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from collector_envs import env_config, owner_killed

from rlruntime.collectors.episode_runs import run_episodes
from rlruntime.collectors.evaluator import ProcessEvaluator
from rlruntime.envs.make import describe, make_vector_env
from rlruntime.errors import EnvironmentFault
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.build import build_policy
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import EnvConfig

MLP = Component(type="MLP", config={"hiddenSizes": [4]})
WAIT_S = 60.0
Make = Callable[..., ProcessEvaluator]


@pytest.fixture
def make(nothing_is_left: None) -> Iterator[Make]:
    """Make evaluators; nothing of theirs may be left at the end."""
    made: list[ProcessEvaluator] = []

    def make_one(config: EnvConfig, policy: ActorCritic, **arguments: Any) -> ProcessEvaluator:
        made.append(ProcessEvaluator(config, policy, **{"seeds": range(5), **arguments}))
        return made[-1]

    yield make_one
    for evaluator in made:
        evaluator.close()
    made.clear()


def policy_for(config: EnvConfig, seed: int = 0) -> ActorCritic:
    return build_policy(describe(config).spaces, MLP, seed=seed)


def test_each_result_is_that_of_the_weights_as_they_were_submitted(make: Make) -> None:
    config = EnvConfig(id="CartPole-v1", num_envs=2)
    policy = policy_for(config)
    env = make_vector_env(config)
    evaluator = make(config, policy)
    for version in (3, 7):
        expected = run_episodes(env, policy, range(5), None)
        evaluator.submit(version)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn(parameter.shape))
        result = evaluator.wait(version, WAIT_S)
        assert result.version == version
        assert result.returns.tolist() == expected[0].tolist()
        assert result.lengths.tolist() == expected[1].tolist()
        assert result.mean == float(expected[0].mean())
        assert not evaluator.is_busy
    env.close()


def test_the_newest_is_evaluated_and_those_overtaken_are_left_out(make: Make) -> None:
    config = env_config("collector_envs:SleepingEnv", 5, sleep_s=0.002, length=20)
    evaluator = make(config, policy_for(config))
    for version in range(1, 6):
        evaluator.submit(version)
    with pytest.raises(ValueError, match="version 5 is submitted after version 5"):
        evaluator.submit(5)
    assert evaluator.wait(5, WAIT_S).version == 5
    assert evaluator.poll() == []
    with pytest.raises(TimeoutError, match=r"version 6 was not evaluated within 0\.01 s"):
        evaluator.wait(6, 0.01)


def test_an_evaluator_that_is_killed_raises_or_hangs_is_a_typed_error(make: Make) -> None:
    config = env_config(num_envs=2)
    evaluator = make(config, policy_for(config))
    os.kill(evaluator.pid, signal.SIGKILL)
    evaluator.submit(1)
    with pytest.raises(EnvironmentFault, match=r"evaluation worker 0 \(pid \d+, copies 0-1\) was killed by SIGKILL"):
        evaluator.wait(1, WAIT_S)
    with pytest.raises(EnvironmentFault, match="has failed before"):
        evaluator.poll()

    config = env_config("toy_envs:FaultyEnv", 2, fault="raise", seed=1)
    evaluator = make(config, policy_for(config))
    evaluator.submit(1)
    with pytest.raises(EnvironmentFault, match="the wheel came off") as caught:
        evaluator.wait(1, WAIT_S)
    assert "toy_envs.py" in caught.value.worker_traceback

    config = env_config("toy_envs:FaultyEnv", 2, fault="hang", seed=1)
    evaluator = make(config, policy_for(config), timeout_s=0.5)
    evaluator.submit(1)
    with pytest.raises(EnvironmentFault, match=r"did not finish evaluate within 0\.5 s") as caught:
        evaluator.wait(1, WAIT_S)
    assert "spin_forever" in caught.value.worker_traceback


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody says what a process uses")
def test_an_evaluator_in_which_nothing_moves_is_a_typed_error(make: Make) -> None:
    config = env_config("collector_envs:SleepingEnv", 2, sleep_s=0.01, slow_factor=6000.0, slow_seed=1)
    evaluator = make(config, policy_for(config), silence_s=0.5)
    evaluator.submit(1)

    def look_again_and_again() -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                evaluator.wait(1, 0.05)

    with pytest.raises(EnvironmentFault, match=r"did not finish a step of evaluate within 0\.5 s"):
        look_again_and_again()


def test_an_evaluator_ends_by_itself_when_its_owner_is_killed() -> None:
    workers, left = owner_killed(
        "import time\n"
        "from collector_envs import env_config\n"
        "from rlruntime.collectors.evaluator import ProcessEvaluator\n"
        "from rlruntime.envs.make import describe\n"
        "from rlruntime.policies.build import build_policy\n"
        "config = env_config('toy_envs:FaultyEnv', 2, fault='hang', seed=1)\n"
        "evaluator = ProcessEvaluator(config, build_policy(describe(config).spaces), seeds=[0, 1])\n"
        "evaluator.submit(1)\n"
        "print(evaluator.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    assert len(workers) == 1
    assert left == []
