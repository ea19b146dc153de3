"""What can be said of the images without building them: no engine is needed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRA_OF = {"runtime": "runtime", "operator": "operator"}
SCRIPT_OF = {"runtime": "rljob", "operator": "rljob-operator"}

Instruction = tuple[str, str]
images = pytest.mark.parametrize("image", ["runtime", "operator"])


def instructions(image: str) -> list[Instruction]:
    """Return the instructions of a Containerfile, continued lines joined, without comments."""
    lines = (ROOT / f"images/{image}.Containerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", "", text)
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def stages(image: str) -> list[list[Instruction]]:
    """Return the instructions of each stage; those before the first FROM are left out."""
    found: list[list[Instruction]] = []
    for word, rest in instructions(image):
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


def copied_from_the_repository(image: str) -> list[str]:
    return [
        source
        for word, rest in instructions(image)
        if word == "COPY" and not rest.startswith("--from=")
        for source in rest.split()[:-1]
    ]


def not_ignored() -> list[str]:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"  # what isn't named stays out, secrets and virtual environments too
    return [line.removeprefix("!") for line in lines if line.startswith("!")]


@images
def test_image_runs_as_a_user_that_is_not_root_in_every_cluster(image: str) -> None:
    last = stages(image)[-1]
    assert [rest for word, rest in last if word == "USER"] == ["10001:10001"]  # by number, so that it can be checked
    assert [word for word, _ in last].index("USER") > [word for word, _ in last].index("COPY")


@images
def test_last_stage_holds_what_the_first_one_installed_and_no_tools(image: str) -> None:
    build, last = stages(image)
    assert build[0] == ("FROM", "python:${PYTHON}-slim AS build")
    assert last[0] == ("FROM", "python:${PYTHON}-slim")
    assert [rest for word, rest in last if word == "COPY"] == ["--from=build /opt/rljob /opt/rljob"]
    assert not [rest for word, rest in last if word == "RUN"]


@images
def test_entrypoint_is_a_script_of_the_distribution(image: str) -> None:
    entrypoint = json.loads(next(rest for word, rest in stages(image)[-1] if word == "ENTRYPOINT"))
    assert entrypoint == [SCRIPT_OF[image]]
    assert entrypoint[0] in PROJECT["scripts"]


@images
def test_extra_that_is_installed_exists_and_versions_are_pinned(image: str) -> None:
    build = stages(image)[0]
    assert ("ARG", f"EXTRAS={EXTRA_OF[image]}") in build
    assert EXTRA_OF[image] in PROJECT["optional-dependencies"]
    installs = [rest for word, rest in build if word == "RUN" and "install" in rest]
    assert len(installs) == 2
    assert all("--constraint" in rest for rest in installs)


def test_operator_has_no_framework() -> None:
    needed = " ".join(PROJECT["optional-dependencies"]["operator"] + PROJECT["dependencies"])
    assert not re.search(r"\b(torch|tensordict|numpy|gymnasium)\b", needed)


@images
def test_what_is_copied_exists_and_is_not_ignored(image: str) -> None:
    copied = copied_from_the_repository(image)
    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert [source for source in copied if source not in not_ignored()] == []


@images
def test_what_is_copied_is_enough_to_build_the_distribution(image: str, tmp_path: Path) -> None:
    for source in copied_from_the_repository(image):
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, tmp_path / source)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", "wheels"],
        cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "wheels").glob("rljob-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (scripts,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert {name.partition("/")[0] for name in names if not name.startswith("rljob-")} == {
        "rlruntime",
        "rljob_operator",
    }
    assert f"{SCRIPT_OF[image]} = " in scripts
