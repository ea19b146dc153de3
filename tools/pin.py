"""Writes constraints.txt: one exact version for everything that the extra `dev` needs, on every platform.

Versions that are pinned already and still fit stay as they are; `--upgrade` takes the newest ones.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_TARGET = "constraints.txt"
_HEADER = "# Made by `make constraints`; `make constraints UPGRADE=1` takes newer versions. Don't edit.\n"

_OPTIONS = (
    "--extra=dev",
    "--universal",
    "--python-version=3.11",
    "--no-annotate",
    "--no-header",
    "--no-emit-index-url",
    "--system-certs",
    "--quiet",
)


def main(arguments: list[str]) -> int:
    """Run the resolver and write the file. Returns the resolver's exit code."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--output-file", _TARGET, *_OPTIONS]
    code = subprocess.run([*command, *arguments], cwd=_ROOT, check=False).returncode
    if code == 0:
        path = _ROOT / _TARGET
        pins = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        path.write_text(_HEADER + "\n".join(pins) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
