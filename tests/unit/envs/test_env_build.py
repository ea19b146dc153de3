"""Building one copy, and the words for what can't be built."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import gymnasium as gym
import pytest

from rlruntime.envs.build import missing_dependency, missing_module
from rlruntime.envs.make import describe, make_single_env, make_vector_env, register_heavy, resolve_backend
from rlruntime.errors import EXIT_CONFIG, ConfigError, EnvironmentFault, MissingExtraError
from rlruntime.spec.training.env import EnvConfig

ENV = "spec.training.env"
INSTALLED_IMPORT = f"put the module that registers it in {ENV}.import"


def config(**fields: Any) -> EnvConfig:
    return EnvConfig.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"id": "CartPol-v1"},
            f"{ENV}.id: no such environment is registered (got 'CartPol-v1'); did you mean CartPole-v1? or "
            + INSTALLED_IMPORT,
        ),
        ({"id": "Zzz-v0"}, f"{ENV}.id: no such environment is registered (got 'Zzz-v0'); {INSTALLED_IMPORT}"),
        ({"id": "not an id!"}, f"{ENV}.id: no such environment is registered (got 'not an id!'); {INSTALLED_IMPORT}"),
        (
            {"id": "MiniWorld-Hallway-v0"},
            f"{ENV}.id: no such environment is registered (got 'MiniWorld-Hallway-v0'); "
            f"pip install miniworld and put miniworld in {ENV}.import",
        ),
        (
            {"id": "nowhere:Thing-v0"},
            f"{ENV}.id: there is no module 'nowhere' (got 'nowhere'); "
            "install its package, or put the file beside the manifest",
        ),
        (
            {"id": "CartPole-v1", "import": ["nowhere.envs"]},
            f"{ENV}.import: there is no module 'nowhere' (got 'nowhere.envs'); "
            "install its package, or put the file beside the manifest",
        ),
        (
            {"id": "CartPole-v1", "kwargs": {"sutton_barto_rewards": True}},
            f"{ENV}.kwargs: CartPole-v1 takes no argument 'sutton_barto_rewards'; did you mean 'sutton_barto_reward'?",
        ),
        (
            {"id": "FrozenLake-v1", "kwargs": {"map_name": "9x9"}},
            f"{ENV}.kwargs: building FrozenLake-v1 raised KeyError: '9x9'; check its kwargs",
        ),
        (
            {"factory": "toy_envs:CountingEn"},
            f"{ENV}.factory: toy_envs has no 'CountingEn' (got 'toy_envs:CountingEn'); did you mean 'CountingEnv'?",
        ),
        (
            {"factory": "toy_envs:not_an_env"},
            f"{ENV}.factory: the factory returned a str, not a gymnasium.Env (got 'toy_envs:not_an_env'); "
            "return one new gymnasium.Env per call",
        ),
        (
            {"factory": "toy_envs:CountingEnv", "kwargs": {"lenght": 3}},
            f"{ENV}.factory: the factory toy_envs:CountingEnv takes no argument 'lenght'; did you mean 'length'?",
        ),
        (
            {"factory": "toy_envs:EchoEnv", "kwargs": {"action": "x"}},
            f"{ENV}.factory: the factory toy_envs:EchoEnv raised KeyError: 'x'; check its kwargs and its code",
        ),
        (
            {"id": "CartPole-v1", "wrappers": [{"type": "TimeAwareObservatio"}]},
            f"{ENV}.wrappers[0]: there is no such wrapper (got 'TimeAwareObservatio'); "
            "did you mean 'TimeAwareObservation'?",
        ),
        (
            {"id": "CartPole-v1", "wrappers": [{"type": "FrameStackObservation", "config": {"stack_siz": 2}}]},
            f"{ENV}.wrappers[0]: the wrapper FrameStackObservation takes no argument 'stack_siz'; "
            "did you mean 'stack_size'?",
        ),
        (
            {"id": "CartPole-v1", "wrappers": [{"type": "builtins:dict"}]},
            f"{ENV}.wrappers[0]: builtins:dict returned no environment; name a gymnasium.Wrapper",
        ),
    ],
)
def test_what_cant_be_built_is_one_line_with_field_and_remedy(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_single_env(config(**fields))
    assert str(caught.value) == line
    assert caught.value.exit_code == EXIT_CONFIG


def test_an_environment_of_an_installed_package_only_needs_its_import() -> None:
    pytest.importorskip("minigrid")
    code = (
        "from rlruntime.envs.make import make_single_env\n"
        "from rlruntime.spec.training.env import EnvConfig\n"
        "make_single_env(EnvConfig(id='MiniGrid-Empty-5x5-v0'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "rlruntime.errors.ConfigError: spec.training.env.id: no such environment is registered "
        "(got 'MiniGrid-Empty-5x5-v0'); put minigrid in spec.training.env.import"
    )
    assert make_single_env(config(id="MiniGrid-Empty-5x5-v0", **{"import": ["minigrid"]})).spec is not None


def test_a_missing_package_says_what_to_install() -> None:
    box2d = gym.error.DependencyNotInstalled(
        'Box2D is not installed: run `pip install swig` followed by `pip install "gymnasium[box2d]"`'
    )
    assert str(missing_dependency(box2d)) == (
        f"{ENV}.id: the environment needs a package that is not installed: {box2d}; "
        'pip install swig && pip install "gymnasium[box2d]"'
    )
    for error in (
        missing_dependency(gym.error.DependencyNotInstalled("MuJoCo is not installed, run `pip install mujoco`")),
        missing_module(ModuleNotFoundError("No module named 'mujoco'", name="mujoco")),
    ):
        assert isinstance(error, MissingExtraError)
        assert str(error) == (
            f"{ENV}.id: the environment needs the package 'mujoco', which is not installed; "
            "install it with: pip install 'rljob[mujoco]'"
        )


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("reset_alone", "reset returned a ndarray; return (observation, info) with info a dict"),
        ("shape", "reset returned an observation of shape (1,), but observation_space says (2,); make them agree"),
        (
            "bytes_for_floats",
            "reset returned an observation of dtype float32, but observation_space says uint8; make them agree",
        ),
        ("discrete_range", "reset returned an observation outside of Discrete(3) (got 3); make them agree"),
        (
            "old_step",
            "step returned 4 values, as the old Gym API did; return (observation, reward, terminated, truncated, info)",
        ),
        (
            "reward_array",
            "step returned a reward that is not one number (got array([1.])); "
            "return (observation, reward, terminated, truncated, info)",
        ),
        (
            "done_number",
            "step returned terminated that is not a bool (got 0.0); "
            "return (observation, reward, terminated, truncated, info)",
        ),
    ],
)
def test_an_environment_that_breaks_the_contract_is_refused_before_the_first_step(kind: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        describe(config(factory="toy_envs:WrongEnv", kwargs={"kind": kind}))
    assert str(caught.value) == f"{ENV}.factory: {line}"


def test_an_environment_that_fails_at_once_is_a_fault_with_its_traceback() -> None:
    with pytest.raises(EnvironmentFault) as caught:
        describe(config(factory="toy_envs:WrongEnv", kwargs={"kind": "raise_in_first_reset"}))
    words = "the environment's first reset raised OSError: no simulator at port 5000"
    assert re.fullmatch(rf"{words} \(toy_envs\.py:\d+\)", str(caught.value))
    assert 'raise OSError("no simulator at port 5000")' in caught.value.worker_traceback


def test_errors_of_the_environment_reach_the_caller_from_the_pools_workers_alike() -> None:
    with pytest.raises(ConfigError) as caught:
        make_vector_env(config(id="CartPol-v1", backend="ProcessPool", numEnvs=2, numWorkers=2))
    assert str(caught.value).startswith(f"{ENV}.id: no such environment is registered (got 'CartPol-v1'); did you mean")
    assert caught.value.field == f"{ENV}.id"
    assert caught.value.remedy.startswith("did you mean CartPole-v1?")


def test_wrappers_and_the_time_limit_are_put_around_in_order() -> None:
    env = make_single_env(
        config(
            id="CartPole-v1",
            maxEpisodeSteps=3,
            wrappers=[{"type": "FrameStackObservation", "config": {"stack_size": 2}}, {"type": "FlattenObservation"}],
        )
    )
    assert str(env) == (
        "<FlattenObservation<FrameStackObservation<TimeLimit<OrderEnforcing<CartPoleEnv<CartPole-v1>>>>>>"
    )
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


def test_auto_is_the_loop_unless_the_environment_is_registered_as_heavy() -> None:
    assert resolve_backend(config(id="CartPole-v1")) == "Loop"
    assert resolve_backend(config(id="ALE/Pong-v5")) == "ProcessPool"
    assert resolve_backend(config(id="ALE/Pong-v5", numEnvs=1)) == "Loop"
    assert resolve_backend(config(id="ALE/Pong-v5", backend="Loop")) == "Loop"
    assert resolve_backend(config(factory="toy_envs:CountingEnv")) == "Loop"
    register_heavy("toy_envs:Heavy*")
    register_heavy("toy_envs:Heavy*")
    assert resolve_backend(config(factory="toy_envs:HeavyEnv")) == "ProcessPool"


def test_an_environment_that_does_not_render_says_so() -> None:
    with pytest.raises(ConfigError) as caught:
        make_single_env(config(factory="toy_envs:CountingEnv"), render_mode="rgb_array")
    assert str(caught.value) == (
        f"{ENV}.factory: the environment does not render as rgb_array (got 'toy_envs:CountingEnv'); "
        "let it take render_mode and keep it as an attribute"
    )


def test_only_the_loop_renders() -> None:
    env = make_vector_env(config(id="CartPole-v1", numEnvs=1), render_mode="rgb_array")
    env.close()
    with pytest.raises(ConfigError, match="the backend ProcessPool can't render; use the backend Loop"):
        make_vector_env(config(id="CartPole-v1", backend="ProcessPool"), render_mode="rgb_array")


def test_workers_import_neither_torch_nor_pydantic() -> None:
    code = "import rlruntime.envs.worker, sys; assert not {'torch', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
