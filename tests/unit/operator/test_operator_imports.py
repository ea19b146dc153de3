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


def test_importing_the_operator_loads_the_manifest_and_nothing_heavy() -> None:
    imports = "\n".join(f"import {module}" for module in MODULES)
    program = f"{imports}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    loaded = json.loads(done.stdout)
    outside = {"torch", "tensordict", "numpy", "gymnasium", "rich", "kopf", "kubernetes", "prometheus_client"}
    assert outside & set(loaded) == set()
    # The registry is what the manifest and the errors rest on.
    allowed = ("rlruntime.spec", "rlruntime.errors", "rlruntime.registry")
    runtime = [name for name in loaded if name.startswith("rlruntime.")]
    assert [name for name in runtime if not name.startswith(allowed)] == []
    assert set(MODULES) <= set(loaded)


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
