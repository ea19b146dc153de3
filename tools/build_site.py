"""Builds the documentation site from docs/ with Zensical, strictly: `make docs-site`.

The pages are written to be read on a code host as well, and link to files beside docs/: examples, manifests, folders.
In the site each such file is a page of its own. So the pages are staged first: docs/ as it is, what it links to below
`repository/`, and links turned to where things are then.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "mkdocs.yml"
_CODE = re.compile(r"(^(?P<fence>```|~~~).*?^(?P=fence)\s*$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)([^)]*\))")
_LANGUAGES = {".yaml": "yaml", ".yml": "yaml", ".py": "python", ".json": "json", ".toml": "toml", ".sh": "sh"}
_PAGES, _OUTSIDE = "docs", "repository"


class Stage:
    """Pages in a folder that a site is built from.

    Args:
        root: of the repository.
        folder: is emptied.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder
        self._waiting: list[Path] = []
        self._known: set[Path] = set()
        shutil.rmtree(folder, ignore_errors=True)

    def fill(self) -> None:
        """Stage docs/, and whatever its pages link to."""
        for path in sorted((self._root / _PAGES).rglob("*")):
            if path.is_file():
                self._want(path)
        while self._waiting:
            self._write(self._waiting.pop())

    def place(self, path: Path) -> Path:
        """Return where a file or a folder of the repository is in the site's sources."""
        inside = path.relative_to(self._root)
        if inside.parts[:1] == (_PAGES,):
            return Path(*inside.parts[1:])
        if path.is_dir():
            return self.place(path / "README.md") if (path / "README.md").is_file() else _OUTSIDE / inside / "index.md"
        return _OUTSIDE / (inside if inside.suffix == ".md" else inside.with_name(f"{inside.name}.md"))

    def _want(self, path: Path) -> None:
        if path not in self._known:
            self._known.add(path)
            self._waiting.append(path)

    def _write(self, path: Path) -> None:
        target = self._folder / self.place(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        inside = path.relative_to(self._root)
        if path.is_dir():
            if (path / "README.md").is_file():
                self._want(path / "README.md")
            else:
                target.write_text(self._listing(path), encoding="utf-8")
        elif path.suffix == ".md":
            text = path.read_text(encoding="utf-8")
            target.write_text(with_links(text, lambda link: self._link(path, link)), encoding="utf-8")
        elif inside.parts[0] == _PAGES:
            shutil.copyfile(path, target)
        else:
            text = path.read_text(encoding="utf-8")
            language = _LANGUAGES.get(path.suffix, "text")
            target.write_text(f"# {inside.as_posix()}\n\n````{language}\n{text}````\n", encoding="utf-8")

    def _listing(self, folder: Path) -> str:
        lines = [f"# {folder.relative_to(self._root).as_posix()}/", ""]
        for path in tracked(self._root, folder):
            if path.parent == folder and path.suffix in {*_LANGUAGES, ".md", ".Containerfile"}:
                self._want(path)
                link = os.path.relpath(self.place(path), self.place(folder).parent)
                lines.append(f"- [{path.name}]({Path(link).as_posix()})")
        return "\n".join(lines) + "\n"

    def _link(self, page: Path, link: str) -> str:
        """Return where a link of ``page`` leads in the site's sources."""
        path_text, hash_sign, anchor = link.partition("#")
        if not path_text or re.match(r"[a-z][a-z0-9+.-]*:", link):
            return link
        path = Path(os.path.normpath(page.parent / path_text))
        if not path.exists() or not path.is_relative_to(self._root):
            return link  # the strict build says so
        self._want(path)
        found = os.path.relpath(self.place(path), self.place(page).parent)
        return Path(found).as_posix() + hash_sign + anchor


def with_links(text: str, turn: Callable[[str], str]) -> str:
    """Return a page with other links; what stands in code stays."""
    parts = []
    position = 0
    for code in _CODE.finditer(text):
        parts += [_turned(text[position : code.start()], turn), code.group()]
        position = code.end()
    return "".join((*parts, _turned(text[position:], turn)))


def _turned(text: str, turn: Callable[[str], str]) -> str:
    return _LINK.sub(lambda match: f"{match[1]}{turn(match[2])}{match[3]}", text)


def tracked(root: Path, folder: Path) -> list[Path]:
    """Return the files of a folder that are no leftovers."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", str(folder)]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return [root / name for name in sorted(filter(None, listed.split("\0"))) if (root / name).is_file()]


def pages_of(navigation: Any) -> Iterator[str]:
    """Yield the pages that the site's navigation names."""
    if isinstance(navigation, str):
        yield navigation
    elif isinstance(navigation, dict):
        for part in navigation.values():
            yield from pages_of(part)
    elif isinstance(navigation, list):
        for part in navigation:
            yield from pages_of(part)


def problems_of_navigation(named: set[str], there: set[str]) -> list[str]:
    """Return a line for each page that can't be found from the navigation, and for each that isn't there."""
    lost = sorted(page for page in there - named if not page.startswith("decisions/"))
    return [f"docs/{page}: isn't in the nav of mkdocs.yml" for page in lost] + [
        f"mkdocs.yml: nav names {page}, which isn't there" for page in sorted(named - there)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Stage, build, and return 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build", help="holds sources and site (build)")
    folder = parser.parse_args(arguments).folder.resolve()
    source, site = folder / "site-source", folder / "site"
    config = yaml.load(CONFIG.read_text(encoding="utf-8"), Loader=_Loose)
    there = {path.relative_to(ROOT / _PAGES).as_posix() for path in (ROOT / _PAGES).rglob("*.md")}
    problems = problems_of_navigation(set(pages_of(config["nav"])), there)
    if problems:
        print("\n".join(problems))
        return 1
    Stage(ROOT, source).fill()
    shutil.rmtree(site, ignore_errors=True)
    # Paths in a configuration are relative to its file.
    used = folder / "mkdocs.yml"
    places = {"docs_dir": source.name, "site_dir": site.name}
    text = CONFIG.read_text(encoding="utf-8")
    for name, place in places.items():
        text = re.sub(rf"^{name}: .*$", f"{name}: {place}", text, flags=re.MULTILINE)
    used.write_text(text, encoding="utf-8")
    program = Path(sys.executable).with_name("zensical")
    colours = {} if sys.stdout.isatty() else {"NO_COLOR": "1"}
    command = [program, "build", "--strict", "--clean", "--config-file", used]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **colours}, check=False)
    return 1 if done.returncode else 0


class _Loose(yaml.SafeLoader):
    """Reads a configuration whose tags name functions of Python, and doesn't look for them."""


_Loose.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


if __name__ == "__main__":
    sys.exit(main())
