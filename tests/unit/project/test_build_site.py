"""The step before the site's build: where pages and files lie, and where links lead."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from helm import tool


@pytest.fixture(scope="module")
def build_site() -> ModuleType:
    """Return `tools/build_site.py` as a module."""
    return tool("build_site")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository with two pages, an example and a folder."""
    files = {
        "docs/index.md": "[a](sub/page.md#here) [b](../examples/one.yaml) [c](../examples) `[d](../gone.md)`\n"
        "```\n[e](../examples/one.yaml)\n```\n![f](images/x.svg) [g](https://example.org/x) [h](#there)\n",
        "docs/sub/page.md": "[a](../index.md) [b](../../tools/README.md)\n",
        "docs/images/x.svg": "<svg/>",
        "examples/one.yaml": "a: 1\n",
        "examples/two.py": "x = 1\n",
        "tools/README.md": "[a](../docs/index.md) [b](nowhere.md)\n",
    }
    for name, text in files.items():
        path = tmp_path / "repository" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "--quiet", tmp_path / "repository"], check=True)
    return tmp_path / "repository"


def test_links_out_of_the_docs_lead_to_pages_of_the_site(build_site: ModuleType, root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    build_site.Stage(root, source).fill()
    staged = {path.relative_to(source).as_posix(): path.read_text() for path in source.rglob("*") if path.is_file()}
    assert staged == {
        "index.md": "[a](sub/page.md#here) [b](repository/examples/one.yaml.md) [c](repository/examples/index.md)"
        " `[d](../gone.md)`\n```\n[e](../examples/one.yaml)\n```\n"
        "![f](images/x.svg) [g](https://example.org/x) [h](#there)\n",
        "sub/page.md": "[a](../index.md) [b](../repository/tools/README.md)\n",
        "images/x.svg": "<svg/>",
        "repository/examples/one.yaml.md": "# examples/one.yaml\n\n````yaml\na: 1\n````\n",
        "repository/examples/two.py.md": "# examples/two.py\n\n````python\nx = 1\n````\n",
        "repository/examples/index.md": "# examples/\n\n- [one.yaml](one.yaml.md)\n- [two.py](two.py.md)\n",
        "repository/tools/README.md": "[a](../../index.md) [b](nowhere.md)\n",
    }


def test_a_page_that_the_navigation_forgets_or_invents_is_named(build_site: ModuleType) -> None:
    named = set(build_site.pages_of([{"Home": "index.md"}, {"More": [{"A": "a.md"}, "b.md"]}]))
    assert named == {"index.md", "a.md", "b.md"}
    assert build_site.problems_of_navigation(named, {"index.md", "a.md", "c.md", "decisions/x.md"}) == [
        "docs/c.md: isn't in the nav of mkdocs.yml",
        "mkdocs.yml: nav names b.md, which isn't there",
    ]
