"""The pictures of dashboards: what is seen in them."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from monitoring.grafana import Dashboard, Panel, Query, Row
from monitoring.prometheus import Prometheus, Series
from monitoring.render import View, draw


class Held(Prometheus):
    """Answers every query with one line of height 1 for each phase."""

    def __init__(self, phases: list[str]) -> None:
        super().__init__("http://127.0.0.1:9")
        self._phases = phases

    def query_range(self, expr: str, start_s: float, end_s: float, step_s: float) -> list[Series]:
        moments = np.arange(start_s, end_s + step_s / 2, step_s)
        return [Series({"phase": phase}, tuple((moment, 1.0) for moment in moments)) for phase in self._phases]


def picture(path: Path, phases: list[str], *, stack: bool, **settings: dict[str, str]) -> dict[tuple[int, ...], int]:
    """Return how many pixels of each colour the picture of one panel has."""
    panel = Panel("Jobs", (Query("jobs", "{{phase}}"),), share=24, stack=stack, **settings)  # type: ignore[arg-type]
    board = Dashboard("uid", "Title", "", (), (Row("Row", (panel,)),)).to_document()
    draw(board, Held(phases), View({}, 0.0, 600.0, "1m"), path)
    with Image.open(path) as drawn:
        colours, counts = np.unique(np.array(drawn.convert("RGB")).reshape(-1, 3), axis=0, return_counts=True)
    return {tuple(colour.tolist()): int(count) for colour, count in zip(colours, counts, strict=True)}


def on_paper(colour: str, share: float) -> tuple[int, ...]:
    return tuple(np.rint(255 * (1 + (np.array(mpl.colors.to_rgb(colour)) - 1) * share)).astype(int).tolist())


@pytest.mark.parametrize("phases", [["Failed", "Succeeded"], ["Failed", "Pending", "Succeeded"]])
def test_a_line_whose_meaning_has_a_colour_has_it_whatever_else_is_drawn(tmp_path: Path, phases: list[str]) -> None:
    colours = {"Failed": "#c4162a", "Succ": "#37872d"}
    seen = picture(tmp_path / "a.png", phases, stack=True, colours=colours)
    areas = [seen.get(on_paper(colour, 0.75), 0) for colour in ("#c4162a", "#37872d")]
    assert min(areas) > 10_000, areas
    assert abs(areas[0] - areas[1]) < 0.1 * areas[0], areas


def test_a_line_without_a_colour_of_its_own_takes_none_that_has_a_meaning(tmp_path: Path) -> None:
    seen = picture(tmp_path / "a.png", ["Running", "Unknown"], stack=True, colours={"Running": "#3274d9"})
    areas = sorted(seen.values(), reverse=True)[2:4]  # after background and paper
    assert max(areas) < 1.2 * min(areas), areas


def test_twelve_lines_have_twelve_colours(tmp_path: Path) -> None:
    seen = picture(tmp_path / "a.png", [f"phase {number}" for number in range(12)], stack=True)
    areas = sorted(seen.values(), reverse=True)[2:14]  # after background and paper
    assert max(areas) < 1.2 * min(areas), areas
