"""What happens when an environment or its process fails: real processes, real signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from rlruntime.envs.make import make_vector_env
from rlruntime.envs.process_pool import ProcessPool
from rlruntime.envs.protocol import StepSlot, VectorEnv, allocate_slot
from rlruntime.errors import EnvironmentFault
from rlruntime.spec.training.env import EnvConfig

COPIES = 4
SUPPORT = Path(__file__).parents[2] / "support"


@pytest.fixture
def pools() -> Iterator[list[ProcessPool]]:
    """A list whose pools are closed at the end; nothing of theirs may be left then."""
    before = set(psutil.Process().children())
    opened: list[ProcessPool] = []
    yield opened
    for pool in opened:
        pool.close()
    assert set(psutil.Process().children()) == before


def config(env: str = "FaultyEnv", *, step_timeout_s: float = 30.0, restart: bool = False, **kwargs: Any) -> EnvConfig:
    return EnvConfig(
        factory=f"toy_envs:{env}",
        kwargs=kwargs,
        num_envs=COPIES,
        num_workers=2,
        step_timeout_seconds=step_timeout_s,
        restart_workers=restart,
    )


def start(pools: list[ProcessPool], env_config: EnvConfig) -> tuple[ProcessPool, StepSlot]:
    pool = ProcessPool(env_config)
    pools.append(pool)
    slot = allocate_slot(pool.spaces, COPIES)
    pool.reset([0, 1, 2, 3], slot)
    return pool, slot


def step(env: VectorEnv, slot: StepSlot, times: int = 1) -> None:
    for _ in range(times):
        env.step(np.zeros(COPIES, np.int64), slot)


@pytest.mark.parametrize("backend", ["Loop", "ProcessPool"])
def test_an_exception_in_step_names_copy_and_step_and_brings_its_traceback(backend: str) -> None:
    env = make_vector_env(config(fault="raise"), backend=backend)
    slot = allocate_slot(env.spaces, COPIES)
    env.reset([0, 1, 2, 3], slot)
    step(env, slot)
    with pytest.raises(EnvironmentFault) as caught:
        step(env, slot)
    env.close()
    words = "environment copy 2 (step 2 of its episode, 2 in total): step raised ValueError: the wheel came off"
    assert re.fullmatch(rf"{re.escape(words)} \(toy_envs\.py:\d+\)", str(caught.value))
    assert "toy_envs.py" in caught.value.worker_traceback
    assert 'raise ValueError("the wheel came off")' in caught.value.worker_traceback


@pytest.mark.parametrize("backend", ["Loop", "ProcessPool"])
def test_an_exception_in_reset_names_the_copy(backend: str) -> None:
    env = make_vector_env(config(fault="raise_in_reset"), backend=backend)
    slot = allocate_slot(env.spaces, COPIES)
    env.reset([0, 1, 2, 3], slot)
    step(env, slot, 3)
    with pytest.raises(EnvironmentFault) as caught:
        step(env, slot)
    env.close()
    words = "environment copy 2: reset raised RuntimeError: no track to start on"
    assert re.fullmatch(rf"{words} \(toy_envs\.py:\d+\)", str(caught.value))
    assert 'raise RuntimeError("no track to start on")' in caught.value.worker_traceback


@pytest.mark.parametrize("backend", ["Loop", "ProcessPool"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("nan_observation", "observation is not finite: [2.0, nan]"),
        ("inf_reward", "reward is not finite: inf"),
    ],
)
def test_numbers_that_are_not_finite_name_copy_step_and_values(backend: str, fault: str, words: str) -> None:
    env = make_vector_env(config(fault=fault, restart=True), backend=backend)
    slot = allocate_slot(env.spaces, COPIES)
    env.reset([0, 1, 7, 2], slot)
    step(env, slot)
    with pytest.raises(EnvironmentFault) as caught:
        step(env, slot)
    env.close()
    assert str(caught.value) == f"environment copy 3 (step 2 of its episode, 2 in total): {words}"


@pytest.mark.parametrize(
    ("fault", "how"),
    [
        ("exit", "exited with code 7 during step"),
        ("kill", "was killed by SIGKILL (out of memory?) during step"),
    ],
)
def test_a_worker_that_dies_is_named_with_how_it_died(pools: list[ProcessPool], fault: str, how: str) -> None:
    pool, slot = start(pools, config(fault=fault))
    step(pool, slot)
    pid = pool.worker_pids[1]
    with pytest.raises(EnvironmentFault) as caught:
        step(pool, slot)
    assert str(caught.value) == f"environment worker 1 (pid {pid}, copies 2-3) {how}"


def test_a_crash_brings_the_stack_that_crashed(pools: list[ProcessPool]) -> None:
    pool, slot = start(pools, config(fault="segfault"))
    step(pool, slot)
    with pytest.raises(
        EnvironmentFault, match=r"was killed by SIGSEGV during step: Fatal Python error: Segm"
    ) as caught:
        step(pool, slot)
    assert "toy_envs.py" in caught.value.worker_traceback


def test_a_worker_that_is_asked_for_its_stack_from_outside_ends_and_the_words_leave_out_what_says_nothing(
    pools: list[ProcessPool],
) -> None:
    pool, slot = start(pools, config(env="CountingEnv"))
    pid = pool.worker_pids[1]
    os.kill(pid, signal.SIGUSR1)
    with pytest.raises(EnvironmentFault) as caught:
        step(pool, slot)
    assert str(caught.value) == f"environment worker 1 (pid {pid}, copies 2-3) was killed by SIGUSR1 during step"
    assert "(most recent call first):" in caught.value.worker_traceback


def test_a_worker_killed_from_outside_between_steps_is_noticed_by_the_next(pools: list[ProcessPool]) -> None:
    pool, slot = start(pools, config(env="CountingEnv"))
    pid = pool.worker_pids[0]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFault) as caught:
        step(pool, slot)
    assert str(caught.value) == (
        f"environment worker 0 (pid {pid}, copies 0-1) was killed by SIGKILL (out of memory?) during step"
    )
    with pytest.raises(EnvironmentFault, match="has failed before; make a new one"):
        step(pool, slot)


def test_a_hang_in_step_ends_at_the_deadline_with_the_stack_of_where_it_hung(pools: list[ProcessPool]) -> None:
    pool, slot = start(pools, config(fault="hang", step_timeout_s=2.0))
    pid = pool.worker_pids[1]
    step(pool, slot)
    began = time.monotonic()
    with pytest.raises(EnvironmentFault) as caught:
        step(pool, slot)
    assert 1.9 < time.monotonic() - began < 8.0
    assert str(caught.value) == (
        f"environment worker 1 (pid {pid}, copies 2-3) did not finish step within 2 s and was killed"
    )
    trace = caught.value.worker_traceback  # the whole of it, however deep
    assert trace.count("in spin_forever\n") == 60
    assert trace.endswith("in <module>\n")
    assert not psutil.pid_exists(pid)


def test_closing_does_not_wait_for_a_worker_that_hangs(pools: list[ProcessPool]) -> None:
    pool, _ = start(pools, config(env="CountingEnv"))
    pids = pool.worker_pids
    os.kill(pids[0], signal.SIGSTOP)
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 10.0
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.parametrize("fault", ["raise", "exit", "hang"])
def test_with_restart_workers_its_copies_begin_anew_and_the_others_go_on(pools: list[ProcessPool], fault: str) -> None:
    pool, slot = start(pools, config(fault=fault, restart=True, step_timeout_s=4.0, length=5))
    pids = pool.worker_pids
    step(pool, slot)
    step(pool, slot)
    assert pool.restarts == 1
    assert pool.worker_pids[0] == pids[0]
    assert pool.worker_pids[1] != pids[1]
    observation = slot.observation
    assert isinstance(observation, np.ndarray)
    assert slot.valid.tolist() == [True, True, False, False]
    assert slot.reward.tolist() == [2, 2, 0, 0]
    assert slot.terminated.tolist() == [False] * 4
    assert slot.truncated.tolist() == [False] * 4
    assert observation[:, 0].tolist() == [2, 2, 0, 0]
    # The new seed of copies 2 and 3 is SeedSequence([seed, restarts]).generate_state(1)[0], as float32.
    new_seeds = [np.random.SeedSequence([seed, 1]).generate_state(1)[0] for seed in (2, 3)]
    assert observation[2:, 1].tolist() == np.array(new_seeds, np.float32).tolist()
    step(pool, slot)
    assert slot.valid.tolist() == [True] * 4
    assert observation[:, 0].tolist() == [3, 3, 1, 1]


def test_a_worker_that_fails_before_its_first_finished_step_is_not_replaced(pools: list[ProcessPool]) -> None:
    pool, slot = start(pools, config(fault="raise", at=1, restart=True))
    with pytest.raises(EnvironmentFault, match="the wheel came off"):
        step(pool, slot)
    assert pool.restarts == 0


def test_terminal_signals_to_the_group_leave_the_workers_to_the_parent(pools: list[ProcessPool]) -> None:
    pool, slot = start(pools, config(env="CountingEnv"))
    for pid in pool.worker_pids:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    step(pool, slot)
    assert slot.valid.all()


def shared_memory_names() -> set[str]:
    """Return named shared memory but for torch's, which other tests may use at the same time."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("torch")}


PARENT = """
import sys, threading, time
import numpy as np
from rlruntime.envs.process_pool import ProcessPool
from rlruntime.envs.protocol import allocate_slot
from rlruntime.spec.training.env import EnvConfig

def work():
    config = EnvConfig(factory="toy_envs:FaultyEnv", kwargs={"fault": sys.argv[1]}, num_envs=4, num_workers=2)
    pool = ProcessPool(config)
    slot = allocate_slot(pool.spaces, 4)
    pool.reset([0, 1, 2, 3], slot)
    print(*pool.worker_pids, flush=True)
    while True:
        pool.step(np.zeros(4, np.int64), slot)

if sys.argv[2] == "thread":
    threading.Thread(target=work).start()
    time.sleep(3600)
else:
    work()
"""


@pytest.mark.parametrize(
    ("fault", "where"), [("none", "main"), ("hang", "main"), ("none", "thread"), ("hang", "thread")]
)
def test_workers_vanish_with_a_killed_parent_and_leave_no_shared_memory(fault: str, where: str) -> None:
    shared = shared_memory_names()
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, "-c", PARENT, fault, where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        time.sleep(0.3)
        parent.kill()
    gone_by = time.monotonic() + 5.0
    while any(map(_lives, workers)) and time.monotonic() < gone_by:
        time.sleep(0.05)
    assert not any(map(_lives, workers))
    assert shared_memory_names() <= shared


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_dropped_pool_ends_its_workers() -> None:
    before = set(psutil.Process().children())
    pool = ProcessPool(config(env="CountingEnv"))
    assert len(pool.worker_pids) == 2
    del pool
    assert set(psutil.Process().children()) == before
