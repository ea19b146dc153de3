"""Dashboards, alerts and the page of metrics, as they are checked in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from rljob_operator import metrics as operator

from monitoring.__main__ import FILES, ROOT, generated
from monitoring.alerts import Times, alerts, duration
from monitoring.dashboards import DASHBOARDS
from monitoring.grafana import Dashboard, Panel
from monitoring.prometheus import QueryError, expanded
from monitoring.render import formatted
from rlruntime.metrics import names as runtime
from rlruntime.metrics.family import Family

KNOWN: dict[str, Family] = {
    series: family
    for families in (runtime.FAMILIES, operator.FAMILIES)
    for family in families.values()
    for series in family.series
}
METRIC = re.compile(r"\b(?:rljob|process)_[a-z_]+\b")
LABELS = {
    *runtime.LABELS, *operator.LABELS, "rljob_job", "rljob_role", "namespace", "pod", "instance", "le", "job",
}  # fmt: skip
NO_METRIC = {"rljob_job", "rljob_role"}
BY = re.compile(r"\b(?:by|on|group_left|group_right|without) \(([^)]*)\)")
PANELS = [
    pytest.param(board, panel, id=f"{board.uid}: {panel.title}") for board in DASHBOARDS for panel in board.panels
]


def metrics_in(expr: str) -> set[str]:
    """Return the metrics that an expression names."""
    return set(METRIC.findall(expr)) - NO_METRIC


@pytest.mark.parametrize("path", generated(), ids=lambda path: path.name)
def test_generated_files_are_what_the_code_writes(path: Path) -> None:
    assert path.read_text() == generated()[path], "run `make dashboards`"


def test_the_page_names_every_metric_and_no_other() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    named = set(re.findall(r"^\| `([a-z_]+)(?:\{|`)", page, re.MULTILINE)) - {*LABELS, "start"}
    assert named - set(runtime.LABELS) - {"collect", "learn", "sync", "evaluate", "checkpoint", "snapshot", "log"} == {
        *runtime.FAMILIES, *operator.FAMILIES,
    }  # fmt: skip


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_a_panel_asks_for_metrics_and_labels_that_there_are(board: Dashboard, panel: Panel) -> None:
    for query in panel.queries:
        assert metrics_in(query.expr) <= set(KNOWN), query.expr
        chosen = re.findall(r"(\w+)(?:=~|!~|!=|=)\"", query.expr)
        grouped = [name.strip() for group in BY.findall(query.expr) for name in group.split(",") if name.strip()]
        assert {*chosen, *grouped} <= LABELS, query.expr
        assert set(re.findall(r"{{(\w+)}}", query.legend)) <= {*grouped, *LABELS}, query.legend


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_a_panel_shows_rates_of_counters_and_never_a_counter_itself(board: Dashboard, panel: Panel) -> None:
    for query in panel.queries:
        for name in metrics_in(query.expr):
            is_counter = KNOWN[name].kind in ("counter", "histogram")
            rated = re.search(rf"\b(?:rate|increase)\({name}{{[^}}]*}}\[|\b(?:rate|increase)\({name}\[", query.expr)
            assert bool(rated) is is_counter, f"{name} in {query.expr}"


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_a_panel_has_a_unit_and_a_legend_and_keeps_to_the_chosen_jobs(board: Dashboard, panel: Panel) -> None:
    assert panel.unit
    for query in panel.queries:
        assert query.legend or panel.kind in ("stat", "table")
        chosen = set(re.findall(r"\$(?!__)(\w+)", query.expr))
        assert chosen <= {variable.name for variable in board.variables}


def test_uids_and_titles_are_unique_and_every_board_chooses_a_data_source() -> None:
    assert len({board.uid for board in DASHBOARDS}) == len({board.title for board in DASHBOARDS}) == 3
    for board in DASHBOARDS:
        document = board.to_document()
        first, *rest = document["templating"]["list"]
        assert (first["name"], first["type"]) == ("datasource", "datasource")
        assert [item["name"] for item in rest][:1] == ["namespace"]
        sources = {panel["datasource"]["uid"] for panel in document["panels"] if panel["type"] != "row"}
        assert sources == {"${datasource}"}
        numbers = [panel["id"] for panel in document["panels"]]
        assert len(set(numbers)) == len(numbers)
    assert [item["name"] for item in DASHBOARDS[1].to_document()["templating"]["list"]] == [
        "datasource", "namespace", "job",
    ]  # fmt: skip


def test_panels_do_not_overlap_and_fill_no_more_than_the_width() -> None:
    for board in DASHBOARDS:
        taken: set[tuple[int, int]] = set()
        for panel in board.to_document()["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, panel["title"]
            taken |= cells


def test_each_alert_asks_for_metrics_that_there_are_and_has_a_section_in_the_runbooks() -> None:
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs" / "alerts.md").read_text(), re.MULTILINE)
    assert sections == [alert.name for alert in alerts()]
    assert len(sections) == 9
    for alert in alerts():
        assert metrics_in(alert.expr) <= set(KNOWN)


def test_shortened_times_change_durations_alone() -> None:
    short = Times(
        pending=1, storm=2, stalled=3, stalled_for=4, stale=5, stale_for=6, checkpoint=7, down_for=10, watch=8, errors=9
    )
    for long, brief in zip(alerts(), alerts(short), strict=True):
        assert (long.name, long.severity, long.to_document()["labels"]) == (
            brief.name, brief.severity, brief.to_document()["labels"],
        )  # fmt: skip
        assert re.sub(r"\[\d+\w\]|> \d+\b|offset \d+\w", "", long.expr) == re.sub(
            r"\[\d+\w\]|> \d+\b|offset \d+\w", "", brief.expr
        )
    assert [duration(seconds) for seconds in (45, 60, 900, 3600, 5400)] == ["45s", "1m", "15m", "1h", "90m"]


def test_alerts_hold_templates_of_prometheus_and_none_of_helm() -> None:
    document: Any = yaml.safe_load((FILES / "alerts.yaml").read_text())
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in rules] == [alert.name for alert in alerts()]
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"docs/alerts.md#{rule['alert'].lower()}"
        assert ".Values" not in json.dumps(rule)


def test_a_query_is_expanded_as_grafana_does_and_an_unknown_variable_is_refused() -> None:
    expr = 'rate(x{namespace=~"$namespace"}[$__rate_interval])'
    assert expanded(expr, {"namespace": ".*"}, interval="1m") == 'rate(x{namespace=~".*"}[1m])'
    with pytest.raises(QueryError, match="unknown variables"):
        expanded(expr, {}, interval="1m")


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.534, "percentunit", "53 %"), (0.0123, "percentunit", "1.2 %"), (0.0, "percentunit", "0 %"),
        (0.0021, "s", "2.1 ms"), (75.0, "s", "75 s"), (600.0, "s", "10 min"), (9000.0, "s", "2.5 h"), (0.0, "s", "0 s"),
        (3 * 2**20, "bytes", "3 MiB"), (2048.0, "Bps", "2 KiB/s"), (123456.0, "short", "123 k"), (12.0, "short", "12"),
        (float("nan"), "s", "-"),
    ],
)  # fmt: skip
def test_numbers_are_written_in_their_unit(value: float, unit: str, words: str) -> None:
    assert formatted(value, unit) == words
