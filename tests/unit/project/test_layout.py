"""What must hold for the repository as a whole: its layout, what importing it costs, and what its files may say."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("torch", "tensordict", "numpy", "gymnasium", "safetensors", "prometheus_client", "rich", "matplotlib")
MAX_LINES = 600
MAX_IMPORT_S = 1.0


def tracked(*patterns: str) -> list[Path]:
    """Return the repository's files, those not yet committed included."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def loaded_by(code: str) -> set[str]:
    """Return the heavy packages that are loaded in a fresh interpreter once it has run ``code``."""
    program = f"import sys\n{code}\nimport json\nprint(json.dumps([n for n in {HEAVY} if n in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_operator_folder_is_never_a_package() -> None:
    # It would shadow the standard library's `operator` for whatever starts in the repository's root.
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import rlruntime") == set()


def test_importing_the_package_takes_less_than_a_second() -> None:
    program = (
        "from time import perf_counter\nstarted = perf_counter()\nimport rlruntime\nprint(perf_counter() - started)"
    )
    seconds = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
        seconds.append(float(done.stdout))
    assert min(seconds) < MAX_IMPORT_S


@pytest.mark.parametrize(
    "code",
    [
        "import rlruntime.spec.loader, rlruntime.spec.overrides, rlruntime.spec.reference, rlruntime.spec.status",
        "import rlruntime.cli.main as cli; assert cli.main(['validate', 'examples/01-ppo-cartpole.yaml']) == 0",
        "import rlruntime.cli.main as cli; assert cli.main(['crd']) == 0",
        "import rlruntime.cli.main as cli; assert cli.main(['version']) == 0",
    ],
)
def test_manifest_and_light_commands_load_nothing_heavy(code: str) -> None:
    assert loaded_by(code) == set()


def test_environments_and_worker_processes_load_no_torch() -> None:
    modules = sorted(
        f"rlruntime.envs.{path.stem}" for path in (ROOT / "rlruntime/envs").glob("*.py") if path.stem != "__init__"
    )
    code = "\n".join(f"import {module}" for module in modules if not module.endswith(".envpool"))
    assert loaded_by(code) == {"numpy", "gymnasium"}


def test_public_names_can_be_imported_and_acting_loads_no_trainer() -> None:
    code = """
import sys, rlruntime
rlruntime.load_policy
above = tuple(f"rlruntime.{layer}" for layer in ("trainers", "collectors", "services", "cli"))
assert not [name for name in sys.modules if name.startswith(above)]
missing = [name for name in rlruntime.__all__ if getattr(rlruntime, name, None) is None]
assert not missing, missing
"""
    assert "torch" in loaded_by(code)


def test_spec_imports_only_pydantic_yaml_and_the_standard_library() -> None:
    allowed = {"pydantic", "pydantic_core", "yaml", "rlruntime", *sys.stdlib_module_names}
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in (ROOT / "rlruntime/spec").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in _imported(node)
        if name not in allowed
    }
    assert found == set()


def test_package_docstrings_say_what_belongs_inside_and_what_may_be_imported() -> None:
    silent = []
    for path in sorted((ROOT / "rlruntime").rglob("__init__.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        top_level = path.parent.parent == ROOT / "rlruntime"
        if not text or (top_level and not re.search(r"\bimports?\b", text, re.IGNORECASE)):
            silent.append(path.relative_to(ROOT).as_posix())
    assert silent == []


def test_every_module_has_a_docstring() -> None:
    silent = [
        path.relative_to(ROOT).as_posix()
        for path in tracked("rlruntime/*.py", "tools/*.py")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_no_source_file_is_longer_than_a_reader_can_hold() -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in tracked("*.py", "*.sh", "Makefile", ".ci/*")
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_test_files_have_unique_names() -> None:
    # They are imported under their own names; a second one would hide the first.
    names = [path.name for path in tracked("tests/**/test_*.py")]
    assert sorted(names) == sorted(set(names))


# Folders of one machine, and the hosts that packages come from: neither is the same where the next reader works. Names
# of Go's modules look like hosts, and are none.
_MACHINE = re.compile(r"(?<![\w.:/~-])/(?:work|root|home|Users|mnt|workspace|scratch)/[\w.-]+")
_INDEX_HOST = re.compile(
    r"\b(?:[\w-]+\.)*(?:pypi|pythonhosted|npmjs|anaconda|crates|maven|debian)\.(?:org|com|io)\b"
    r"|\b(?:proxy|sum|index)\.golang\.org\b"
)
_INDEX_OPTION = re.compile(r"(?:--(?:extra-)?index-url|--find-links|--trusted-host|\bindex[-_]url\b)[ =]")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see /work/project/x.py", True),
        ("HOME=/root/.cache", True),
        ("path: /home/me/runs", True),
        ("pip install --index-url https://mirror.example/simple x", True),
        ("from https://files.{}.org/packages".format("pythonhosted"), True),
        ("GOPROXY=https://{}.golang.org".format("proxy"), True),
        ("golang.org/x/net v0.61.0", False),
        ("runs/ppo-cartpole-1 and /metrics, /healthz", False),
        ("mountPath: /mnt", False),
        ("`/dev/shm/rljob-1`", False),
        ("https://example.org/work/project", False),
    ],
)
def test_scan_for_places_tells_machines_from_ordinary_paths(text: str, found: bool) -> None:
    assert bool(_places(text)) is found


def test_no_file_names_a_folder_of_one_machine_or_a_package_index() -> None:
    found = {}
    for path in tracked():
        if path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        places = _places(text)
        if places:
            found[path.relative_to(ROOT).as_posix()] = places
    assert found == {}


def test_pinned_versions_are_exact() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 50
    assert [line for line in pins if not re.fullmatch(r"[a-z0-9-]+==[\w.+!]+( ; .+)?", line)] == []


def test_every_decision_is_listed_by_its_title() -> None:
    folder = ROOT / "docs/decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    listed = {name: title for title, name in re.findall(r"^- \[(.+)\]\((.+)\)$", index, re.MULTILINE)}
    titles = {
        path.name: path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        for path in folder.glob("*.md")
        if path.name != "README.md"
    }
    assert listed == titles


def test_help_lists_every_target_that_is_meant_for_people() -> None:
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "help"], cwd=ROOT, env=outside, check=True, capture_output=True, text=True)
    listed = {line.split()[0] for line in done.stdout.splitlines()}
    declared = set(re.findall(r"^\.PHONY: (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert listed == declared


def _places(text: str) -> list[str]:
    return [match.group() for rule in (_MACHINE, _INDEX_HOST, _INDEX_OPTION) for match in rule.finditer(text)]


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module.partition(".")[0]]
    return []
