"""What every test gets."""

from __future__ import annotations

import signal

import pytest

pytest_plugins = ["cluster_harness.fixtures", "shared_fixtures"]


def pytest_configure() -> None:
    """Let Ctrl-C reach the programs that tests start: they inherit that a shell's background job has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_cover_means_subprocesses_too(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process that may write nothing can't write its coverage either, and would end by that.
    if request.node.get_closest_marker("no_cover"):
        monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
        monkeypatch.delenv("COVERAGE_PROCESS_START", raising=False)
