"""The page about collectors: its snippets run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "collectors.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("group", [SNIPPETS[:2], SNIPPETS[2:4], SNIPPETS[4:6], SNIPPETS[6:]], ids=range(4))
def test_the_snippets_run_as_they_stand(group: list[str]) -> None:
    assert group
    command = [sys.executable, "-W", "error", "-c", "\n".join(group)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
