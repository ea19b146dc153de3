"""JSON that is nested deeper than Python reads: one user's job must not keep the operator from the others'."""

from __future__ import annotations

import json
from typing import Any

import pytest
from reconcile_bench import job_document
from rljob_operator.kube.nesting import LEVELS, loads, shallow
from rljob_operator.reconcile.views import job_view


def nested(levels: int, innermost: str = "1") -> str:
    return '{"a":' * levels + innermost + "}" * levels


def depth_of(value: Any) -> int:
    depth = 0
    while isinstance(value, dict):
        value, depth = next(iter(value.values())), depth + 1
    return depth


@pytest.mark.parametrize(
    "text", [nested(3), nested(LEVELS), '["{[", "}]", "\\"{", {"}": []}]' * 1, "[]", '"x"', "null"]
)
def test_what_is_not_too_deep_is_left_as_it_is(text: str) -> None:
    assert shallow(text.encode()) == text.encode()
    assert loads(text.encode()) == json.loads(text)


def test_null_stands_for_what_is_too_deep_and_all_beside_it_stays() -> None:
    noise = '"}]\\"{[\\\\"'
    text = f'{{"before": {noise}, "deep": {nested(9000, noise)}, "after": [{nested(5000)}, {noise}, {{"b": 2}}]}}'
    found = loads(text.encode())
    assert found["before"] == '}]"{[\\'
    assert found["after"][1:] == ['}]"{[\\', {"b": 2}]
    assert depth_of(found["deep"]) == LEVELS - 1


@pytest.mark.parametrize("text", [b"<html>", b"", b"{", b"[" * 9000, b'{"a":' * 9000])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|delimiter"):
        loads(text)


@pytest.mark.parametrize(("levels", "is_read"), [(90, True), (100, False), (300, False)])
def test_a_spec_that_is_too_deep_can_not_be_read(levels: int, is_read: bool) -> None:
    roles = [{"name": "trainer", "type": "Trainer", "template": {"spec": {"x": json.loads(nested(levels))}}}]
    view = job_view({**job_document(roles=roles)})
    assert (view.spec is not None) == is_read
    assert view.spec_problem.startswith("" if is_read else "spec: is nested more than 100 levels deep")
