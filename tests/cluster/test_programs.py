"""Where the programs of a cluster come from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cluster_harness import binaries
from cluster_harness.errors import Unavailable
from cluster_harness.fixtures import skip_or_fail
from cluster_harness.products import EVERYTHING, PROGRAMS
from cluster_harness.toolchain import go_program

SUPPORT = Path(__file__).resolve().parents[1] / "support"


def script(path: Path, prints: str) -> Path:
    """Write a program that prints one line, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which nothing was built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(binaries.FOLDER_VARIABLE, raising=False)
    return tmp_path / "cache" / "rljob" / "kube"


def built(program: str) -> Path:
    """Return where a program is built."""
    return binaries.cache_folder() / PROGRAMS[program].build_name / program


def test_every_program_is_pinned_to_a_version() -> None:
    assert {PROGRAMS[name].version[0] for name in EVERYTHING} == {"v"}
    assert PROGRAMS["kubectl"].version == PROGRAMS["kube-apiserver"].version


def test_named_folder_comes_first_whatever_the_version(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = script(tmp_path / "given" / "kubectl", "Client Version: v1.2.3")
    script(built("kubectl"), "Client Version: v1.37.2")
    monkeypatch.setenv(binaries.FOLDER_VARIABLE, str(given.parent))
    assert binaries.find(["kubectl"]) == {"kubectl": given}


@pytest.mark.parametrize(
    ("version", "taken"), [("v1.37.9", True), ("v1.36.2", False), ("v1.3.7", False), ("no version", False)]
)
def test_program_on_path_is_taken_in_the_pinned_minor_version_only(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, taken: bool
) -> None:
    on_path = script(tmp_path / "bin" / "kubectl", f"Client Version: {version}")
    script(built("kubectl"), "Client Version: v1.37.2")
    monkeypatch.setenv("PATH", str(on_path.parent), prepend=":")
    assert binaries.find(["kubectl"]) == {"kubectl": on_path if taken else built("kubectl")}


def test_two_processes_that_need_the_same_program_build_it_once_and_say_so(empty_cache: Path) -> None:
    try:
        go_program(empty_cache)
    except Unavailable as error:
        skip_or_fail(str(error))
    program = (
        f"import sys; sys.path.insert(0, {str(SUPPORT)!r})\n"
        "from cluster_harness.binaries import find\n"
        "print(find(['pause'])['pause'])"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=110) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert [printed.strip() for printed, _ in answers] == [str(built("pause"))] * 2
    said = "".join(words for _, words in answers)
    assert said.count("building pause v1.0.0 (1 of 1)") == 1
    assert said.count("built pause in ") == 1
    assert built("pause").stat().st_mode & 0o111
