"""Copies that are stepped by their numbers and don't wait for each other, in processes and in threads."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collector_envs import env_config, owner_killed

from rlruntime.envs.async_pool import AsyncEnvPool, Workers
from rlruntime.envs.make import make_vector_env
from rlruntime.envs.protocol import StepSlot, allocate_slot
from rlruntime.errors import ConfigError, EnvironmentFault
from rlruntime.spec.training.env import EnvConfig

BOTH = pytest.mark.parametrize("workers", ["Processes", "Threads"])


@pytest.fixture
def pools(nothing_is_left: None) -> Iterator[list[AsyncEnvPool]]:
    """A list whose pools are closed at the end."""
    opened: list[AsyncEnvPool] = []
    yield opened
    for pool in opened:
        pool.close()


def started(pools: list[AsyncEnvPool], config: EnvConfig, workers: Workers = "Processes") -> AsyncEnvPool:
    pool = AsyncEnvPool(config, workers=workers)
    pools.append(pool)
    pool.reset(range(pool.num_envs))
    assert sorted(pool.recv(pool.num_envs).ids.tolist()) == list(range(pool.num_envs))
    return pool


def row(slot: StepSlot, copy: int) -> tuple[Any, ...]:
    assert isinstance(slot.observation, np.ndarray)
    flags = bool(slot.terminated[copy]), bool(slot.truncated[copy]), bool(slot.valid[copy])
    return (*slot.observation[copy].tolist(), float(slot.reward[copy]), *flags)


def step(pool: AsyncEnvPool, *copies: int) -> None:
    pool.send(list(copies), np.zeros(len(copies), np.int64))


@BOTH
@pytest.mark.parametrize("num_workers", [None, 2])
def test_each_copy_has_the_outcomes_that_the_loop_gives_it(
    pools: list[AsyncEnvPool], workers: Workers, num_workers: int | None
) -> None:
    config = env_config("toy_envs:RandomWalkEnv", 3).model_copy(update={"num_workers": num_workers})
    actions = np.random.default_rng(1).integers(0, 3, (40, 3))
    loop = make_vector_env(config, backend="Loop")
    slot = allocate_slot(loop.spaces, 3)
    loop.reset(range(3), slot)
    expected: list[list[Any]] = [[row(slot, copy)] for copy in range(3)]
    for chosen in actions:
        loop.step(chosen, slot)
        for copy in range(3):
            expected[copy].append(row(slot, copy))
    loop.close()
    assert any(not rows[-1] for rows in expected[0])  # an episode ended, and the next step reset

    pool = started(pools, config, workers)
    ready = pool.recv()
    seen: list[list[Any]] = [[row(ready.slot, copy)] for copy in range(3)]
    pool.send(range(3), actions[0])
    while pool.num_pending:
        ids, slot = pool.recv()
        for copy in ids.tolist():
            seen[copy].append(row(slot, copy))
            if len(seen[copy]) <= 40:
                pool.send([copy], actions[len(seen[copy]) - 1, copy : copy + 1])
    assert seen == expected


@BOTH
def test_a_slow_copy_holds_up_no_other(pools: list[AsyncEnvPool], workers: Workers, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    pool = started(pools, env_config("collector_envs:GatedEnv", 3, gate=str(gate), seed=1), workers)
    step(pool, 1)
    pool.recv()
    step(pool, 1)  # it waits in its second step
    for count in range(1, 21):
        step(pool, 0, 2)
        ids, slot = pool.recv(2)
        assert sorted(ids.tolist()) == [0, 2]
        assert row(slot, 0)[0] == count
    assert pool.recv(timeout_s=0.01).ids.tolist() == []
    gate.touch()
    ids, slot = pool.recv(5)  # all that are under way, where those are fewer
    assert ids.tolist() == [1]
    assert row(slot, 1)[:3] == (2.0, 1.0, 2.0)


@BOTH
def test_an_exception_names_copy_and_step_and_brings_its_traceback(pools: list[AsyncEnvPool], workers: Workers) -> None:
    pool = started(pools, env_config("toy_envs:FaultyEnv", 4, fault="raise"), workers)
    step(pool, 0, 1, 2, 3)
    pool.recv(4)
    step(pool, 2)
    with pytest.raises(EnvironmentFault) as caught:
        pool.recv()
    words = "environment copy 2 (step 2 of its episode, 2 in total): step raised ValueError: the wheel came off"
    assert re.fullmatch(rf"{re.escape(words)} \(toy_envs\.py:\d+\)", str(caught.value))
    assert 'raise ValueError("the wheel came off")' in caught.value.worker_traceback
    with pytest.raises(EnvironmentFault, match="has failed before; make a new one"):
        step(pool, 0)


@pytest.mark.parametrize(
    ("fault", "how"),
    [("exit", "exited with code 7"), ("kill", r"was killed by SIGKILL \(out of memory\?\)"), ("segfault", "SIGSEGV")],
)
def test_a_worker_that_dies_is_named_with_copy_and_step(pools: list[AsyncEnvPool], fault: str, how: str) -> None:
    pool = started(pools, env_config("toy_envs:FaultyEnv", 3, fault=fault))
    step(pool, 0, 1, 2)
    pool.recv(3)
    step(pool, 0, 1, 2)
    words = rf"environment worker 2 \(pid {pool.worker_pids[2]}, copy 2\) .*{how}.* during step 2 of copy 2"
    with pytest.raises(EnvironmentFault, match=words) as caught:
        pool.recv(3)
    assert ("toy_envs.py" in caught.value.worker_traceback) == (fault == "segfault")


def test_a_worker_killed_from_outside_is_noticed_by_the_next_receive(pools: list[AsyncEnvPool]) -> None:
    pool = started(pools, env_config(num_envs=2))
    os.kill(pool.worker_pids[1], signal.SIGKILL)
    step(pool, 0, 1)
    with pytest.raises(EnvironmentFault, match=r"worker 1 \(pid \d+, copy 1\) was killed by SIGKILL"):
        pool.recv(2)


@BOTH
def test_a_copy_that_hangs_is_a_fault_at_its_deadline_with_its_stack(
    pools: list[AsyncEnvPool], workers: Workers, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    config = env_config("collector_envs:GatedEnv", 2, timeout_s=0.5, gate=str(gate), seed=1, at=1)
    pool = started(pools, config, workers)
    step(pool, 0, 1)
    with pytest.raises(EnvironmentFault, match=r"did not finish step 1 of copy 1 within 0\.5 s") as caught:
        pool.recv(2)
    assert "collector_envs.py" in caught.value.worker_traceback
    gate.touch()  # a thread can't be killed


def test_results_that_were_there_in_time_count_however_late_they_are_received(pools: list[AsyncEnvPool]) -> None:
    pool = started(pools, env_config(num_envs=2, timeout_s=0.3))
    step(pool, 0, 1)
    time.sleep(0.6)
    assert sorted(pool.recv(2).ids.tolist()) == [0, 1]


def test_closing_does_not_wait_for_a_copy_that_hangs(pools: list[AsyncEnvPool]) -> None:
    pool = started(pools, env_config("toy_envs:FaultyEnv", 2, fault="hang", seed=1, at=1))
    step(pool, 0, 1)
    pool.recv(1)
    pool.close()
    pool.close()
    with pytest.raises(EnvironmentFault, match="is closed"):
        pool.recv()


def test_what_cannot_be_sent_is_refused(pools: list[AsyncEnvPool]) -> None:
    pool = started(pools, env_config(num_envs=2), "Threads")
    with pytest.raises(ValueError, match="there is no copy 2"):
        step(pool, 2)
    with pytest.raises(ValueError, match="need one action each"):
        pool.send([0, 1], np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="need one action each"):
        step(pool, 0, 0)
    step(pool, 0)
    with pytest.raises(ValueError, match="copy 0 is under way"):
        step(pool, 0, 1)
    assert pool.num_pending == 1
    with pytest.raises(ConfigError, match="does not replace workers"):
        AsyncEnvPool(env_config().model_copy(update={"restart_workers": True}))


def test_a_reset_begins_new_episodes_with_new_seeds(pools: list[AsyncEnvPool]) -> None:
    pool = started(pools, env_config(num_envs=2))
    step(pool, 0)
    pool.reset([7, 8])
    ids, slot = pool.recv(2)
    assert sorted(ids.tolist()) == [0, 1]
    assert [row(slot, copy) for copy in (0, 1)] == [(0, 7, 0, False, False, False), (0, 8, 0, False, False, False)]


def test_waiting_takes_next_to_no_time_of_the_processor(pools: list[AsyncEnvPool]) -> None:
    pool = started(pools, env_config("collector_envs:SleepingEnv", 2, sleep_s=1.0))
    step(pool, 0, 1)
    before = time.process_time()
    pool.recv(2)
    assert time.process_time() - before < 0.2


def test_workers_end_by_themselves_when_their_owner_is_killed() -> None:
    workers, left = owner_killed(
        "import time\n"
        "from collector_envs import env_config\n"
        "from rlruntime.envs.async_pool import AsyncEnvPool\n"
        "pool = AsyncEnvPool(env_config(num_envs=2))\n"
        "print(*pool.worker_pids, flush=True)\n"
        "time.sleep(600)\n"
    )
    assert len(workers) == 2
    assert left == []
