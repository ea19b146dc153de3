"""Writes the generated files, or checks that they are fresh."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from monitoring.alerts import rules_text
from monitoring.dashboards import DASHBOARDS
from monitoring.page import page

ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "charts" / "rljob" / "files"


def generated() -> dict[Path, str]:
    """Return what each generated file is to hold."""
    return {
        **{FILES / "dashboards" / f"{board.uid}.json": board.to_json() for board in DASHBOARDS},
        FILES / "alerts.yaml": rules_text(),
        ROOT / "docs" / "metrics.md": page(),
    }


def main() -> int:
    """Write or check them; return 1 where a check finds one that isn't fresh."""
    parser = argparse.ArgumentParser(prog="python -m monitoring", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail where a file isn't fresh")
    check = parser.parse_args().check
    stale = []
    for path, text in generated().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.relative_to(ROOT).as_posix())
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name} isn't what `make dashboards` writes" if check else f"wrote {name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
