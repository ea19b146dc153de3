"""The page of transforms lists each of them, with the seats that it claims."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from transform_cases import CASES, Case, registered

from rlruntime.errors import ConfigError
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.env import EnvConfig
from rlruntime.transforms.base import Seat
from rlruntime.transforms.staging import split_transforms

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "transforms.md").read_text(encoding="utf-8")
LETTERS: dict[str, Seat] = {"P": "policy", "E": "environment", "R": "rollout", "W": "write", "D": "read"}
ROWS = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", TEXT.partition("Coming from")[0], re.MULTILINE))


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


def test_manifest_of_the_page_is_placed_as_its_comments_say() -> None:
    (text,) = re.findall(r"^```yaml\nenv:\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    env = EnvConfig.model_validate(yaml.safe_load(text))
    found = split_transforms(env.transforms)
    assert [part.type for part in found.wrappers] == ["rlruntime.transforms.copies:FrameSkip"]
    assert [placed.component.type for placed in found.environment] == ["GrayScale", "Resize", "CatFrames"]
    assert [placed.component.type for placed in found.policy] == ["ToFloatImage", "RewardSign"]


def test_error_of_the_page_is_what_a_user_sees() -> None:
    wrong = [Component(type="ObservationNorm"), Component(type="CatFrames")]
    with pytest.raises(ConfigError) as caught:
        split_transforms(wrong)
    assert str(caught.value) in " ".join(TEXT.split())
