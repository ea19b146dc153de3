"""Networks over every observation, the actor-critic protocol, and parameters in one flat tensor."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import nn

from rlruntime.envs.protocol import EnvSpaces
from rlruntime.errors import ConfigError
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.build import build_policy
from rlruntime.policies.flat import Adam, FlatParameters
from rlruntime.policies.networks import Flatten
from rlruntime.spec.training.component import Component

BOX = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (12, 10, 3), np.uint8)
SMALL_CNN: dict[str, Any] = {"channels": [2, 4], "kernelSizes": [4, 2], "strides": [2, 1], "hiddenSizes": [5]}


def policy_of(
    observation: gym.Space[Any] = BOX, action: gym.Space[Any] | None = None, network: str = "MLP", **config: Any
) -> ActorCritic:
    spaces_seen = EnvSpaces(observation, action or spaces.Discrete(2))
    return build_policy(spaces_seen, Component(type=network, config=config))


def test_flattening_gives_numbers_as_they_are_bytes_to_one_and_categories_one_hot() -> None:
    space = spaces.Dict(
        {
            "box": spaces.Box(-5, 5, (2,), np.float32),
            "bytes": spaces.Box(0, 255, (2,), np.uint8),
            "counts": spaces.Box(0, 9, (1,), np.int64),
            "category": spaces.Discrete(3, start=2),
            "table": spaces.MultiDiscrete([2, 3], start=[5, 1]),
            "bits": spaces.MultiBinary(2),
        }
    )
    flatten = Flatten(space)
    row = {
        "box": torch.tensor([[0.5, -2.0]]),
        "bytes": torch.tensor([[0, 51]], dtype=torch.uint8),
        "counts": torch.tensor([[7]]),
        "category": torch.tensor([3]),
        "table": torch.tensor([[6, 3]]),
        "bits": torch.tensor([[1, 0]], dtype=torch.int8),
    }
    columns = flatten({key: row[key] for key in space.spaces})
    assert flatten.output_size == columns.shape[1] == 15
    expected = {
        "box": [0.5, -2.0],
        "bytes": [0.0, 0.2],
        "counts": [7.0],
        "category": [0.0, 1.0, 0.0],
        "table": [0.0, 1.0, 0.0, 0.0, 1.0],
        "bits": [1.0, 0.0],
    }
    assert columns[0].tolist() == pytest.approx([number for key in space.spaces for number in expected[key]])


def test_images_may_have_their_channels_first_or_last() -> None:
    last = policy_of(IMAGE, network="CNN", **SMALL_CNN)
    first = policy_of(spaces.Box(0, 255, (3, 12, 10), np.uint8), network="CNN", **SMALL_CNN)
    first.load_state_dict(last.state_dict())
    image = torch.randint(0, 256, (2, 12, 10, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    torch.testing.assert_close(first.values(image.permute(0, 3, 1, 2).contiguous()), last.values(image))


def test_a_cnn_scales_bytes_and_adds_what_is_no_image() -> None:
    space = spaces.Dict({"camera": IMAGE, "speed": BOX})
    policy = policy_of(space, network="CNN", **SMALL_CNN)
    image = torch.full((1, 12, 10, 3), 255, dtype=torch.uint8)
    speeds = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    both = policy.values({"camera": image.expand(2, -1, -1, -1), "speed": speeds})
    assert both[0] != both[1]
    assert policy.actor_encoder is policy.critic_encoder


@pytest.mark.parametrize(
    ("network", "config", "space", "words"),
    [
        ("CNN", {}, BOX, "the observation has no image, a Box with three dimensions .*; use type: MLP"),
        ("CNN", {}, IMAGE, "a convolution with kernel 4 gets an image of only 2x1 pixels .*; use smaller kernels"),
        ("CNN", {"strides": [1]}, IMAGE, "channels, kernelSizes and strides must have the same length"),
        ("torch.nn:Identity", {}, BOX, r"must be a torch\.nn\.Module with an integer attribute output_size"),
        ("MPL", {}, BOX, "there is no network of this name .*did you mean 'MLP'"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_in_one_line(
    network: str, config: dict[str, Any], space: gym.Space[Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        policy_of(space, network=network, **config)
    assert caught.value.field.startswith("spec.training.network")


def test_a_tensordict_gets_action_log_probability_and_value() -> None:
    space = spaces.Dict({"arm.joints": BOX, "goal": spaces.Discrete(2)})
    policy = policy_of(space, spaces.MultiDiscrete([2, 3]))
    td = TensorDict(
        {
            "observation": {"arm": {"joints": torch.zeros(4, 3)}, "goal": torch.zeros(4, dtype=torch.int64)},
            "action_mask": torch.tensor([[True, False, False, False, True]]).expand(4, 5),
        },
        [4],
    )
    with torch.no_grad():
        for generator in (None, torch.Generator().manual_seed(0)):
            out = policy(td, generator=generator)
            assert out is td
            assert out["action"].tolist() == [[0, 2]] * 4
            assert out["log_prob"].tolist() == [0.0] * 4
            assert out["value"].shape == (4,)


def test_values_of_many_rows_are_those_of_few() -> None:
    space = spaces.Dict({"a": BOX, "b": spaces.Discrete(2)})
    policy = policy_of(space)
    rows = {"a": torch.randn(40_000, 3, generator=torch.Generator().manual_seed(0)), "b": torch.arange(40_000) % 2}
    with torch.no_grad():
        in_chunks = policy.values_in_chunks(rows, 40_000)
        torch.testing.assert_close(in_chunks, policy.values(rows))


def test_parameters_come_from_the_seed_and_leave_torchs_state_alone() -> None:
    before = torch.get_rng_state()
    one = build_policy(EnvSpaces(BOX, spaces.Discrete(2)), Component(type="MLP"), seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    same = build_policy(EnvSpaces(BOX, spaces.Discrete(2)), Component(type="MLP"), seed=1)
    other = build_policy(EnvSpaces(BOX, spaces.Discrete(2)), Component(type="MLP"), seed=2)
    assert torch.equal(one.actor_head.weight, same.actor_head.weight)
    assert not torch.equal(one.actor_head.weight, other.actor_head.weight)


def test_an_actor_critic_stays_in_evaluation_mode() -> None:
    policy = policy_of()
    policy.actor_encoder.add_module("dropout", nn.Dropout())
    policy.train()
    assert not any(module.training for module in policy.modules())


def test_flat_parameters_are_views_that_gradients_accumulate_in() -> None:
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.bias.fill_(3.0)
    flat = FlatParameters(layer)
    assert flat.data.tolist() == [1.0, 2.0, 3.0]
    layer(torch.tensor([[3.0, 4.0]])).sum().backward()
    assert flat.grad.tolist() == [3.0, 4.0, 1.0]
    assert float(flat.clip_grad_norm_(1.0)) == pytest.approx(26**0.5)
    assert float(flat.grad.norm()) == pytest.approx(1.0, abs=1e-5)
    flat.data.zero_()
    assert layer.weight.tolist() == [[0.0, 0.0]]


def test_tied_parameters_are_stored_once_and_a_module_without_any_is_refused() -> None:
    layer = nn.Linear(2, 2, bias=False)
    assert FlatParameters(nn.Sequential(layer, layer)).data.shape == (4,)
    with pytest.raises(ValueError, match="no parameters that learn"):
        FlatParameters(nn.Tanh())
    with pytest.raises(ValueError, match="must share one dtype"):
        FlatParameters(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double()))


def test_adam_takes_the_steps_of_torchs_adam_and_goes_on_from_its_state() -> None:
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    flat = FlatParameters(ours)
    adam = Adam(flat, epsilon=1e-5)
    reference = torch.optim.Adam(theirs.parameters(), eps=1e-5)
    generator = torch.Generator().manual_seed(0)
    for step in range(4):
        if step == 2:
            resumed = Adam(flat, epsilon=1e-5)
            resumed.load_state_dict(adam.state_dict())
            adam = resumed
        rows = torch.randn(5, 3, generator=generator)
        for module in (ours, theirs):
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
            module(rows).square().sum().backward()
        reference.param_groups[0]["lr"] = 0.1 / (step + 1)
        reference.step()
        adam.step(0.1 / (step + 1))
    torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.bias, theirs.bias)


def test_an_observation_of_a_single_number_a_row_is_a_column_of_its_own() -> None:
    scalar = gym.spaces.Box(-1.0, 1.0, (), np.float32)
    space = gym.spaces.Dict({"a": scalar, "b": gym.spaces.Box(-1.0, 1.0, (2,), np.float32)})
    flatten = Flatten(space)
    assert flatten.output_size == 3
    rows = flatten({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0, 4.0], [5.0, 6.0]])})
    assert rows.tolist() == [[1.0, 3.0, 4.0], [2.0, 5.0, 6.0]]
