"""What every test gets."""

from __future__ import annotations

import pytest

pytest_plugins = ["cluster_harness.fixtures", "shared_fixtures"]


@pytest.fixture(autouse=True)
def _no_cover_means_subprocesses_too(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process that may write nothing can't write its coverage either, and would end by that.
    if request.node.get_closest_marker("no_cover"):
        monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
        monkeypatch.delenv("COVERAGE_PROCESS_START", raising=False)
