"""Policies of every kind: built, saved, loaded, exported, and acting quickly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors import safe_open
from tensordict import TensorDict

from rlruntime.collectors.acting import make_chooser
from rlruntime.collectors.rollout import Rollout
from rlruntime.envs.protocol import EnvSpaces
from rlruntime.errors import ConfigError
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.artifact import load_policy, save_policy
from rlruntime.policies.build import KINDS, build_policy
from rlruntime.policies.export import export_policy
from rlruntime.policies.fast_actor import fast_actor
from rlruntime.policies.flat import FlatParameters
from rlruntime.policies.policy import Policy
from rlruntime.spec.training.component import Component

OBSERVATION = spaces.Box(-3.0, 3.0, (5,), np.float32)
BOX = spaces.Box(-2.0, 2.0, (3,), np.float32)
ACTIONS: dict[str, gym.Space[Any]] = {
    "ActorCritic": spaces.Discrete(4),
    "SAC": BOX,
    "TD3": BOX,
    "DQN": spaces.Discrete(4, start=3),
    "dueling": spaces.Discrete(4),
}
CASES = list(ACTIONS)


def policy_of(case: str, *, norm: bool = False, network: dict[str, Any] | None = None) -> Policy:
    kind: Any = "DQN" if case == "dueling" else case
    built = build_policy(
        EnvSpaces(OBSERVATION, ACTIONS[case]),
        Component(type="MLP", config={"hiddenSizes": [16, 8], "activation": "ReLU", **(network or {})}),
        [Component(type="ObservationNorm")] * norm,
        seed=3,
        kind=kind,
        dueling=case == "dueling",
    )
    with torch.no_grad():
        for parameter in built.parameters():  # heads begin near 0, where little could differ
            generator = torch.Generator().manual_seed(parameter.numel())
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return built


def observations(rows: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-3, 3, (rows, 5)).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_a_saved_policy_is_of_its_kind_and_acts_the_same_when_loaded(case: str, tmp_path: Path) -> None:
    policy = policy_of(case, norm=True)
    save_policy(policy, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    assert (loaded.module.kind, type(loaded.module)) == (policy.kind, type(policy))
    rows = observations(50)
    with torch.no_grad():
        mode = policy.distribution.mode(policy.action_params(torch.from_numpy(rows)), None)
    expected = policy.distribution.to_env(mode.numpy())
    start = getattr(ACTIONS[case], "start", 0)
    np.testing.assert_array_equal(loaded.act(rows).action, expected + start)
    space = ACTIONS[case]
    assert all(space.contains(action) for action in loaded.act(rows, deterministic=False).action)


@pytest.mark.parametrize("case", CASES)
def test_an_exported_policy_acts_the_same(case: str, tmp_path: Path) -> None:
    save_policy(policy_of(case, norm=True), tmp_path / "policy.safetensors")
    files = export_policy(tmp_path / "policy.safetensors", tmp_path / "export", ("safetensors", "torch"))
    rows = observations(7)
    expected = load_policy(files["safetensors"]).act(rows).action
    program = torch.export.load(files["torch"]).module()
    with torch.no_grad():
        found = program(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_a_policy_file_without_a_kind_is_an_actor_critic(tmp_path: Path) -> None:
    import json

    from safetensors.torch import save_file

    path = tmp_path / "policy.safetensors"
    save_policy(policy_of("ActorCritic"), path)
    with safe_open(path, framework="pt") as file:
        document = json.loads(file.metadata()["rljob.policy"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    assert (document.pop("kind"), document.pop("dueling")) == ("ActorCritic", False)
    save_file(tensors, path, metadata={"rljob.policy": json.dumps(document)})
    assert isinstance(load_policy(path).module, ActorCritic)


def test_only_an_actor_critic_judges() -> None:
    for case in CASES:
        assert isinstance(policy_of(case), ActorCritic) == (case == "ActorCritic")
        td = TensorDict({"observation": torch.from_numpy(observations(4))}, [4])
        with torch.no_grad():
            out = policy_of(case)(td, generator=torch.Generator().manual_seed(0))
        assert set(out.keys()) - {"value"} == {"observation", "action", "log_prob"}
        assert ("value" in out) == (case == "ActorCritic")


def test_kinds_that_do_not_exist_or_do_not_duel_are_refused() -> None:
    spaces_seen = EnvSpaces(OBSERVATION, BOX)
    wrong: Any = "PPO"
    with pytest.raises(ValueError, match="no policy of kind 'PPO'; use one of ActorCritic, SAC, TD3, DQN"):
        build_policy(spaces_seen, kind=wrong)
    with pytest.raises(ValueError, match="only a policy of kind DQN can be dueling, not SAC"):
        build_policy(spaces_seen, kind="SAC", dueling=True)
    with pytest.raises(ConfigError, match=r"spec\.training\.env: DQN needs Discrete actions"):
        build_policy(spaces_seen, kind="DQN")
    assert KINDS == ("ActorCritic", "SAC", "TD3", "DQN")


def test_a_network_that_is_shared_by_default_gives_a_policy_without_critic_one_encoder() -> None:
    policy = policy_of("SAC", network={"shared": True})
    assert [name for name, _ in policy.named_parameters()] == [
        "actor_encoder.layers.0.weight",
        "actor_encoder.layers.0.bias",
        "actor_encoder.layers.1.weight",
        "actor_encoder.layers.1.bias",
        "actor_head.weight",
        "actor_head.bias",
    ]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("num_rows", [1, 16])
def test_the_fast_actor_acts_as_the_policy_does(case: str, num_rows: int) -> None:
    policy = policy_of(case, network={"hiddenSizes": [256, 256]})
    actor = fast_actor(policy, num_rows)
    assert actor is not None
    rows = observations(num_rows)
    with torch.no_grad():
        expected = policy.action_params(torch.from_numpy(rows)).numpy()
    found = np.zeros_like(expected)
    actor(rows, found)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


def test_a_fast_actor_knows_when_its_parameters_have_moved() -> None:
    policy = policy_of("SAC")
    actor = fast_actor(policy, 2)
    assert actor is not None
    assert actor.is_current
    FlatParameters(policy)
    assert not actor.is_current


@pytest.mark.parametrize("case", ["SAC", "TD3", "DQN", "dueling"])
def test_both_choosers_choose_the_same_actions(case: str) -> None:
    chosen = []
    for norm in (False, True):  # with a transform, whose first statistics change nothing, PyTorch acts
        policy = policy_of(case, norm=norm)
        rollout = Rollout(policy.spaces, policy.distribution, 6, 2)
        assert isinstance(rollout.observation, torch.Tensor)
        rollout.observation.copy_(torch.from_numpy(observations(14)).view(7, 2, 5))
        choose = make_chooser(policy, rollout, torch.Generator().manual_seed(5)).start()
        with torch.no_grad():
            for step in range(6):
                choose(step)
        chosen.append(rollout.action.clone())
    torch.testing.assert_close(chosen[0], chosen[1], rtol=1e-4, atol=1e-5)
