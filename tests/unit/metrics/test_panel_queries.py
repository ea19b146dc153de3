"""What panels ask for, by `promtool test rules`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster_harness import products
from cluster_harness.fixtures import programs
from cluster_harness.prometheus import failed_rule_tests

from monitoring.dashboards.overview import in_the_last_hour

pytestmark = pytest.mark.programs("promtool")

_QUERY = in_the_last_hour("ends_total", "reason")


@pytest.fixture(scope="module", autouse=True)
def _promtool() -> None:
    programs(products.PROMETHEUS)


@pytest.mark.parametrize(
    ("series", "at", "expected"),
    [
        pytest.param({'{reason="Completed"}': "_x30 1x10 2x60"}, 35, 1, id="the first of its kind"),
        pytest.param({'{reason="Completed"}': "_x30 1x10 2x60"}, 60, 2, id="and the second"),
        pytest.param({'{reason="Completed"}': "_x5 7x10 9x200"}, 100, 0, id="none for an hour"),
        pytest.param({'{reason="Completed"}': "0+0.5x200"}, 150, 30, id="one every two minutes"),
        pytest.param(
            {'{reason="Completed", pod="a"}': "7x99 stale", '{reason="Completed", pod="b"}': "_x110 1x40"},
            120,
            1,
            id="another process of the operator",
        ),
    ],
)
def test_every_end_within_an_hour_is_counted_once(
    tmp_path: Path, series: dict[str, str], at: int, expected: int
) -> None:
    case: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": f"ends_total{labels}", "values": values} for labels, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f"round({_QUERY}, 0.001)",
                "eval_time": f"{at}m",
                "exp_samples": [{"labels": '{reason="Completed"}', "value": expected}],
            }
        ],
    }
    assert failed_rule_tests(tmp_path, case) == ""
