"""Whole jobs from the command line: the manifests in examples/ as they stand, to the reward they are made for.

Run them with `make e2e`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def rljob(folder: Path, *arguments: str) -> str:
    """Run ``rljob`` in a folder, see that it succeeds without a word on stderr, and return what it printed."""
    command = [sys.executable, "-m", "rlruntime.cli.main", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def result_of(example: str, folder: Path, **fields: Any) -> dict[str, Any]:
    """Train an example, with other values of some fields of ``training``, and return its ``result.json``."""
    overrides = [argument for name, value in fields.items() for argument in ("-o", f"training.{name}={value}")]
    rljob(folder, "run", str(EXAMPLES / example), "--out", "run", *overrides)
    result: dict[str, Any] = json.loads((folder / "run" / "result.json").read_text())
    assert result["status"] == "Succeeded"
    return result


def test_ppo_solves_cartpole_within_a_hundred_thousand_frames_and_its_policy_can_be_used(tmp_path: Path) -> None:
    result = result_of("01-ppo-cartpole.yaml", tmp_path)
    assert result["evaluation"]["episodes"] == 20
    assert result["frames"] <= 100_000
    assert result["evaluation"]["rewardMean"] >= 475.0
    evaluated = json.loads(rljob(tmp_path, "evaluate", "run", "--seed", "77", "--log-format", "json"))
    assert evaluated["rewardMean"] >= 475.0
    rljob(tmp_path, "export", "run", "--format", "torch")
    assert (tmp_path / "run" / "export" / "policy.pt2").stat().st_size > 0


def test_ppo_with_convolutions_catches_every_ball_from_pixels(tmp_path: Path) -> None:
    result = result_of("11-ppo-image.yaml", tmp_path)
    assert result["frames"] <= 100_000
    assert result["evaluation"]["rewardMean"] >= 0.96


def test_ppo_with_a_network_of_the_users_own_solves_cartpole(tmp_path: Path) -> None:
    result = result_of("14-custom-network.yaml", tmp_path)
    assert result["frames"] <= 100_000
    assert result["evaluation"]["rewardMean"] >= 475.0


def test_sac_swings_the_pendulum_up_within_eight_thousand_frames(tmp_path: Path) -> None:
    result = result_of("02-sac-pendulum.yaml", tmp_path, totalFrames=8000)
    assert result["frames"] == 8000
    assert result["evaluation"]["rewardMean"] >= -200.0


def test_dqn_solves_cartpole_within_fifty_thousand_frames(tmp_path: Path) -> None:
    result = result_of("03-dqn-cartpole.yaml", tmp_path)
    assert result["reason"] == "RewardReached"
    assert result["frames"] <= 50_000
    assert result["evaluation"]["rewardMean"] >= 475.0
