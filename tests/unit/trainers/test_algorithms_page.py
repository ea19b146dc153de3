"""The page about algorithms: its snippet runs as it stands, and its settings exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rlruntime.spec.base import SpecModel
from rlruntime.spec.training.dqn import DQNConfig
from rlruntime.spec.training.ppo import PPOConfig
from rlruntime.spec.training.sac import SACConfig
from rlruntime.spec.training.td3 import TD3Config

PAGE = Path(__file__).parents[3] / "docs" / "algorithms.md"
CONFIGS: tuple[type[SpecModel], ...] = (PPOConfig, SACConfig, TD3Config, DQNConfig)


def test_the_snippet_runs_as_it_stands() -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", snippet], capture_output=True, text=True, check=True, timeout=100
    )
    loss, temperature = map(float, done.stdout.split())
    assert loss > 0.0
    assert 0.98 < temperature < 1.0
    assert done.stderr == ""


def test_every_setting_that_the_table_translates_to_exists() -> None:
    known = {field.alias or name for config in CONFIGS for name, field in config.model_fields.items()}
    table = PAGE.read_text().split("## Coming from")[1]
    ours = [row.split("|")[3] for row in table.splitlines() if row.startswith("|") and "---" not in row][1:]
    named = {name for cell in ours for name in re.findall(r"`([a-z][A-Za-z]+)`", cell)}
    assert len(named) > 20
    assert named <= known, named - known
