"""What the pages for beginners and operators tell to type: commands that exist, manifests that are valid."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from rlruntime.cli.main import parser
from rlruntime.spec.loader import Document, parse_document, read_documents

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    ROOT / "docs" / name
    for name in (
        "quickstart-laptop.md", "quickstart-kind.md", "quickstart-gpu.md", "terminal.md", "operations.md",
        "troubleshooting.md",
    )
]  # fmt: skip
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_HEREDOC = re.compile(r"<<'END'\n(.*?)^END$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:rljob|make|kubectl rlj) [^`]+)`")
_PLACEHOLDERS = {"FILE": "job.yaml", "NAME": "ppo", "JOB": "ppo"}


def manifests(page: Path) -> list[Document]:
    """Return the jobs that a page shows."""
    text = page.read_text(encoding="utf-8")
    blocks = [block for language, block in _FENCE.findall(text) if language == "yaml" and "kind: RLJob" in block]
    return [found for block in (*blocks, *_HEREDOC.findall(text)) for found in read_documents(block, page.name)]


def commands(page: Path) -> list[str]:
    """Return the commands of `rljob` and `make` that a page shows, in blocks and in sentences."""
    text = page.read_text(encoding="utf-8")
    blocks = "".join(_HEREDOC.sub("", block) for language, block in _FENCE.findall(text) if not language)
    lines = [line.removeprefix("$ ") for line in blocks.splitlines()]
    found = [line for line in lines if line.startswith(("rljob ", "make "))]
    return [*found, *_INLINE.findall(_FENCE.sub("", text))]


@pytest.mark.parametrize("page", [page for page in PAGES if manifests(page)], ids=lambda page: page.stem)
def test_manifests_of_a_page_are_valid(page: Path) -> None:
    for document in manifests(page):
        parse_document(document)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_page_exist(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_parser: argparse.ArgumentParser, message: str) -> None:
        raise AssertionError(message)

    monkeypatch.setattr(argparse.ArgumentParser, "error", refuse)
    targets = set(re.findall(r"^\.PHONY: (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    found, help_text = commands(page), parser().format_help().split()
    assert found
    for command in found:
        words = shlex.split(re.split(r" [|&]", command)[0], comments=True)
        if words[0] == "make":
            assert set(words[1:]) <= targets, command
            continue
        words = [_PLACEHOLDERS.get(word, word) for word in words if word not in ("kubectl", "rlj", "rljob")]
        if len(words) == 1:  # in a sentence, the name of a command
            assert words[0] in help_text, command
        else:
            parser().parse_args(words)
