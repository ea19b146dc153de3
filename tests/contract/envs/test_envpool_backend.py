"""EnvPool: its autoreset, its seeds, and what it can't do."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from rlruntime.envs.make import make_vector_env
from rlruntime.envs.protocol import StepSlot, VectorEnv, allocate_slot
from rlruntime.errors import ConfigError
from rlruntime.spec.training.env import EnvConfig


def make(name: str, **fields: Any) -> VectorEnv:
    pytest.importorskip("envpool")
    return make_vector_env(EnvConfig(id=name, num_envs=3, backend="EnvPool", **fields))


def first(env: VectorEnv, seeds: list[int]) -> StepSlot:
    slot = allocate_slot(env.spaces, 3)
    env.reset(seeds, slot)
    return slot


def test_a_time_limit_truncates_and_the_step_after_resets() -> None:
    env = make("Pendulum-v1", max_episode_steps=3)
    slot = first(env, [1, 2, 3])
    truncated, valid, rewards = [], [], []
    for _ in range(8):
        env.step(np.zeros((3, 1), np.float32), slot)
        truncated.append(slot.truncated[0].item())
        valid.append(slot.valid[0].item())
        rewards.append(slot.reward[0].item())
        assert not slot.terminated.any()
    assert truncated == [False, False, True, False, False, False, True, False]
    assert valid == [True, True, True, False, True, True, True, False]
    assert [reward == 0 for reward in rewards] == [not row for row in valid]
    env.close()


def test_each_copy_has_its_seed_and_a_reset_with_equal_seeds_starts_over() -> None:
    env = make("CartPole-v1")
    one = first(env, [2**62 + 5, 8, 8]).observation
    assert isinstance(one, np.ndarray)
    assert (one[1] == one[2]).all()
    assert (one[0] != one[1]).any()
    env.step(np.zeros(3, np.int64), allocate_slot(env.spaces, 3))
    np.testing.assert_array_equal(first(env, [2**62 + 5, 8, 8]).observation, one)
    env.close()


def test_discrete_observations_and_float64_spaces_are_stored_as_everywhere() -> None:
    lake, cheetah = make("FrozenLake-v1"), make("HalfCheetah-v5")
    assert first(lake, [1, 2, 3]).observation.dtype == np.int64  # type: ignore[union-attr]
    slot = first(cheetah, [1, 2, 3])
    assert slot.observation.dtype == np.float32  # type: ignore[union-attr]
    cheetah.step(np.zeros((3, 6), np.float32), slot)
    assert slot.valid.all()
    lake.close()
    cheetah.close()


def test_its_state_cant_be_captured() -> None:
    env = make("CartPole-v1")
    first(env, [1, 2, 3])
    assert env.snapshot() is None
    with pytest.raises(ConfigError, match="EnvPool can't restore the state of its environments"):
        env.restore([b"", b"", b""])
    env.close()


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"id": "CartPol-v1"},
            "spec.training.env.id: EnvPool has no such environment (got 'CartPol-v1'); "
            "did you mean CartPole-v1? or use another backend",
        ),
        (
            {"id": "CartPole-v1", "kwargs": {"gravity": 1}},
            "spec.training.env.kwargs: EnvPool could not build CartPole-v1: TypeError: Config.__new__() got an "
            "unexpected keyword argument 'gravity'; check its kwargs",
        ),
        (
            {"factory": "toy_envs:CountingEnv"},
            "spec.training.env.backend: EnvPool runs its own environments only; give an id",
        ),
    ],
)
def test_what_it_cant_run_is_one_line(fields: dict[str, Any], line: str) -> None:
    pytest.importorskip("envpool")
    with pytest.raises(ConfigError) as caught:
        make_vector_env(EnvConfig(num_envs=2, backend="EnvPool", **fields))
    assert str(caught.value) == line


def test_without_the_package_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['envpool'] = None\n"
        "from rlruntime.envs.make import make_vector_env\n"
        "from rlruntime.spec.training.env import EnvConfig\n"
        "make_vector_env(EnvConfig(id='CartPole-v1', backend='EnvPool'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "rlruntime.errors.MissingExtraError: spec.training.env.backend: the backend EnvPool needs the package "
        "'envpool', which is not installed; install it with: pip install 'rljob[envpool]'"
    )
