"""`ModuleTransform`: whose weights these are, when they change, and what is known of its outcome."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import rlruntime.transforms.builtin  # noqa: F401  (registers them)
from rlruntime.envs.protocol import EnvSpaces
from rlruntime.errors import ConfigError
from rlruntime.policies.artifact import load_policy, save_policy
from rlruntime.policies.build import build_policy
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.transforms import ModuleTransformConfig
from rlruntime.transforms.module import ModuleTransform

BOX = spaces.Box(-1, 1, (3,), np.float32)
DICT = spaces.Dict({"a": BOX, "b": spaces.Box(0, 255, (2, 2), np.uint8), "c": spaces.Discrete(3, start=1)})
ROWS = torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]])


def linear(size_out: int = 2, fill: float = 1.0) -> nn.Linear:
    layer = nn.Linear(3, size_out)
    nn.init.constant_(layer.weight, fill)
    nn.init.zeros_(layer.bias)
    return layer


def of(module: nn.Module, space: gym.Space[Any] = BOX, output_space: Any = None, **config: Any) -> ModuleTransform:
    return ModuleTransform(ModuleTransformConfig(**config), space, module=module, output_space=output_space)


def test_learning_elsewhere_reaches_the_transform_by_an_explicit_update_alone() -> None:
    learner = linear()
    transform = of(learner)
    assert transform(ROWS)[0].tolist() == [6.0, 6.0]
    with torch.no_grad():
        learner.weight.fill_(2.0)
    assert transform(ROWS)[0].tolist() == [6.0, 6.0]
    assert transform.weights_version == 0
    assert transform.update_weights(learner.state_dict()) == 1
    assert transform(ROWS)[0].tolist() == [12.0, 12.0]
    with torch.no_grad():
        learner.weight.fill_(3.0)
    assert transform(ROWS)[0].tolist() == [12.0, 12.0]
    assert transform.update_weights(learner.state_dict()) == 2


@pytest.mark.parametrize(
    "state",
    [{"weight": torch.zeros(2, 3)}, {**linear().state_dict(), "more": torch.zeros(1)}, linear(5).state_dict()],
)
def test_weights_of_another_module_are_refused_and_none_is_changed(state: dict[str, Tensor]) -> None:
    transform = of(linear())
    with pytest.raises(ValueError, match=r"the weight '\w+' of the module has shape .*, and the one given"):
        transform.update_weights(state)
    assert transform(ROWS)[0].tolist() == [6.0, 6.0]
    assert transform.weights_version == 0


def test_no_gradient_is_recorded_unless_it_is_asked_for() -> None:
    rows = ROWS.clone().requires_grad_()
    assert not of(linear())(rows).requires_grad
    assert not any(parameter.requires_grad for parameter in of(linear()).parameters())
    learns = of(linear(), requires_grad=True)
    learns(rows).sum().backward()
    assert learns.module.weight.grad is not None
    with torch.no_grad():
        assert not learns(rows).requires_grad


def test_module_stays_in_evaluation_mode() -> None:
    transform = of(nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(3)))
    transform.train()
    torch.testing.assert_close(transform(ROWS), ROWS, rtol=1e-4, atol=1e-4)


def test_space_is_tried_out_or_given() -> None:
    assert of(linear(4)).observation_space(BOX) == spaces.Box(-np.inf, np.inf, (4,), np.float32)
    assert of(linear(4), shape=(4,), low=0.0, high=1.0).observation_space(BOX) == spaces.Box(0, 1, (4,), np.float32)
    own = spaces.Box(-3, 3, (4,), np.float32)
    assert of(linear(4), output_space=own).observation_space(BOX) is own
    with pytest.raises(ConfigError, match=r"the module returned rows of shape \(4,\).*; make them agree"):
        of(linear(4), shape=(5,))


class Mixed(nn.Module):
    """Takes two parts and returns two others."""

    def forward(self, numbers: Tensor, category: Tensor) -> tuple[Tensor, Tensor]:
        return numbers * category.unsqueeze(-1), category > 1


def test_keys_go_in_and_out_by_name() -> None:
    transform = of(Mixed(), DICT, in_keys=("a", "c"), out_keys=("scaled", "late"))
    seen: Any = transform.observation_space(DICT)
    assert set(seen.spaces) == {"b", "scaled", "late"}
    assert seen["scaled"] == spaces.Box(-np.inf, np.inf, (3,), np.float32)
    assert seen["late"] == spaces.MultiBinary(())
    rows: Any = {"a": ROWS, "b": torch.zeros(2, 2, 2), "c": torch.tensor([2, 1])}
    out: Any = transform(rows)
    assert out["scaled"].tolist() == [[2, 4, 6], [0, -1, 0.5]]
    assert set(out) == {"b", "scaled", "late"}
    kept: Any = of(Mixed(), DICT, in_keys=("a", "c"), out_keys=("a", "late"), keep=True).observation_space(DICT)
    assert set(kept.spaces) == {"a", "b", "c", "late"}


def test_module_of_actions_maps_from_a_space_that_is_given() -> None:
    action = spaces.Box(-1, 1, (2,), np.float32)
    transform = of(linear(2), action, inverse=True, shape=(3,), low=-1.0, high=1.0)
    assert transform.policy_space == BOX
    assert transform.action_inverse(ROWS)[0].tolist() == [6.0, 6.0]
    assert transform(ROWS) is ROWS
    with pytest.raises(ConfigError, match=r"doesn't tell which ones it takes.*; give shape, low and high"):
        of(linear(2), action, inverse=True)
    with pytest.raises(ConfigError, match=r"the module returned actions of shape \(4,\)"):
        of(linear(4), action, inverse=True, shape=(3,))


class Wrong(nn.Module):
    """Returns less than a row for each row."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows.sum()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModuleTransform(ModuleTransformConfig(), BOX), r"ModuleTransform has no module.*; give factory"),
        (
            lambda: ModuleTransform(ModuleTransformConfig(factory="builtins:dict"), BOX),
            r"the factory returned no torch.nn.Module \(got 'dict'\); return one",
        ),
        (lambda: of(Wrong()), r"the module must return 1 tensor\(s\) with a row for each row"),
        (lambda: of(linear(), out_keys=("x",)), r"outKeys name parts of a Dict observation"),
        (lambda: of(linear(), DICT, in_keys=("aa",)), r"ModuleTransform finds no such key"),
        (lambda: of(linear(), keep=True), r"what stays needs names beside it"),
    ],
)
def test_module_that_does_not_fit_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_module_is_saved_and_loaded_with_the_policy(tmp_path: Any) -> None:
    part = Component(type="ModuleTransform", config={"factory": "transform_envs:wide_module"})
    policy = build_policy(EnvSpaces(BOX, spaces.Discrete(2)), transforms=[part])
    transform: Any = policy.transforms[0]
    transform.update_weights({name: tensor + 1.0 for name, tensor in transform.module.state_dict().items()})
    save_policy(policy, tmp_path / "policy.safetensors")
    loaded: Any = load_policy(tmp_path / "policy.safetensors").module
    assert loaded.transforms[0].weights_version == 1
    torch.testing.assert_close(loaded.action_params(ROWS), policy.action_params(ROWS), rtol=0, atol=0)


def test_device_of_its_own_is_kept_and_rows_come_back() -> None:
    transform = of(linear(), device="cpu").to("cpu")
    assert transform(ROWS).device == ROWS.device
    assert next(transform.module.parameters()).device == torch.device("cpu")


def test_parameters_that_a_factory_draws_follow_the_seed_and_leave_torch_alone() -> None:
    def weight(seed: int) -> Tensor:
        config = ModuleTransformConfig(factory="transform_envs:wide_module", seed=seed)
        drawn: Tensor = ModuleTransform(config, BOX).module.state_dict()["0.weight"]
        return drawn

    torch.manual_seed(7)
    before = torch.get_rng_state()
    assert torch.equal(weight(1), weight(1))
    assert not torch.equal(weight(1), weight(2))
    assert torch.equal(torch.get_rng_state(), before)
