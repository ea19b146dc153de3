"""Checks that what the Markdown pages link to is there: files of the repository, and headings in them.

Links to other hosts are left alone: a check that needs the network says nothing about the change at hand.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
_HTML_LINK = re.compile(r"(?:src|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)


def broken_links(page: Path, root: Path) -> Iterator[str]:
    """Yield a line for each link of ``page`` that leads nowhere within ``root``."""
    text = _CODE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
    for match in (*_LINK.finditer(text), *_HTML_LINK.finditer(text)):
        target = match.group(1)
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        path_text, _, anchor = target.partition("#")
        path = page if not path_text else (page.parent / path_text).resolve()
        where = f"{page.relative_to(root)}: {target}"
        if not path.exists():
            yield f"{where}: there is no such file"
        elif not path.is_relative_to(root):
            yield f"{where}: lies outside the repository"
        elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text(encoding="utf-8")):
            yield f"{where}: there is no such heading"


def anchors(text: str) -> set[str]:
    """Return the anchors that a page's headings get: lower case, no punctuation, hyphens for spaces."""
    found: dict[str, int] = {}
    names = set()
    for match in _HEADING.finditer(_FENCE.sub("", text)):
        name = re.sub(r"[^\w\- ]", "", match.group(1).lower()).replace(" ", "-")
        count = found.get(name, 0)
        found[name] = count + 1
        names.add(f"{name}-{count}" if count else name)
    return names


def pages(root: Path) -> list[Path]:
    """Return the Markdown pages of the repository, those not yet committed included."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return [root / name for name in sorted(filter(None, listed.split("\0"))) if (root / name).is_file()]


def main() -> int:
    """Print what is broken; return 1 when anything is."""
    problems = [problem for page in pages(_ROOT) for problem in broken_links(page, _ROOT)]
    print("\n".join(problems) if problems else "All links in the docs lead somewhere.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
