"""Short training runs that several tests look at."""

from __future__ import annotations

import pytest
from policy_runs import Run, train


class Runs:
    """Trains each kind once, when it is first asked for."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._runs: dict[str, Run] = {}

    def __call__(self, kind: str) -> Run:
        if kind not in self._runs:
            self._runs[kind] = train(kind, self._factory.mktemp(kind) / "run")
        return self._runs[kind]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return runs by kind."""
    return Runs(tmp_path_factory)


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Every test here."""
