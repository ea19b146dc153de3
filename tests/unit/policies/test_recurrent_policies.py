"""Policies with memory: act by act, over sequences, backwards through time, and in other programs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from recurrent_networks import KINDS, Elman
from tensordict import TensorDict
from torch import Tensor, nn

from rlruntime.envs.protocol import EnvSpaces
from rlruntime.errors import ConfigError
from rlruntime.policies.actor_critic import ActorCritic
from rlruntime.policies.artifact import load_policy, save_policy
from rlruntime.policies.build import build_policy
from rlruntime.policies.export import export_policy
from rlruntime.policies.flat import FlatParameters
from rlruntime.policies.observations import ObservationTensor, map_observation
from rlruntime.policies.recurrent_networks import LSTM, Pieces
from rlruntime.policies.sequence_gradient import SequenceGradient
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.network import LSTMConfig

BOX = spaces.Box(-1, 1, (3,), np.float32)
SPACES = EnvSpaces(BOX, spaces.Discrete(2))
DICT = EnvSpaces(spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)}), spaces.Discrete(2))
STEPS, ROWS = 7, 4
STARTS = torch.tensor(
    [
        [True, False, False, True],
        [False, False, False, False],
        [False, True, False, False],
        [True, False, False, False],
        [False, False, False, True],
        [False, True, False, True],
        [False, True, False, False],
    ]
)


def policy_of(kind: str, env_spaces: EnvSpaces = SPACES) -> ActorCritic:
    policy = build_policy(env_spaces, Component.model_validate(KINDS[kind]), seed=4)
    with torch.no_grad():
        policy.actor_head.weight.normal_(generator=torch.Generator().manual_seed(1))
    return policy


def sequence(seed: int = 0, env_spaces: EnvSpaces = SPACES) -> ObservationTensor:
    generator = torch.Generator().manual_seed(seed)
    if env_spaces is SPACES:
        return torch.randn(STEPS, ROWS, 3, generator=generator)
    numbers = torch.randn(STEPS, ROWS, 2, generator=generator)
    return {"a": numbers, "b": torch.randint(0, 3, (STEPS, ROWS), generator=generator)}


def random_state(policy: ActorCritic) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(9)
    return {name: torch.randn(ROWS, *shape, generator=generator) for name, shape in policy.state_shapes.items()}


def flat(observation: ObservationTensor) -> ObservationTensor:
    return map_observation(lambda leaf: leaf.flatten(0, 1), observation)


@pytest.mark.parametrize("starts", [STARTS, torch.zeros_like(STARTS), torch.ones_like(STARTS)], ids=["some", "0", "1"])
@pytest.mark.parametrize(
    ("kind", "env_spaces"),
    [*((kind, SPACES) for kind in KINDS), ("LSTM", DICT), ("GRU", DICT)],
    ids=[*KINDS, "LSTM-dict", "GRU-dict"],
)
@torch.no_grad()
def test_a_sequence_gives_what_acting_step_by_step_gave(kind: str, starts: Tensor, env_spaces: EnvSpaces) -> None:
    policy, observation = policy_of(kind, env_spaces), sequence(env_spaces=env_spaces)
    before = state = random_state(policy)
    params, values = [], []
    for step in range(STEPS):
        rows = map_observation(lambda leaf: leaf[step], observation)  # noqa: B023 (called at once)
        p, v, state = policy.step_with_value(rows, state, starts[step])
        params.append(p)
        values.append(v)
    over = policy.params_and_values_over(flat(observation), before, starts)
    torch.testing.assert_close(over[0], torch.cat(params), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(over[1], torch.cat(values), rtol=1e-5, atol=1e-6)
    assert over[2].keys() == state.keys() == policy.state_shapes.keys()
    for name, rows in state.items():
        torch.testing.assert_close(over[2][name], rows, rtol=1e-5, atol=1e-6)
    alone, critic_state = policy.values_over(flat(observation), before, starts)
    torch.testing.assert_close(alone, over[1])
    if not policy.shared:
        assert torch.equal(
            critic_state["actor.context" if kind == "user" else "actor.hidden"], next(iter(before.values()))
        )


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_row_that_begins_an_episode_knows_nothing_of_what_was_before_and_others_do(kind: str) -> None:
    policy, observation = policy_of(kind), sequence()
    assert isinstance(observation, Tensor)
    is_init = torch.tensor([True, False, True, False])
    with_memory = policy.step(observation[0], random_state(policy), is_init)[0]
    without = policy.step(observation[0], policy.initial_state(ROWS), torch.zeros(ROWS, dtype=torch.bool))[0]
    assert torch.equal(with_memory[is_init], without[is_init])
    assert not torch.isclose(with_memory[~is_init], without[~is_init]).any()


def test_state_has_a_name_for_actor_and_critic_and_one_where_they_share() -> None:
    assert policy_of("LSTM").state_shapes == {
        "actor.hidden": (1, 6),
        "actor.cell": (1, 6),
        "critic.hidden": (1, 6),
        "critic.cell": (1, 6),
    }
    assert policy_of("GRU").state_shapes == {"actor.hidden": (2, 5)}
    assert policy_of("user").state_shapes == {"actor.context": (6,), "critic.context": (6,)}
    assert build_policy(SPACES).state_shapes == {}


@torch.no_grad()
def test_an_lstm_of_one_unit_follows_its_equations() -> None:
    network = LSTM(LSTMConfig(hidden_sizes=(), recurrent_size=1), spaces.Box(-1, 1, (1,), np.float32))
    weights = {"weight_ih_l0": [0.5, -0.3, 0.8, 0.2], "weight_hh_l0": [0.1, 0.4, -0.6, 0.7]}
    biases = {"bias_ih_l0": [0.0, 1.0, 0.0, 0.0], "bias_hh_l0": [0.1, 0.0, 0.2, -0.1]}
    for name, numbers in (weights | biases).items():
        parameter = getattr(network.recurrent, name)
        parameter.copy_(torch.tensor(numbers).view_as(parameter))

    def sigmoid(number: float) -> float:
        return 1.0 / (1.0 + math.exp(-number))

    hidden = cell = 0.0
    state = {"hidden": torch.zeros(1, 1, 1), "cell": torch.zeros(1, 1, 1)}
    for observed in (0.7, -0.2, 0.4):
        gate_in = sigmoid(0.5 * observed + 0.1 * hidden + 0.1)
        forget = sigmoid(-0.3 * observed + 0.4 * hidden + 1.0)
        new = math.tanh(0.8 * observed - 0.6 * hidden + 0.2)
        gate_out = sigmoid(0.2 * observed + 0.7 * hidden - 0.1)
        cell = forget * cell + gate_in * new
        hidden = gate_out * math.tanh(cell)
        features, state = network(torch.tensor([[observed]]), state, torch.tensor([False]))
        assert float(features) == pytest.approx(hidden, abs=1e-6)
        assert float(state["cell"]) == pytest.approx(cell, abs=1e-6)


def test_sequences_are_cut_where_episodes_begin_and_packed_the_longest_first() -> None:
    is_init = torch.tensor([[False, True], [False, False], [True, False], [False, False]])
    pieces = Pieces.of(is_init)
    # Column 0 falls into steps 0, 1 and 2, 3; column 1 is one piece of 4, and comes first.
    assert pieces.num_pieces == 3
    assert pieces.batch_sizes.tolist() == [3, 3, 1, 1]
    assert pieces.rows.tolist() == [1, 0, 4, 3, 2, 6, 5, 7]  # of rows counted time first: 2 * step + column
    assert pieces.places.tolist() == [1, 0, 4, 3, 2, 6, 5, 7]
    assert (pieces.first.tolist(), pieces.last.tolist()) == ([1, 0], [2, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_goes_back_through_time_to_the_start_of_each_episode(kind: str) -> None:
    policy, observation = policy_of(kind), sequence()
    assert isinstance(observation, Tensor)
    FlatParameters(policy)
    generator = torch.Generator().manual_seed(5)
    rows = torch.tensor([0, 3, 7, 8, 13, 19, 22, 27])
    d_params, d_value = torch.randn(len(rows), 2, generator=generator), torch.randn(len(rows), generator=generator)

    state, params, values = random_state(policy), [], []
    unrolled = {name: part.clone() for name, part in state.items()}
    for step in range(STEPS):
        p, v, unrolled = policy.step_with_value(observation[step], unrolled, STARTS[step])
        params.append(p)
        values.append(v)
    loss = (torch.cat(params)[rows] * d_params).sum() + (torch.cat(values)[rows] * d_value).sum()
    parameters = dict(policy.named_parameters())
    expected = torch.autograd.grad(loss, list(parameters.values()))

    gradient = SequenceGradient(policy)
    seen = gradient.forward(observation, state, STARTS, rows)
    torch.testing.assert_close(seen[0], torch.cat(params)[rows].detach(), rtol=1e-5, atol=1e-6)
    gradient.backward(d_params, d_value)
    for (name, parameter), other in zip(parameters.items(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, other, rtol=1e-4, atol=1e-5, msg=name)
    with pytest.raises(RuntimeError, match="needs a forward pass"):
        gradient.backward(d_params, d_value)


def test_the_gradient_reaches_the_first_step_from_the_last_and_not_across_an_episode() -> None:
    policy = policy_of("LSTM")
    for starts, reaches in ((torch.zeros(STEPS, ROWS, dtype=torch.bool), True), (STARTS, False)):
        observation = sequence()
        assert isinstance(observation, Tensor)
        observation.requires_grad_()
        params, _, _ = policy.params_and_values_over(flat(observation), random_state(policy), starts)
        (gradient,) = torch.autograd.grad(params.view(STEPS, ROWS, 2)[-1, 0].sum(), observation)
        assert float(gradient[3:, 0].abs().min()) > 0
        assert (float(gradient[0, 0].abs().max()) > 0) == reaches  # column 0 begins anew in step 3
        assert float(gradient[:, 1:].abs().max()) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensordict_carries_the_state_from_step_to_step(kind: str) -> None:
    policy, observation = policy_of(kind), sequence()
    assert isinstance(observation, Tensor)
    td = TensorDict({"observation": observation[0], "is_init": STARTS[0]}, [ROWS])
    policy(td)
    held = dict(td["next", "recurrent_state"].flatten_keys(".").items())
    assert held.keys() == policy.state_shapes.keys()
    later = TensorDict(
        {"observation": observation[1], "is_init": STARTS[2], "recurrent_state": td["next", "recurrent_state"]}, [ROWS]
    )
    policy(later)
    params, value, _ = policy.step_with_value(observation[1], held, STARTS[2])
    assert torch.equal(later["action"], policy.distribution.mode(params, None))
    assert torch.equal(later["value"], value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_policy_acts_with_the_state_of_its_last_call(kind: str, tmp_path: Path) -> None:
    policy, observation = policy_of(kind), sequence()
    assert isinstance(observation, Tensor)
    save_policy(policy, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    assert loaded.module.state_shapes == policy.state_shapes
    state, single, going_on = None, None, torch.zeros(ROWS, dtype=torch.bool)
    expected = policy.initial_state(ROWS)
    for step in range(STEPS):
        acted = loaded.act(observation[step].numpy(), state)
        one = loaded.act(observation[step, 2].numpy(), single)
        state, single = acted.state, one.state
        with torch.no_grad():
            params, expected = policy.step(observation[step], expected, going_on)
        assert acted.action.tolist() == params.argmax(-1).tolist()
        assert int(one.action) == acted.action[2]
    assert state is not None
    assert state.keys() == policy.state_shapes.keys()
    for name, rows in expected.items():
        torch.testing.assert_close(state[name], rows)


def test_a_state_that_is_not_the_policys_is_refused(tmp_path: Path) -> None:
    save_policy(policy_of("GRU"), tmp_path / "policy.safetensors")
    loaded, observation = load_policy(tmp_path / "policy.safetensors"), np.zeros((4, 3), np.float32)
    for state, words in (
        ({"actor.hidden": torch.zeros(3, 2, 5)}, r"state 'actor\.hidden' must have shape \(4, 2, 5\)"),
        ({}, r"state 'actor\.hidden' must have shape"),
        ({"actor.hidden": torch.zeros(4, 2, 5), "cell": torch.zeros(4)}, "state has 'cell'"),
    ):
        with pytest.raises(ValueError, match=words):
            loaded.act(observation, state)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_an_exported_policy_takes_its_memory_and_returns_it(kind: str, tmp_path: Path) -> None:
    policy, observation = policy_of(kind), sequence()
    assert isinstance(observation, Tensor)
    save_policy(policy, tmp_path / "policy.safetensors")
    files = export_policy(tmp_path / "policy.safetensors", tmp_path / "out", ["torch"])
    program = torch.export.load(files["torch"]).module()
    names = [name for name in policy.state_shapes if name.startswith("actor.")]
    memory = [torch.zeros(ROWS, *policy.state_shapes[name]) for name in names]
    loaded, state = load_policy(tmp_path / "policy.safetensors"), None
    for step in range(STEPS):
        with torch.no_grad():
            action, *memory = program(observation[step], *memory)
        acted = loaded.act(observation[step].numpy(), state)
        state = acted.state
        assert action.tolist() == acted.action.tolist()
    assert state is not None
    for name, rows in zip(names, memory, strict=True):
        torch.testing.assert_close(rows, state[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["SAC", "TD3", "DQN"])
def test_off_policy_kinds_refuse_a_network_with_memory(kind: Any) -> None:
    action = spaces.Discrete(2) if kind == "DQN" else spaces.Box(-1, 1, (1,), np.float32)
    with pytest.raises(ConfigError) as caught:
        build_policy(EnvSpaces(BOX, action), Component(type="LSTM"), kind=kind)
    assert str(caught.value) == (
        f"spec.training.network.type: {kind} learns from single rows of replay, and a network with memory needs whole "
        "sequences (got 'LSTM'); use algorithm PPO, or a network without memory"
    )


@pytest.mark.parametrize("shapes", [{}, {"a.b": (2,)}, {"a": 2}, {"a": (0,)}, ["a"]])
def test_shapes_of_a_state_that_are_none_are_refused(shapes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(Elman):
        def __init__(self, observation_space: gym.Space[Any]) -> None:
            super().__init__(observation_space)
            self.recurrent_state_shapes = shapes

    monkeypatch.setattr("recurrent_networks.Odd", Odd, raising=False)
    with pytest.raises(ConfigError, match=r"spec\.training\.network\.type: a network's recurrent_state_shapes must"):
        build_policy(SPACES, Component(type="recurrent_networks:Odd"))


def test_a_network_that_returns_another_state_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(Elman):
        def forward(self, *inputs: Any) -> Any:
            features, _ = super().forward(*inputs)
            return features, {"content": features}

    monkeypatch.setattr("recurrent_networks.Odd", Odd, raising=False)
    policy = build_policy(SPACES, Component(type="recurrent_networks:Odd"))
    with pytest.raises(ConfigError, match=r"Odd returned a state of \['content'\], and was given \['context'\]"):
        policy.step(torch.zeros(2, 3), policy.initial_state(2), torch.zeros(2, dtype=torch.bool))


def test_actor_and_critic_may_have_networks_of_their_own(tmp_path: Path) -> None:
    critic = Component(type="GRU", config={"recurrentSize": 3})
    policy = build_policy(SPACES, Component(type="MLP", config={"hiddenSizes": [5]}), critic_network=critic)
    assert not policy.shared
    assert policy.state_shapes == {"critic.hidden": (1, 3)}
    assert (policy.actor_head.in_features, policy.critic_head.in_features) == (5, 3)
    assert isinstance(policy.critic_encoder.recurrent, nn.GRU)
    save_policy(policy, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors").module
    assert isinstance(loaded, ActorCritic)
    assert loaded.critic_network == critic
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])
    with pytest.raises(ConfigError, match=r"spec\.training\.criticNetwork\.type: there is no network of this name"):
        build_policy(SPACES, critic_network=Component(type="GRX"))
