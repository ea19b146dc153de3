"""What every transform must show in every seat that it claims. The registry is enumerated: none can be left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from transform_cases import CASES, Case, registered

from rlruntime.envs.make import make_vector_env
from rlruntime.envs.protocol import EnvSpaces, StepSlot, VectorEnv, allocate_slot, leaf_dtype, leaf_shape
from rlruntime.errors import CheckpointError, ConfigError
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import EnvConfig
from rlruntime.spec.training.transforms import TRANSFORM_CONFIGS
from rlruntime.transforms.base import SEATS, Copies, RolloutView, require_seat, space_leaves
from rlruntime.transforms.columns import ColumnTransforms, transform_rollout
from rlruntime.transforms.environment import TransformedEnv
from rlruntime.transforms.remembering import RememberingTransform
from rlruntime.transforms.staging import make_transformed_env

COPIES, STEPS, ROWS = 3, 14, 5
SEEDS = (1, 2, 3)
Slots = list[StepSlot]


def env_config(case: Case, backend: str = "Loop", num_envs: int = COPIES, *more: Component) -> EnvConfig:
    document = {
        "factory": f"transform_envs:{case.env}",
        "num_envs": num_envs,
        "num_workers": 2 if case.env == "Walker" and not case.within_copies else 1,
        "backend": backend,
        "transforms": [case.component.model_dump(), *(part.model_dump() for part in more)],
    }
    return EnvConfig.model_validate(document)


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[str, VectorEnv]]:
    """Yield process pools by environment, started when first asked for."""
    made: dict[str, VectorEnv] = {}
    yield made
    for env in made.values():
        env.close()


def in_environment(case: Case, env: VectorEnv) -> TransformedEnv:
    """Return a plain environment behind the transform."""
    return TransformedEnv(env, [case.build])


def make(case: Case, backend: str, num_envs: int, pools: dict[str, VectorEnv]) -> VectorEnv:
    """Return the transform on a backend, through the manifest's way where copies need wrappers."""
    config = env_config(case, backend, num_envs)
    if case.within_copies or case.config.get("limit"):
        return make_transformed_env(config)
    if backend == "Loop":
        return in_environment(case, make_vector_env(config))
    if case.env not in pools:
        pools[case.env] = make_vector_env(config)
    return in_environment(case, pools[case.env])


def spaces_of(case: Case) -> EnvSpaces:
    """Return the spaces of the plain environment."""
    return make_vector_env(env_config(case)).spaces


def observation_rows(space: gym.Space[Any], num_rows: int, seed: int = 0) -> Any:
    """Return rows of an observation, with finite numbers."""
    tensors: dict[str, Tensor] = {}
    for key, leaf in space_leaves(space).items():
        leaf.seed(seed)
        samples = [np.asarray(leaf.sample(), leaf_dtype(leaf)) for _ in range(num_rows)]
        stacked = np.stack(samples) if samples else np.zeros((0, *leaf_shape(leaf)), leaf_dtype(leaf))
        tensors[key] = torch.from_numpy(stacked)
    return tensors if isinstance(space, gym.spaces.Dict) else tensors[""]


def leaves(observation: Any) -> dict[str, Any]:
    return observation if isinstance(observation, dict) else {"": observation}


def assert_rows_are_of(space: gym.Space[Any], observation: Any, num_rows: int, *, stored: bool) -> None:
    """Check keys, shape, dtype and bounds of rows; environments store every float as float32."""
    rows = {key: np.asarray(value) for key, value in leaves(observation).items()}
    assert set(rows) == set(space_leaves(space))
    for key, leaf in space_leaves(space).items():
        value = rows[key]
        assert value.shape == (num_rows, *leaf_shape(leaf)), key
        assert value.dtype == (leaf_dtype(leaf) if stored else np.dtype(leaf.dtype)), key
        if isinstance(leaf, gym.spaces.Box):
            assert np.all(value >= leaf.low), key
            assert np.all(value <= leaf.high), key
        else:
            assert all(leaf.contains(row if row.shape else int(row)) for row in value.astype(leaf.dtype)), key


def assert_same(one: Any, two: Any) -> None:
    one, two = leaves(one), leaves(two)
    assert list(one) == list(two) or set(one) == set(two)
    for key in one:
        np.testing.assert_array_equal(np.asarray(one[key]), np.asarray(two[key]), err_msg=key)


def play(env: VectorEnv, steps: int = STEPS, *, reset: bool = True, seed: int = 0) -> Slots:
    """Return the outcome of a reset and of steps with actions at random, each in memory of its own."""
    rng, slots = np.random.default_rng(seed), []
    if reset:
        slots.append(allocate_slot(env.spaces, env.num_envs))
        env.reset(SEEDS[: env.num_envs], slots[-1])
    for _ in range(steps):
        mask = slots[-1].action_mask if slots else None
        slots.append(allocate_slot(env.spaces, env.num_envs))
        env.step(actions_at_random(env.spaces.action, env.num_envs, rng, mask), slots[-1])
    return slots


def actions_at_random(
    space: gym.Space[Any], num_envs: int, rng: np.random.Generator, mask: np.ndarray | None = None
) -> np.ndarray:
    if isinstance(space, gym.spaces.Box):
        return np.asarray(rng.uniform(space.low, space.high, (num_envs, *space.shape)), np.float32)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return rng.integers(0, space.nvec, (num_envs, *space.shape))
    assert isinstance(space, gym.spaces.Discrete)
    allowed = np.ones((num_envs, int(space.n)), np.bool_) if mask is None else mask
    return np.asarray((rng.random(allowed.shape) * allowed).argmax(1))


def assert_same_slots(one: Slots, two: Slots, copies: int = COPIES) -> None:
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        rows = slice(0, copies)
        assert_same(
            {k: v[rows] for k, v in leaves(a.observation).items()},
            {k: v[rows] for k, v in leaves(b.observation).items()},
        )
        for name in ("reward", "terminated", "truncated", "valid"):
            np.testing.assert_array_equal(getattr(a, name)[rows], getattr(b, name)[rows], err_msg=name)


def cases(seat: str) -> Any:
    return pytest.mark.parametrize("case", [case for case in CASES if seat in case.seats], ids=str)


# Completeness.


def test_every_registered_transform_has_a_case_a_config_and_a_seat() -> None:
    assert {case.name for case in CASES} == registered() == set(TRANSFORM_CONFIGS)
    for case in CASES:
        assert case.seats <= set(SEATS)
        assert case.seats


@pytest.mark.parametrize("case", CASES, ids=str)
def test_seat_that_is_not_claimed_is_refused_with_those_that_are(case: Case) -> None:
    transform = case.build(spaces_of(case))
    for seat in set(SEATS) - case.seats:
        place = r"^spec.training.env.transforms\[0\]"
        with pytest.raises(ConfigError, match=rf"{place}: {case.name} can't work .*; use it "):
            require_seat(transform, seat)


# In the policy.


@cases("policy")
def test_policy_rows_are_of_the_space_that_is_announced(case: Case) -> None:
    space = spaces_of(case).observation
    transform = case.build(spaces_of(case))
    seen = transform.observation_space(space)
    assert_rows_are_of(seen, transform(observation_rows(space, ROWS)), ROWS, stored=False)
    assert_rows_are_of(seen, transform(observation_rows(space, 0)), 0, stored=False)


@cases("policy")
def test_policy_rows_do_not_depend_on_their_neighbours_and_move_no_state(case: Case) -> None:
    transform = case.build(spaces_of(case))
    before = {name: value.clone() for name, value in transform.state_dict().items()}
    rows = observation_rows(spaces_of(case).observation, ROWS)
    together = transform(rows)
    for number in range(ROWS):
        alone = transform({k: v[[number]] for k, v in rows.items()} if isinstance(rows, dict) else rows[[number]])
        for key, value in leaves(alone).items():
            torch.testing.assert_close(value[0], leaves(together)[key][number], rtol=1e-6, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in transform.state_dict().items())


@cases("policy")
def test_policy_transform_of_a_saved_state_gives_the_same_rows(case: Case) -> None:
    space = spaces_of(case).observation
    first, second = case.build(spaces_of(case)), case.build(spaces_of(case))
    first.update(rollout_of(case))
    second.load_state_dict(first.state_dict())
    rows = observation_rows(space, ROWS)
    assert_same(first(rows), second(rows))


# On a finished rollout.


def rollout_of(case: Case, num_steps: int = 6) -> RolloutView:
    space = spaces_of(case).observation
    rows = observation_rows(space, num_steps * COPIES)
    generator = torch.Generator().manual_seed(1)
    flags = torch.rand((3, num_steps, COPIES), generator=generator) < 0.3
    valid = ~flags[2]

    def with_time(leaf: Tensor) -> Tensor:
        return leaf.reshape(num_steps, COPIES, *leaf.shape[1:])

    observation = {k: with_time(v) for k, v in rows.items()} if isinstance(rows, dict) else with_time(rows)
    reward = torch.where(valid, torch.randn((num_steps, COPIES), generator=generator), 0.0)
    return RolloutView(observation, reward, flags[0] & valid, flags[1] & valid, valid)


@cases("rollout")
def test_finished_rollout_is_transformed_step_by_step(case: Case) -> None:
    transform, rollout = case.build(spaces_of(case)), rollout_of(case)
    outcome = transform_rollout([transform], rollout)
    assert outcome.reward.shape == rollout.reward.shape
    assert outcome.reward.dtype == torch.float32
    assert outcome.reward[~rollout.valid].eq(0).all()
    first = {k: v[0] for k, v in leaves(rollout.observation).items()}
    expected = transform(first if isinstance(rollout.observation, dict) else first[""])
    for key, value in leaves(outcome.observation).items():
        torch.testing.assert_close(value[0], leaves(expected)[key], rtol=1e-6, atol=1e-6)


# On columns.


def columns_of(case: Case, num_rows: int) -> dict[str, Tensor]:
    spaces = spaces_of(case)
    columns: dict[str, Tensor] = {
        "next.reward": torch.randn((num_rows, *case.reward_shape)),
        "other": torch.ones(num_rows),
    }
    rng = np.random.default_rng(0)
    columns["action"] = torch.from_numpy(actions_at_random(spaces.action, num_rows, rng))
    for number, name in enumerate(("observation", "next.observation")):
        for key, value in leaves(observation_rows(spaces.observation, num_rows, seed=number)).items():
            columns[f"{name}.{key}" if key else name] = value
    return columns


def is_inverse_module(case: Case) -> bool:
    return bool(case.config.get("inverse"))


SIDES = ("write", "read")
ON_COLUMNS = [case for case in CASES if {"write", "read"} & case.seats]
FORWARD = [case for case in ON_COLUMNS if not is_inverse_module(case)]  # a module of actions works the other way


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("case", FORWARD, ids=str)
def test_columns_are_transformed_as_rows_are(case: Case, side: Any) -> None:
    if side not in case.seats:
        with pytest.raises(ConfigError, match=f"{case.name} can't work on the {side} side"):
            ColumnTransforms([case.build(spaces_of(case))], side)
        return
    spaces, columns = spaces_of(case), columns_of(case, ROWS)
    transform = case.build(spaces)
    apply = ColumnTransforms([transform], side)
    before = {name: value.clone() for name, value in columns.items()}
    outcome = apply(columns)
    for name, value in before.items():  # what was handed in stays as it was
        assert torch.equal(columns[name], value)
    assert torch.equal(outcome["other"], columns["other"])
    for number, name in enumerate(("observation", "next.observation")):
        expected = leaves(transform(observation_rows(spaces.observation, ROWS, seed=number)))
        found = {key for key in outcome if key == name or key.startswith(f"{name}.")}
        assert found == {f"{name}.{key}" if key else name for key in expected}
        for key, value in expected.items():
            torch.testing.assert_close(outcome[f"{name}.{key}" if key else name], value)
    assert torch.equal(outcome["next.reward"], transform.map_reward(columns["next.reward"]))
    assert torch.equal(outcome["action"], transform.action_forward(columns["action"]))
    # Slices have one more dimension before, and are the same rows.
    slices = {name: value[None] for name, value in columns.items()}
    sliced = ColumnTransforms([transform], side, num_leading=2)(slices)
    for name, value in outcome.items():
        torch.testing.assert_close(sliced[name][0], value)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("case", FORWARD, ids=str)
def test_no_rows_pass_and_settle_nothing(case: Case, side: Any) -> None:
    if side not in case.seats:
        return
    transform = case.build(spaces_of(case))
    before = {name: value.clone() for name, value in transform.state_dict().items()}
    apply = ColumnTransforms([transform], side)
    empty, some = apply(columns_of(case, 0)), apply(columns_of(case, ROWS))
    assert all(len(value) == 0 for value in empty.values())
    assert {name: (v.shape[1:], v.dtype) for name, v in empty.items()} == {
        name: (v.shape[1:], v.dtype) for name, v in some.items()
    }
    assert all(torch.equal(value, before[name]) for name, value in transform.state_dict().items())


@pytest.mark.parametrize("case", ON_COLUMNS, ids=str)
def test_inverse_of_columns_is_taken_back_by_reading_them(case: Case) -> None:
    transform = case.build(spaces_of(case))
    apply = ColumnTransforms([transform], "read")
    columns = columns_of(case, ROWS)
    if is_inverse_module(case):
        mapped = apply.inverse({**columns, "action": torch.tensor([[1.0], [-1.0]])})
        torch.testing.assert_close(mapped["action"], torch.tensor([[2.0, 0.09], [-2.0, 0.01]], dtype=torch.float64))
        return
    seen = apply(columns)
    if not case.undone:
        with pytest.raises(ConfigError, match=f"{case.name} has no inverse"):
            apply.inverse(seen)
        return
    again = apply(apply.inverse(seen))
    assert set(again) == set(seen)
    for name, value in seen.items():
        torch.testing.assert_close(again[name], value, rtol=1e-4, atol=1e-4)
    for name, value in apply.inverse(seen).items():
        assert value.shape == columns[name].shape, name


# In an environment.


@cases("environment")
@pytest.mark.parametrize("num_envs", [1, COPIES])
def test_environment_gives_what_its_spaces_say(case: Case, num_envs: int) -> None:
    env = make(case, "Loop", num_envs, {})
    slots = play(env)
    env.close()
    assert set(leaves(slots[0].observation)) == set(space_leaves(env.spaces.observation))
    for slot in slots:
        assert_rows_are_of(env.spaces.observation, slot.observation, num_envs, stored=True)
        assert slot.reward.dtype == np.float32
        assert (slot.action_mask is None) == (env.spaces.action_mask is None)
        assert np.all(slot.reward[~slot.valid] == 0)
    ended = np.array([slot.terminated | slot.truncated for slot in slots])
    valid = np.array([slot.valid for slot in slots])
    assert ended.any()
    np.testing.assert_array_equal(valid[1:], ~ended[:-1])  # the step after an episode's end resets, no other
    # Copies are stepped alike, whether alone or among others.
    alone = make(case, "Loop", 1, {})
    if case.name != "TrajectoryCounter" and isinstance(env.spaces.action, gym.spaces.Discrete) and num_envs == 1:
        assert_same_slots(play(alone), slots, 1)
    alone.close()


@cases("environment")
def test_process_pool_gives_the_same_numbers(case: Case, pools: dict[str, VectorEnv]) -> None:
    loop, pool = make(case, "Loop", COPIES, {}), make(case, "ProcessPool", COPIES, pools)
    assert_same_slots(play(loop), play(pool))
    loop.close()
    if case.within_copies or case.config.get("limit"):
        pool.close()


@cases("environment")
def test_composed_environment_shows_both(case: Case) -> None:
    counter = Component(type="StepCounter", config={"key": "composed"})
    alone = make_transformed_env(env_config(case)) if case.seats == {"environment"} else make(case, "Loop", COPIES, {})
    if case.seats == {"environment"}:
        both: VectorEnv = make_transformed_env(env_config(case, "Loop", COPIES, counter))
    else:
        both = TransformedEnv(make(case, "Loop", COPIES, {}), [Case("StepCounter", config={"key": "composed"}).build])
    one, two = play(alone), play(both)
    alone.close()
    both.close()
    for a, b in zip(one, two, strict=True):
        parts = dict(leaves(b.observation))
        assert parts.pop("composed").dtype == np.int64
        whole = parts if isinstance(a.observation, dict) else {"": parts["observation"]}
        assert_same(leaves(a.observation), whole)
        np.testing.assert_array_equal(a.reward, b.reward)
    counts = np.array([leaves(slot.observation)["composed"][:, 0] for slot in two])
    valid = np.array([slot.valid for slot in two])
    for step in range(1, len(two)):
        np.testing.assert_array_equal(counts[step], np.where(valid[step], counts[step - 1] + 1, 0))


@cases("environment")
def test_snapshot_continues_bit_for_bit_in_another_environment(case: Case) -> None:
    env = make(case, "Loop", COPIES, {})
    play(env, 6)
    snapshot = env.snapshot()
    assert snapshot is not None
    assert len(snapshot) == COPIES
    expected = play(env, 9, reset=False, seed=1)
    other = make(case, "Loop", COPIES, {})
    play(other, 2)
    other.restore(snapshot)
    assert_same_slots(play(other, 9, reset=False, seed=1), expected)
    env.restore(snapshot)
    assert_same_slots(play(env, 9, reset=False, seed=1), expected)
    if isinstance(env, TransformedEnv):
        plain = make_vector_env(env_config(case))
        with pytest.raises(CheckpointError):
            env.restore(plain.snapshot() or [])
        play(plain, 1)
        plain.close()
    env.close()
    other.close()


@pytest.mark.parametrize(
    "case", [case for case in CASES if "environment" in case.seats and not case.within_copies], ids=str
)
def test_reset_by_mask_touches_only_the_copies_that_begin(case: Case) -> None:
    spaces = spaces_of(case)
    transform = case.build(spaces)
    if not isinstance(transform, RememberingTransform):
        return
    after = transform.bind(spaces, Copies(COPIES, 0, COPIES))
    rng = np.random.default_rng(0)

    def step(begins: np.ndarray | None) -> None:
        seen = {
            k: v.numpy() for k, v in leaves(observation_rows(spaces.observation, COPIES, int(rng.integers(99)))).items()
        }
        slot = allocate_slot(after, COPIES)
        slot.reward[:] = rng.normal(size=COPIES)
        transform.before_step(actions_at_random(after.action, COPIES, rng))
        transform.after_step(seen, leaves(slot.observation), slot, begins)

    step(np.ones(COPIES, np.bool_))
    for _ in range(4):
        step(None)
    rng_state = rng.bit_generator.state
    kept = {name: value.copy() for name, value in transform.memory().items()}
    step(None)
    going_on = {name: value.copy() for name, value in transform.memory().items()}
    transform.load_memory(kept)
    rng.bit_generator.state = rng_state
    step(np.array([False, True, False]))
    for name, value in transform.memory().items():
        np.testing.assert_array_equal(value[[0, 2]], going_on[name][[0, 2]], err_msg=name)
    if transform.memory() and case.config.get("mode") != "Constant":
        assert any(not np.array_equal(value[1], going_on[name][1]) for name, value in transform.memory().items())


@pytest.mark.parametrize(
    "case", [case for case in CASES if "environment" in case.seats and not case.within_copies], ids=str
)
def test_state_dict_brings_back_what_a_transform_remembers(case: Case) -> None:
    if case.config.get("limit"):
        return
    first, second = (in_environment(case, make_vector_env(env_config(case))) for _ in range(2))
    play(first, 7)
    play(second, 3)
    second.transforms[0].load_state_dict(first.transforms[0].state_dict())
    for name, value in first.transforms[0].memory().items():
        np.testing.assert_array_equal(second.transforms[0].memory()[name], value, err_msg=name)
    first.close()
    second.close()


def test_mask_of_an_environment_comes_through() -> None:
    case = next(case for case in CASES if case.name == "ActionMask")
    env = make(case, "Loop", COPIES, {})
    for slot in play(env):
        assert slot.action_mask is not None
        assert slot.action_mask[:, 0].all()
    env.close()
