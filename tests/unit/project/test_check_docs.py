"""The check of links in the docs, on pages made for it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from helm import tool


@pytest.fixture(scope="module")
def check_docs() -> ModuleType:
    """Return `tools/check_docs.py` as a module."""
    return tool("check_docs")


def problems(check_docs: ModuleType, folder: Path, text: str) -> list[str]:
    """Return what is said of a page with this text, beside a page `other.md` with two headings."""
    (folder / "other.md").write_text("# Title\n## The `spec.env` part\n## Title\n")
    page = folder / "page.md"
    page.write_text(text)
    return list(check_docs.broken_links(page, folder))


@pytest.mark.parametrize(
    "text",
    [
        "[a](other.md) and [b](other.md#title) and [c](other.md#title-1)",
        "[a](other.md#the-specenv-part)",
        "# Here\n[a](#here)",
        "[a](https://example.org/nowhere#at-all)",
        "```md\n[a](nowhere.md)\n```",
        "`[a](nowhere.md)`",
    ],
)
def test_links_that_lead_somewhere_are_silent(check_docs: ModuleType, tmp_path: Path, text: str) -> None:
    assert problems(check_docs, tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](nowhere.md)", "page.md: nowhere.md: there is no such file"),
        ("![a](picture.svg)", "page.md: picture.svg: there is no such file"),
        ('<img src="picture.svg">', "page.md: picture.svg: there is no such file"),
        ("[a](other.md#elsewhere)", "page.md: other.md#elsewhere: there is no such heading"),
        ("[a](#here)", "page.md: #here: there is no such heading"),
    ],
)
def test_broken_link_is_named(check_docs: ModuleType, tmp_path: Path, text: str, problem: str) -> None:
    assert problems(check_docs, tmp_path, text) == [problem]
