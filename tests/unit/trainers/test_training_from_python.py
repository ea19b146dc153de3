"""`rlruntime.train` and `load_policy` with a user's own modules, as a program uses them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"

PROGRAM = """
import sys
import rlruntime
if sys.argv[1] == "train":
    rlruntime.train("jobs/job.yaml", out="run")
policy = rlruntime.load_policy("run")
print(policy.act(policy.spaces.observation.sample()).action.shape)
"""


def test_modules_beside_the_manifest_are_found_when_training_and_when_the_policy_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    text = (EXAMPLES / "14-custom-network.yaml").read_text()
    assert "totalFrames: 100000" in text
    (tmp_path / "jobs" / "job.yaml").write_text(text.replace("totalFrames: 100000", "totalFrames: 300"))
    shutil.copy(EXAMPLES / "my_network.py", tmp_path / "jobs")
    for step in ("train", "load"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, step],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "()\n", "")
