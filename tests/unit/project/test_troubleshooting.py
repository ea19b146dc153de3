"""The page about troubles knows every reason, event and exit code that the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from rljob_operator.planner.outcomes import _OF_THE_NODE
from rljob_operator.planner.waiting import TROUBLES

from rlruntime import errors

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
OPERATOR = ROOT / "operator/rljob_operator"
NAMED = set(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)))
_WORD = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)*")

NO_REASONS = {
    # phases, conditions, kinds, and names of rules: what reasons are said of
    "Pending", "True", "False", "None", "Running", "Restarting", "Succeeded", "Failed", "PodsReady",
    "CheckpointDurable", "Trainer", "Service", "Inference", "Collector", "All", "Now", "Lazy", "Done", "Permanent",
    "Disruption", "Fault",
    # kinds of Kubernetes' objects
    "Pod", "Secret", "PersistentVolumeClaim",
    # words of Kubernetes that are read, and become one of our reasons
    "ContainerCreating", "PodInitializing", "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName",
    "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed", "CreateContainerConfigError",
    "CreateContainerError", "RunContainerError", "StartError", "CrashLoopBackOff", "FailedScheduling", "Mount", "OutOf",
    "AttachVolume", "MapVolume", "Stopped",
}  # fmt: skip


def constants(*files: Path) -> set[str]:
    """Return the words in CamelCase that stand as text in these files, outside docstrings."""
    found: set[str] = set()
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
                found.update([node.value] if _WORD.fullmatch(node.value) else [])
    return found


def test_every_reason_in_the_planner_is_on_the_page() -> None:
    used = constants(*(OPERATOR / "planner").glob("*.py"), OPERATOR / "reconcile/execute.py") - _OF_THE_NODE
    assert len(used - NO_REASONS) >= 30
    assert sorted(used - NO_REASONS - NAMED) == []


def test_every_trouble_and_every_event_is_on_the_page() -> None:
    events = {"Running", "Restarting", "Suspended", "Resumed", "Succeeded", "Failed", "ForceDeleted"}
    assert sorted({*TROUBLES, *events} - NAMED) == []


@pytest.mark.parametrize("name", [name for name in vars(errors) if name.startswith("EXIT_")])
def test_every_exit_code_is_on_the_page(name: str) -> None:
    assert f"\n| {getattr(errors, name)} | " in PAGE


def test_the_page_names_no_reason_that_the_code_does_not_have() -> None:
    table = PAGE.partition("## It isn't running")[2].partition("## It restarts")[0]
    listed = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    known = constants(*(OPERATOR / "planner").glob("*.py"), OPERATOR / "reconcile/execute.py")
    assert sorted(listed - known) == []
    assert len(listed) >= 20
