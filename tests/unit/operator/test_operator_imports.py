"""What importing the operator loads, and what may import it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "operator/rljob_operator"
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if path.name != "__init__.py"
)


PURE = [
    module
    for module in MODULES
    if module.split(".")[1] in ("builders", "planner", "preview", "documents", "settings", "cli")
]


def loaded_by(modules: list[str]) -> set[str]:
    """Return all modules that a new process has loaded once it has imported these."""
    imports = "\n".join(f"import {module}" for module in modules)
    program = f"{imports}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


def test_importing_the_operator_loads_of_the_runtime_what_is_light_alone_and_no_framework() -> None:
    loaded = loaded_by(MODULES)
    assert {"torch", "tensordict", "numpy", "gymnasium", "rich"} & loaded == set()
    # The registry is what the manifest and the errors rest on; all command lines say wrong use in the same way.
    light = ("spec", "errors", "registry", "metrics.family", "command_line")
    allowed = tuple(f"rlruntime.{name}" for name in light)
    runtime = [name for name in loaded if name.startswith("rlruntime.") and name != "rlruntime.metrics"]
    assert [name for name in runtime if not name.startswith(allowed)] == []
    assert set(MODULES) <= loaded


def test_what_is_built_and_planned_needs_neither_kopf_nor_a_client() -> None:
    loaded = loaded_by(PURE)
    assert {"kopf", "kubernetes", "aiohttp", "prometheus_client"} & loaded == set()
    assert set(PURE) <= loaded


def test_importing_the_bare_package_loads_nothing_of_the_runtime() -> None:
    program = "import rljob_operator, sys\nprint([n for n in sys.modules if n.startswith('rlruntime')])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_operator_is_found_from_anywhere_and_hides_no_standard_module(tmp_path: Path) -> None:
    program = "import rljob_operator, operator\nprint(rljob_operator.__file__)\nprint(operator.add(1, 2))"
    for folder in (tmp_path, ROOT):
        done = subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, capture_output=True, text=True)
        assert done.stdout == f"{PACKAGE / '__init__.py'}\n3\n"


def test_every_module_says_what_it_is_and_packages_what_they_may_import() -> None:
    texts = {path: ast.get_docstring(ast.parse(path.read_text())) or "" for path in PACKAGE.rglob("*.py")}
    assert [str(path) for path, text in texts.items() if not text] == []
    assert all("May import:" in text for path, text in texts.items() if path.name == "__init__.py")
