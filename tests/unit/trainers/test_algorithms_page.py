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


SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(snippet: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", snippet]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)


def test_a_network_with_memory_and_an_advantage_of_ones_own_train_as_the_page_writes_them(tmp_path: Path) -> None:
    memory, advantage, _ = SNIPPETS
    (tmp_path / "mine.py").write_text(memory + advantage)
    (tmp_path / "job.yaml").write_text(
        "apiVersion: rljob.io/v1alpha1\nkind: RLJob\nmetadata: {name: mine}\nspec:\n  training:\n"
        "    algorithm: PPO\n    totalFrames: 128\n    env: {id: CartPole-v1, numEnvs: 2}\n"
        "    network: {type: 'mine:Elman', config: {width: 8}}\n"
        "    ppo: {numSteps: 32, minibatchSize: 32, advantage: {type: 'mine:one_step', config: {gamma: 0.9}}}\n"
    )
    command = [sys.executable, "-m", "rlruntime.cli.main", "run", "job.yaml", "--out", "run", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_snippet_of_a_learner_runs_as_it_stands() -> None:
    done = run(SNIPPETS[-1])
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
