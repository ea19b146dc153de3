"""MuJoCo's warnings: none for what is deprecated, one line for what is wrong, and no file in the current folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mujoco")

SETTLED = """
from rlruntime.envs.build import make_single_env
from rlruntime.spec.training.env import EnvConfig
env = make_single_env(EnvConfig(id="HalfCheetah-v5"))
env.reset(seed=0)
"""
DIVERGED = """
env.unwrapped.data.qvel[:] = 1e12
env.step(env.action_space.sample())
"""
LISTENING = "import mujoco; mujoco.set_mju_user_warning(lambda text: print('heard', len(text) > 0))\n"


def said(code: str, folder: Path, *options: str) -> tuple[str, str]:
    """Return what a program prints on both outputs; see that it leaves no file."""
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=120)
    assert list(folder.iterdir()) == []
    return done.stdout, done.stderr


def test_a_model_with_a_deprecated_attribute_is_loaded_silently(tmp_path: Path) -> None:
    assert said(SETTLED, tmp_path) == ("", "")


def test_who_asks_for_warnings_is_told_what_is_deprecated(tmp_path: Path) -> None:
    _, errors = said(SETTLED, tmp_path, "-W", "default::FutureWarning")
    assert [line.split(" is deprecated")[0] for line in errors.splitlines()] == [
        "MuJoCo: compiler attribute 'settotalmass'"
    ]


def test_a_simulation_that_diverges_says_so_in_one_line(tmp_path: Path) -> None:
    _, errors = said(SETTLED + DIVERGED, tmp_path)
    assert errors.startswith("MuJoCo: Nan, Inf or huge value in Q")
    assert errors.count("\n") == 1


def test_who_listens_to_mujoco_already_goes_on_listening(tmp_path: Path) -> None:
    assert said(LISTENING + SETTLED, tmp_path) == ("heard True\n", "")
