"""What the pages show is run, small and in an empty folder: the README's commands, and the Python of every page."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SMALL = 1_024
_LIMIT_S = 110


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a page that are in ``language``."""
    return [text for name, text in _FENCE.findall(page.read_text(encoding="utf-8")) if name == language]


class _Shrink(ast.NodeTransformer):
    """Makes every large number of a program small."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, int) and node.value >= 10 * _SMALL:
            return ast.copy_location(ast.Constant(_SMALL), node)
        return node


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the examples, each shortened to a few rollouts."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (tmp_path / "examples").glob("*.yaml"):
        text = re.sub(r"(totalFrames|everyFrames): *\S+", rf"\1: {_SMALL}", path.read_text())
        path.write_text(re.sub(r"episodes: *\d+", "episodes: 2", text))
    return tmp_path


def run(command: list[str], folder: Path) -> None:
    """Run a command there and show what it said when it fails."""
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_of_a_page_runs(page: Path, folder: Path) -> None:
    # The blocks of one page are one program, as for a reader who types them in order.
    program = folder / "page.py"
    tree = _Shrink().visit(ast.parse("\n".join(blocks(page, "python"))))
    program.write_text(ast.unparse(tree))
    run([sys.executable, "-W", "error", str(program)], folder)


def test_manifests_in_the_readme_are_valid(folder: Path) -> None:
    for number, text in enumerate(blocks(ROOT / "README.md", "yaml")):
        path = folder / f"readme-{number}.yaml"
        path.write_text(text)
        run([sys.executable, "-m", "rlruntime.cli.main", "validate", str(path)], folder)


def test_commands_in_the_readme_run_or_are_targets_of_make(folder: Path) -> None:
    targets = set(re.findall(r"^\.PHONY: (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [line for block in blocks(ROOT / "README.md", "sh") for line in block.splitlines() if line.strip()]
    assert lines[0].startswith("make demo")
    assert lines[1].startswith("make test")
    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        if program == "make":
            assert set(arguments) <= targets, line
        elif program == ".":
            assert arguments == [".venv/bin/activate"]  # made by make
        else:
            assert program == "rljob", f"{line}: this test doesn't know how to run it"
            run([sys.executable, "-m", "rlruntime.cli.main", *arguments], folder)


def test_first_command_runs_the_example_that_the_readme_names() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "EXAMPLE := examples/01-ppo-cartpole.yaml" in makefile
    assert "rljob run $(EXAMPLE)\n" in makefile
    assert "examples/01-ppo-cartpole.yaml" in (ROOT / "README.md").read_text()
