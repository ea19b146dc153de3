"""Draws a dashboard from a Prometheus, panel by panel, into a picture for the docs; it reads the shipped JSON."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from monitoring.prometheus import Prometheus, Series, expanded

_WIDTH_IN = 15.0
_ROW_IN = 0.31  # of one unit of height
_DPI = 100
_POINTS = 240
_COLOURS = (
    "#3274d9",
    "#e0752d",
    "#37872d",
    "#8f3bb8",
    "#c4162a",
    "#b7930b",
    "#1b8a8f",
    "#e02f90",
    "#6b7280",
    "#7c4a1e",
    "#7eb26d",
    "#5bb8d4",
)
_MOST_LINES = 12
_SHADES = 8
_INK, _QUIET, _GRID, _PAPER, _BACK = "#24292f", "#6b7280", "#e5e7eb", "#ffffff", "#f3f4f6"


@dataclass(frozen=True)
class View:
    """What is drawn.

    Attributes:
        variables: of the dashboard, by name.
        start_s, end_s: from when to when.
        interval: what ``$__rate_interval`` stands for.
    """

    variables: Mapping[str, str]
    start_s: float
    end_s: float
    interval: str


def draw(board: Mapping[str, Any], source: Prometheus, view: View, path: Path) -> None:
    """Draw a dashboard into the PNG ``path``."""
    mpl.use("Agg")
    panels = board["panels"]
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    height = bottom * _ROW_IN + 0.55
    figure = Figure(figsize=(_WIDTH_IN, height), dpi=_DPI, facecolor=_BACK)
    figure.text(0.01, 1 - 0.3 / height, board["title"], size=14, weight="bold", color=_INK, va="center")
    chosen = "   ".join(f"{name}: {'all' if value == '.*' else value}" for name, value in view.variables.items())
    minutes = (view.end_s - view.start_s) / 60
    words = f"{chosen}     {minutes:.0f} minutes" if chosen else f"{minutes:.0f} minutes"
    figure.text(0.99, 1 - 0.3 / height, words, size=9, color=_QUIET, va="center", ha="right")
    for panel in panels:
        _Painter(figure, height, source, view).paint(panel)
    fixed = [
        colour["fixedColor"]
        for panel in panels
        for _, colour in _overridden(panel.get("fieldConfig", {}).get("overrides", []), "color")
    ]
    _save(figure, path, [*_COLOURS, *fixed, _INK, _QUIET])


def _save(figure: Figure, path: Path, used: Sequence[str]) -> None:
    """Write the picture with few colours, a quarter of the size: those that are used, in shades down to paper."""
    from PIL import Image

    figure.savefig(path, dpi=_DPI, facecolor=figure.get_facecolor())
    paper = np.array(mpl.colors.to_rgb(_PAPER))
    flat = [np.array(mpl.colors.to_rgb(colour)) for colour in (_PAPER, _GRID, _BACK)]
    inks = [np.array(mpl.colors.to_rgb(colour)) for colour in dict.fromkeys(used)]
    shades = flat + [paper + (ink - paper) * share / _SHADES for ink in inks for share in range(1, _SHADES + 1)]
    assert len(shades) <= 256, "more colours than a palette holds"
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.rint(255 * np.array(shades)).astype(np.uint8).tobytes())
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


class _Painter:
    """Paints panels onto a figure."""

    def __init__(self, figure: Figure, height: float, source: Prometheus, view: View) -> None:
        self._figure, self._height, self._source, self._view = figure, height, source, view

    def paint(self, panel: Mapping[str, Any]) -> None:
        """Paint one panel."""
        left, bottom, width, height = self._box(panel["gridPos"])
        if panel["type"] == "row":
            self._figure.text(
                left, bottom + height / 2, panel["title"], size=11, weight="bold", color=_INK, va="center"
            )
            return
        self._paper(left, bottom, width, height)
        self._figure.text(
            left + 0.006, bottom + height - 0.15 / self._height, panel["title"], size=9, weight="bold", color=_INK,
            va="center",
        )  # fmt: skip
        kinds = {"timeseries": self._lines, "stat": self._stat, "table": self._table}
        kinds[panel["type"]](panel, (left, bottom, width, height))

    def _box(self, place: Mapping[str, int]) -> tuple[float, float, float, float]:
        gap_x, gap_y = 0.004, 0.05 / self._height
        top = 0.55 + place["y"] * _ROW_IN
        height = place["h"] * _ROW_IN
        return (
            0.008 + 0.984 * place["x"] / 24 + gap_x / 2,
            1 - (top + height) / self._height + gap_y / 2,
            0.984 * place["w"] / 24 - gap_x,
            height / self._height - gap_y,
        )

    def _paper(self, left: float, bottom: float, width: float, height: float) -> None:
        axes = self._figure.add_axes((left, bottom, width, height))
        axes.set_facecolor(_PAPER)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(color=_GRID, linewidth=0.8)

    def _lines(self, panel: Mapping[str, Any], box: tuple[float, float, float, float]) -> None:
        view, defaults = self._view, panel["fieldConfig"]["defaults"]
        step_s = (view.end_s - view.start_s) / _POINTS
        lines = []
        for target in panel["targets"]:
            expr = expanded(target["expr"], view.variables, interval=view.interval)
            for series in self._source.query_range(expr, view.start_s, view.end_s, step_s):
                lines.append((_legend(target["legendFormat"], series), _on_grid(series, view.start_s, step_s)))
        left, bottom, width, height = box
        if not lines:
            reason = (
                panel["description"].rpartition("Empty while ")[2] if "Empty while " in panel["description"] else ""
            )
            words = f"no data: {reason.rstrip('.')}" if reason else "no data"
            self._figure.text(left + width / 2, bottom + height / 2, words, size=9, color=_QUIET, ha="center")
            return
        lines = sorted(lines, key=lambda line: line[0])[:_MOST_LINES]
        rows = _legend_rows([name for name, _ in lines], width * _WIDTH_IN)
        legend = (0.17 * len(rows) + 0.28) / self._height
        inner = self._figure.add_axes(
            (left + 0.036, bottom + legend, width - 0.044, height - legend - 0.34 / self._height)
        )
        minutes = (np.arange(_POINTS + 1) * step_s) / 60
        colours = _colours([name for name, _ in lines], panel["fieldConfig"]["overrides"])
        if defaults["custom"]["stacking"]["mode"] == "normal":
            values = np.nan_to_num(np.array([line for _, line in lines]))
            inner.stackplot(minutes, values, colors=[colours[name] for name, _ in lines], alpha=0.75, linewidth=0)
        else:
            for name, line in lines:
                inner.plot(minutes, line, color=colours[name], linewidth=1.2)
        _dress(inner, defaults, lines, minutes)
        for number, row in enumerate(rows):
            self._legend(row, colours, left + 0.012, bottom + (0.1 + 0.17 * (len(rows) - 1 - number)) / self._height)

    def _legend(self, names: Sequence[str], colours: Mapping[str, str], x: float, y: float) -> None:
        for name in names:
            self._figure.text(x, y, "━", size=8, color=colours[name], va="center")
            self._figure.text(x + 0.010, y, name, size=7.5, color=_INK, va="center")
            x += 0.010 + _text_width(name) / _WIDTH_IN

    def _stat(self, panel: Mapping[str, Any], box: tuple[float, float, float, float]) -> None:
        (target,) = panel["targets"]
        expr = expanded(target["expr"], self._view.variables, interval=self._view.interval)
        found = self._source.query(expr, self._view.end_s)
        defaults = panel["fieldConfig"]["defaults"]
        if not found:
            words = "no data"
        elif panel["options"]["textMode"] == "name":
            words = ", ".join(sorted(_legend(target["legendFormat"], series) for series in found))
        else:
            words = formatted(found[0].last, defaults["unit"], defaults.get("decimals"))
        left, bottom, width, height = box
        size = min(20.0, 95.0 * width * _WIDTH_IN / max(5, len(words)) / 1.25)
        self._figure.text(
            left + width / 2, bottom + height * 0.42, words, size=size, color=_QUIET if not found else _COLOURS[0],
            ha="center", va="center",
        )  # fmt: skip

    def _table(self, panel: Mapping[str, Any], box: tuple[float, float, float, float]) -> None:
        headings, rows = self._rows(panel)
        left, bottom, width, height = box
        top, line = bottom + height - 0.42 / self._height, 0.21 / self._height
        places = [left + 0.01 + (width - 0.02) * number / len(headings) for number in range(len(headings))]
        for x, heading in zip(places, headings, strict=True):
            self._figure.text(x, top, heading, size=8.5, weight="bold", color=_QUIET, va="center")
        for number, row in enumerate(rows[: int((top - bottom) / line) - 1], start=1):
            for x, words in zip(places, row, strict=True):
                self._figure.text(x, top - number * line, words, size=8.5, color=_INK, va="center")

    def _rows(self, panel: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
        units = dict(_overridden(panel["fieldConfig"]["overrides"], "unit"))
        cells: dict[tuple[str, str], dict[str, str]] = {}
        headings: list[str] = []
        for target in panel["targets"]:
            expr = expanded(target["expr"], self._view.variables, interval=self._view.interval)
            heading = "" if target["legendFormat"] == "__auto" else target["legendFormat"]
            for series in self._source.query(expr, self._view.end_s):
                key = series.labels.get("namespace", ""), series.labels.get("rljob_job", "")
                row = cells.setdefault(key, {"namespace": key[0], "job": key[1]})
                row |= {name: value for name, value in series.labels.items() if name not in ("namespace", "rljob_job")}
                if heading:
                    row[heading] = formatted(series.last, units.get(heading, "short"))
            headings = list(dict.fromkeys([*headings, *(name for row in cells.values() for name in row)]))
        return headings, [[cells[key].get(name, "") for name in headings] for key in sorted(cells)]


def _legend(template: str, series: Series) -> str:
    if template == "__auto":
        return ", ".join(f"{name}={value}" for name, value in series.labels.items()) or "value"
    return re.sub(r"{{\s*(\w+)\s*}}", lambda match: series.labels.get(match[1], ""), template)


def _overridden(overrides: Sequence[Mapping[str, Any]], name: str) -> Iterator[tuple[str, Any]]:
    """Yield whom a property is overridden for, and its value."""
    for item in overrides:
        for one in item["properties"]:
            if one["id"] == name:
                yield item["matcher"]["options"], one["value"]


def _colours(names: Sequence[str], overrides: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the colour of each line: that of its meaning, or else the next one that has none."""
    fixed = dict(_overridden(overrides, "color"))
    given = {colour["fixedColor"] for colour in fixed.values()}
    free = [colour for colour in _COLOURS if colour not in given]
    colours = {name: free[number % len(free)] for number, name in enumerate(names)}
    for pattern, colour in fixed.items():
        matching = re.compile(pattern.strip("/"))
        colours |= {name: colour["fixedColor"] for name in names if matching.search(name)}
    return colours


def _on_grid(series: Series, start_s: float, step_s: float) -> np.ndarray:
    values = np.full(_POINTS + 1, math.nan)
    for moment_s, value in series.points:
        place = round((moment_s - start_s) / step_s)
        if 0 <= place <= _POINTS and math.isfinite(value):
            values[place] = value
    return values


def _dress(axes: Any, defaults: Mapping[str, Any], lines: Sequence[tuple[str, np.ndarray]], x: np.ndarray) -> None:
    """Give axes their ends, ticks and grid."""
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    values = np.array([line for _, line in lines])
    total = np.nansum(values, axis=0) if stacked else values
    finite = total[np.isfinite(total)]
    low = defaults.get("min", float(finite.min()) if len(finite) else 0.0)
    high = defaults.get("max", float(finite.max()) if len(finite) else 1.0)
    room = (high - low) * 0.06 or (abs(high) or 1.0) * 0.1
    axes.set(xlim=(x[0], x[-1]), ylim=(low if "min" in defaults else low - room, high + room))
    axes.yaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    axes.yaxis.set_major_formatter(lambda value, _: formatted(value, defaults["unit"]))
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} min")
    axes.tick_params(labelsize=7.5, colors=_QUIET, length=0)
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_GRID)


def _text_width(text: str) -> float:
    return 0.062 * len(text) + 0.14


def _legend_rows(names: Sequence[str], width: float) -> list[list[str]]:
    rows: list[list[str]] = [[]]
    used = 0.0
    for name in names:
        needed = 0.15 + _text_width(name)
        if used + needed > width - 0.2 and rows[-1]:
            rows.append([])
            used = 0.0
        rows[-1].append(name)
        used += needed
    return rows[:3]


def formatted(value: float, unit: str, decimals: int | None = None) -> str:
    """Return a number as a person reads it."""
    if not math.isfinite(value):
        return "-"
    if unit == "percentunit":
        return f"{100 * value:.{1 if decimals is None and abs(value) < 0.1 and value else decimals or 0}f} %"
    if unit == "s":
        return _seconds(value)
    if unit in ("bytes", "Bps"):
        return _scaled(value, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB")) + ("/s" if unit == "Bps" else "")
    if decimals is not None and abs(value) < 1e4:
        return f"{value:.{decimals}f}"
    return _scaled(value, 1000.0, ("", "k", "M", "G")) if abs(value) >= 1e4 else f"{value:.4g}"


def _seconds(value: float) -> str:
    size = abs(value)
    for limit, factor, name in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s")):
        if size < limit and size:
            return f"{value * factor:.3g} {name}"
    if not size:
        return "0 s"
    return f"{value / 60:.3g} min" if size < 7200 else f"{value / 3600:.3g} h"


def _scaled(value: float, base: float, names: Sequence[str]) -> str:
    number = 0
    while abs(value) >= base and number < len(names) - 1:
        value, number = value / base, number + 1
    return f"{value:.3g} {names[number]}".rstrip()


def _choices(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        name, _, value = word.partition("=")
        yield name, value


def main() -> int:
    """Draw one dashboard."""
    parser = argparse.ArgumentParser(prog="python -m monitoring.render", description=__doc__)
    parser.add_argument("board", type=Path, help="JSON of the dashboard")
    parser.add_argument("output", type=Path, help="PNG to write")
    parser.add_argument("--url", default="http://127.0.0.1:9090", help="of the Prometheus (%(default)s)")
    parser.add_argument("--minutes", type=float, default=30.0, help="how far to look back (%(default)s)")
    parser.add_argument("--interval", default="1m", help="what $__rate_interval stands for (%(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable; `.*` for all")
    arguments = parser.parse_args()
    now_s = time.time()
    view = View(dict(_choices(arguments.set)), now_s - 60 * arguments.minutes, now_s, arguments.interval)
    draw(json.loads(arguments.board.read_text()), Prometheus(arguments.url), view, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
