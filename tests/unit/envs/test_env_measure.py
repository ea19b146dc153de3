"""Measuring backends, and the advice that is made of it."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from rlruntime.cli import tune_env
from rlruntime.envs.measure import BackendMeasurement, advise, random_actions
from rlruntime.envs.protocol import EnvSpaces, allocate_slot
from rlruntime.spec.training.env import EnvConfig

CARTPOLE = EnvConfig(id="CartPole-v1", num_envs=4)


def measured(backend: str, rate: float, workers: int | None = None, reason: str = "") -> BackendMeasurement:
    return BackendMeasurement(backend, workers, rate, reason)


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ([measured("Loop", 95), measured("ProcessPool", 100, 2)], "leave spec.training.env.backend at Auto (Loop)"),
        (
            [measured("Loop", 50), measured("ProcessPool", 90, 2), measured("ProcessPool", 100, 4)],
            "set spec.training.env.backend: ProcessPool and numWorkers: 4",
        ),
        (
            [measured("Loop", 50), measured("EnvPool", 900, 2)],
            "leave spec.training.env.backend at Auto (Loop)",
        ),
        ([measured("Loop", 0, reason="no")], "no backend can run this environment"),
    ],
)
def test_the_advice_is_the_fastest_unless_auto_is_close(rates: list[BackendMeasurement], words: str) -> None:
    assert advise(CARTPOLE, rates) == words


def test_envpool_is_advised_to_those_who_chose_it() -> None:
    rates = [measured("Loop", 50), measured("EnvPool", 900, 2)]
    chosen = CARTPOLE.model_copy(update={"backend": "EnvPool"})
    assert advise(chosen, rates) == "set spec.training.env.backend: EnvPool and numWorkers: 2"


def test_random_actions_are_allowed_ones_counted_from_zero() -> None:
    spaces_seen = EnvSpaces(spaces.Discrete(2), spaces.MultiDiscrete([2, 3], start=[5, 5]), "info", 5)
    slot = allocate_slot(spaces_seen, 50)
    assert slot.action_mask is not None
    slot.action_mask[:] = [False, True, True, False, True]
    actions = random_actions(spaces_seen, slot, np.random.default_rng(0))
    assert actions.shape == (50, 2)
    assert set(actions[:, 0].tolist()) == {1}
    assert set(actions[:, 1].tolist()) == {0, 2}
    box = EnvSpaces(spaces.Discrete(2), spaces.Box(np.array([-np.inf, 2]), np.array([np.inf, 3]), dtype=np.float64))
    drawn = random_actions(box, allocate_slot(box, 50), np.random.default_rng(0))
    assert drawn.dtype == np.float64
    assert ((drawn[:, 0] >= -1) & (drawn[:, 0] <= 1) & (drawn[:, 1] >= 2) & (drawn[:, 1] <= 3)).all()


def test_the_command_prints_a_table_and_advice_for_an_environment_beside_the_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    (tmp_path / "my_own_walk.py").write_text("import toy_envs\n\ndef make():\n    return toy_envs.RandomWalkEnv()\n")
    manifest = tmp_path / "job.yaml"
    manifest.write_text(
        "apiVersion: rljob.io/v1alpha1\nkind: RLJob\nmetadata: {name: walk}\nspec:\n  training:\n"
        "    algorithm: PPO\n    totalFrames: 10\n    env: {factory: 'my_own_walk:make', numEnvs: 2}\n"
    )
    parser = argparse.ArgumentParser()
    tune_env.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["tune-env", str(manifest), "--seconds", "0.1"])
    assert arguments.handler(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "walk: my_own_walk:make, 2 copies"
    assert lines[1] == "  backend            workers    frames/s"
    rows = {line.split()[0]: line for line in lines[2:-1]}
    assert int(rows["Loop"].split()[-1].replace(",", "")) > 0
    assert int(rows["ProcessPool"].split()[-1].replace(",", "")) > 0
    assert "the factory my_own_walk:make takes no argument 'num_envs'" in rows["VectorEntryPoint"]
    assert "-  spec.training.env.backend: " in rows["EnvPool"]
    assert lines[-1].startswith("  advice: ")


def test_seconds_must_be_positive(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    tune_env.add_parser(parser.add_subparsers())
    with pytest.raises(SystemExit):
        parser.parse_args(["tune-env", "job.yaml", "--seconds", "0"])
    assert "give a positive number of seconds" in capsys.readouterr().err
