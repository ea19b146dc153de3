"""Training that has to reach a reward, from the manifests in examples/ as they stand. Run them with `make learning`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlruntime.trainers.api import Run, train

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = [pytest.mark.learning, pytest.mark.timeout(600)]


@pytest.fixture
def examples_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])


def reward(run: Run) -> float:
    return float(run.result["evaluation"]["rewardMean"])


def test_ppo_solves_cartpole_within_a_hundred_thousand_frames(tmp_path: Path) -> None:
    run = train(EXAMPLES / "01-ppo-cartpole.yaml", out=tmp_path / "run")
    assert run.result["evaluation"]["episodes"] == 20
    assert run.result["frames"] <= 100_000
    assert reward(run) >= 475.0


@pytest.mark.usefixtures("examples_importable")
def test_ppo_with_convolutions_catches_every_ball_from_pixels(tmp_path: Path) -> None:
    run = train(EXAMPLES / "05-ppo-image.yaml", out=tmp_path / "run")
    assert run.result["frames"] <= 100_000
    assert reward(run) >= 0.96


@pytest.mark.usefixtures("examples_importable")
def test_ppo_with_a_network_of_the_users_own_solves_cartpole(tmp_path: Path) -> None:
    run = train(EXAMPLES / "08-custom-network.yaml", out=tmp_path / "run")
    assert run.result["frames"] <= 100_000
    assert reward(run) >= 475.0
