"""The environments in examples/: their rules, and that what the pages say of them is so."""

from __future__ import annotations

import importlib
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(request.param)


def use(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("module", [name], indirect=True)


@pytest.mark.parametrize("module", ["catch_env", "courier_env"], indirect=True)
def test_environment_passes_the_checker_of_gymnasium(module: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(module.make(), skip_render_check=True)


@use("catch_env")
def test_catch_rewards_a_ball_that_lands_on_the_paddle_and_punishes_one_beside_it(module: Any) -> None:
    for paddle_x, expected in ((4, 1.0), (6, 1.0), (2, -1.0), (8, -1.0)):
        game = module.make(size=12)
        game.reset(seed=0)
        game._ball_x, game._paddle_x = 6, paddle_x
        outcomes = [game.step(1)[1:3] for _ in range(5)]
        assert outcomes == [(0.0, False)] * 4 + [(expected, True)]


@use("catch_env")
def test_catch_shows_a_ball_of_four_pixels_and_a_paddle_of_eight(module: Any) -> None:
    picture, _ = module.make(size=12).reset(seed=3)
    assert picture.dtype == np.uint8
    assert picture.shape == (12, 12, 1)
    assert (picture[:2] == 255).sum() == 4
    assert (picture[-2:] == 255).sum() == 8
    assert (picture == 255).sum() == 12


@use("hanoi_env")
def test_hanoi_raises_on_a_move_that_its_mask_forbids(module: Any) -> None:
    puzzle = module.make(discs=3)
    puzzle.reset(seed=0)
    puzzle._pegs = [0, 0, 1]  # the two smaller discs on the first peg, the largest on the second
    observation, reward, terminated, truncated, info = puzzle.step(module.MOVES.index((0, 2)))
    assert observation.tolist() == [2, 0, 1]
    assert (reward, terminated, truncated) == (-1.0, False, False)
    allowed = [move for move, possible in zip(module.MOVES, info["action_mask"], strict=True) if possible]
    assert allowed == [(0, 1), (2, 0), (2, 1)]
    with pytest.raises(ValueError, match="from peg 1 to peg 0 is not possible"):
        puzzle.step(module.MOVES.index((1, 0)))


@use("hanoi_env")
def test_hanoi_fewest_moves_agree_with_a_search_through_all_states(module: Any) -> None:
    puzzle, goal = module.make(discs=4), (2, 2, 2, 2)
    puzzle.reset(seed=0)
    moves, queue = {goal: 0}, deque([goal])
    while queue:
        state = queue.popleft()
        puzzle._pegs = list(state)
        for action in np.flatnonzero(puzzle._possible()):
            puzzle._pegs = list(state)
            reached = tuple(puzzle.step(action)[0].tolist())
            if reached not in moves:
                moves[reached] = moves[state] + 1
                queue.append(reached)
    assert len(moves) == 81
    assert moves[0, 0, 0, 0] == 15
    begun = [state if state != goal else (0, 0, 0, 0) for state in moves]
    assert module.fewest_moves(4) == pytest.approx(sum(moves[state] for state in begun) / 81)
    assert module.fewest_moves(4) == pytest.approx(10.185, abs=1e-3)


@use("courier_env")
def test_courier_ends_with_a_reward_at_the_ordered_depot_alone(module: Any) -> None:
    env = module.make()
    observation, _ = env.reset(seed=0)
    assert sorted(observation) == ["courier", "map", "order"]
    goal = tuple(np.argwhere(observation["map"][..., observation["order"]])[0].tolist())
    other = tuple(np.argwhere(observation["map"][..., 1 - observation["order"]])[0].tolist())
    assert goal != other
    for place, expected in ((other, (-0.02, False)), (goal, (0.98, True))):
        env._at = place
        row_move = 0 if place[0] > 0 else 1  # step off the place, then back onto it
        env.step(row_move)
        _, reward, terminated, truncated, _ = env.step(1 - row_move)
        assert env._at == place
        assert (reward, terminated) == (pytest.approx(expected[0]), expected[1])
        assert not truncated


@use("courier_env")
def test_courier_ends_without_a_reward_when_the_tank_is_empty(module: Any) -> None:
    env = module.make(fuel=3)
    env.reset(seed=0)
    env._at, env._goal = (0, 0), (3, 3)
    outcomes = [env.step(0) for _ in range(3)]
    assert [outcome[2] for outcome in outcomes] == [False, False, True]
    assert outcomes[-1][0]["courier"]["fuel"] == [0.0]
    assert outcomes[-1][0]["courier"]["position"].tolist() == [-1.0, -1.0]
