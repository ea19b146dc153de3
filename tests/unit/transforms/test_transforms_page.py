"""The page of transforms lists each of them, with the seats that it claims."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transform_cases import CASES, Case, registered

from rlruntime.transforms.base import Seat

PAGE = Path(__file__).resolve().parents[3] / "docs" / "transforms.md"
LETTERS: dict[str, Seat] = {"P": "policy", "E": "environment", "R": "rollout", "W": "write", "D": "read"}
ROWS = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


def test_page_lists_every_transform_once() -> None:
    assert set(ROWS) == registered()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_page_says_the_seats_and_whether_there_is_an_inverse(case: Case) -> None:
    seats, inverse, *_ = (cell.strip() for cell in ROWS[case.name].split("|"))
    said = [
        frozenset(LETTERS.values())
        if "all" in part
        else frozenset(LETTERS[letter] for letter in re.findall(r"\b[A-Z]\b", part))
        for part in seats.split(";")
    ]
    assert case.seats in said
    if {"write", "read"} & case.seats:
        assert inverse == ("yes" if case.undone else "no")
    else:
        assert inverse == ""
