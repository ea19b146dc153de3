"""The three dashboards."""

from __future__ import annotations

from monitoring.dashboards.job import JOB
from monitoring.dashboards.operator import OPERATOR
from monitoring.dashboards.overview import OVERVIEW
from monitoring.grafana import Dashboard

__all__ = ["DASHBOARDS", "JOB", "OPERATOR", "OVERVIEW"]

DASHBOARDS: tuple[Dashboard, ...] = (OVERVIEW, JOB, OPERATOR)
