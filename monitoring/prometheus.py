"""A client of Prometheus' HTTP API, and what the variables of a dashboard become in a query."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TIMEOUT_S = 20.0
_LABEL_VALUES = re.compile(r"label_values\((?P<selector>.*), (?P<label>\w+)\)")


class QueryError(RuntimeError):
    """Prometheus refuses a query."""


@dataclass(frozen=True)
class Series:
    """One series of an answer: its labels, and pairs of time and value."""

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float:
        """The newest value."""
        return self.points[-1][1]


class Prometheus:
    """A Prometheus at ``url``."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def query(self, expr: str, at_s: float | None = None) -> list[Series]:
        """Return what an expression is at a moment, by default now."""
        data = self._get("query", {"query": expr, **({"time": repr(at_s)} if at_s is not None else {})})
        return _series(data)

    def query_range(self, expr: str, start_s: float, end_s: float, step_s: float) -> list[Series]:
        """Return what an expression was from ``start_s`` to ``end_s``."""
        return _series(
            self._get("query_range", {"query": expr, "start": repr(start_s), "end": repr(end_s), "step": repr(step_s)})
        )

    def label_values(self, definition: str) -> list[str]:
        """Return the choices of a variable whose query is ``label_values(SELECTOR, LABEL)``."""
        found = _LABEL_VALUES.fullmatch(definition)
        if found is None:
            raise QueryError(f"is no label_values(selector, label): {definition}")
        return sorted(self._get(f"label/{found['label']}/values", {"match[]": found["selector"]}))

    def names(self, selector: str) -> set[str]:
        """Return the names of all metrics with a series that ``selector`` takes."""
        return set(self._get("label/__name__/values", {"match[]": selector}))

    def firing(self) -> list[dict[str, str]]:
        """Return the labels of every alert that fires now."""
        return [alert["labels"] for alert in self._get("alerts", {})["alerts"] if alert["state"] == "firing"]

    def targets(self) -> list[dict[str, Any]]:
        """Return the targets that are scraped now."""
        targets: list[dict[str, Any]] = self._get("targets", {"state": "active"})["activeTargets"]
        return targets

    def _get(self, path: str, parameters: Mapping[str, str]) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                words = json.loads(error.read() or b"{}").get("error", error.reason)
            raise QueryError(f"{words}: {parameters.get('query', path)}") from None


def expanded(expr: str, variables: Mapping[str, str], *, interval: str) -> str:
    """Return a query without variables, as Grafana would ask it.

    Args:
        variables: by name; a choice of all is ``.*``.
        interval: what ``$__rate_interval`` stands for.
    """
    text = expr.replace("$__rate_interval", interval)
    for name, value in variables.items():
        text = text.replace(f"${name}", value)
    if "$" in re.sub(r"\$labels|\$value", "", text):
        raise QueryError(f"there are unknown variables: {text}")
    return text


def _series(data: Any) -> list[Series]:
    found = []
    for item in data["result"]:
        points = item["values"] if "values" in item else [item["value"]]
        found.append(Series(item["metric"], tuple((float(time), float(value)) for time, value in points)))
    return found
