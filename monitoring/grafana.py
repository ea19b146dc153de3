"""Dashboards of Grafana: panels as values, and the JSON that Grafana imports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 39
"""Of the JSON; Grafana 10.3 and later read it, and move it to their own."""
COLUMNS = 24
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Kind = Literal["timeseries", "stat", "table"]


@dataclass(frozen=True)
class Query:
    """One expression of a panel.

    Attributes:
        expr: with the variables of its dashboard, and ``$__rate_interval``.
        legend: with labels in double braces; the heading of a table's column.
    """

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        title: a few words.
        queries: what is drawn.
        unit: as Grafana names it: ``s``, ``bytes``, ``percentunit``, ``short``.
        description: what it shows, and what to make of it.
        empty: why it may be empty though all is well; empty where it never is.
        share: columns of 24.
        stack: lines on top of each other, filled.
        low, high: fixed ends of the axis.
        name_of: the label that a stat shows in place of its number.
        units: of a table's columns, by their headings, where they differ.
        colours: of lines whose meaning has one, by the start of their legend; others take theirs in turn.
    """

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    description: str = ""
    empty: str = ""
    kind: Kind = "timeseries"
    share: int = 8
    height: int = 8
    stack: bool = False
    low: float | None = 0.0
    high: float | None = None
    decimals: int | None = None
    name_of: str = ""
    units: dict[str, str] = field(default_factory=dict)
    colours: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard, by the values of a label.

    Attributes:
        query: of the data source, such as ``label_values(metric, label)``.
        multi: whether several can be chosen, and all at once.
    """

    name: str
    label: str
    query: str
    multi: bool = False


@dataclass(frozen=True)
class Dashboard:
    """A page of panels."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> Iterator[Panel]:
        """All panels, in order."""
        return (panel for row in self.rows for panel in row.panels)

    def to_json(self) -> str:
        """Return the file that Grafana imports, the same for equal dashboards."""
        return json.dumps(self.to_document(), indent=2, ensure_ascii=False) + "\n"

    def to_document(self) -> dict[str, Any]:
        """Return what Grafana imports."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["rljob"],
            "editable": True,
            "graphTooltip": 1,
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"},
            "timepicker": {},
            "timezone": "browser",
            "annotations": {"list": []},
            "links": [_link()],
            "templating": {"list": [_data_source(), *(_variable(item) for item in self.variables)]},
            "panels": list(_placed(self.rows)),
        }


def _placed(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for row in rows:
        number += 1
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        top += 1
        left, height = 0, 0
        for panel in row.panels:
            if left + panel.share > COLUMNS:
                top, left, height = top + height, 0, 0
            number += 1
            place = {"x": left, "y": top, "w": panel.share, "h": panel.height}
            yield {"id": number, "gridPos": place, **_panel(panel)}
            left, height = left + panel.share, max(height, panel.height)
        top += height


def _panel(panel: Panel) -> dict[str, Any]:
    document: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": " ".join(filter(None, (panel.description, panel.empty and f"Empty while {panel.empty}."))),
        "datasource": DATA_SOURCE,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
        "targets": [_target(panel, number, query) for number, query in enumerate(panel.queries)],
    }
    if panel.kind == "table":
        document["transformations"] = _transformations(panel)
    return document


def _target(panel: Panel, number: int, query: Query) -> dict[str, Any]:
    target: dict[str, Any] = {
        "refId": _letter(number),
        "datasource": DATA_SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
    }
    if panel.kind == "timeseries":
        return {**target, "range": True}
    return {**target, "instant": True, "range": False, **({"format": "table"} if panel.kind == "table" else {})}


def _defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "color": {"mode": "palette-classic"}, "links": []}
    if panel.low is not None:
        defaults["min"] = panel.low
    if panel.high is not None:
        defaults["max"] = panel.high
    if panel.decimals is not None:
        defaults["decimals"] = panel.decimals
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 60 if panel.stack else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stack else "none", "group": "A"},
        }
    return defaults


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    units = [
        {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "unit", "value": unit}]}
        for name, unit in panel.units.items()
    ]
    colours = [
        {
            "matcher": {"id": "byRegexp", "options": f"/^{start}/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for start, colour in panel.colours.items()
    ]
    return units + colours


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind == "table":
        return {"showHeader": True, "cellHeight": "sm", "sortBy": []}
    return {
        "colorMode": "none",
        "graphMode": "none",
        "textMode": "name" if panel.name_of else "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }


def _transformations(panel: Panel) -> list[dict[str, Any]]:
    names = {f"Value #{_letter(number)}": query.legend for number, query in enumerate(panel.queries)}
    hidden = dict.fromkeys(("Time", *(name for name, heading in names.items() if not heading)), True)
    shown = {name: heading for name, heading in names.items() if heading}
    labels = {"rljob_job": "job"}
    return [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {"excludeByName": hidden, "renameByName": {**labels, **shown}, "indexByName": {}},
        },
    ]


def _letter(number: int) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[number]


def _link() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "RLJob",
        "tags": ["rljob"],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
    }


def _data_source() -> dict[str, Any]:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "hide": 0,
        "multi": False,
        "includeAll": False,
        "current": {},
        "options": [],
    }


def _variable(variable: Variable) -> dict[str, Any]:
    document: dict[str, Any] = {
        "type": "query",
        "name": variable.name,
        "label": variable.label,
        "datasource": DATA_SOURCE,
        "definition": variable.query,
        "query": {"qryType": 1, "query": variable.query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "refresh": 2,
        "regex": "",
        "sort": 1,
        "hide": 0,
        "multi": variable.multi,
        "includeAll": variable.multi,
        "current": {"text": "All", "value": "$__all"} if variable.multi else {},
        "options": [],
    }
    return {**document, "allValue": ".*"} if variable.multi else document
