"""Publishers of both schemes, closed at the end, and the proof that a test left nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn
from weight_processes import Make

from rlruntime.weights.schemes.pipe import PipePublisher
from rlruntime.weights.schemes.remote import RemotePublisher
from rlruntime.weights.schemes.shared_memory import SharedMemoryPublisher


@pytest.fixture(autouse=True)
def _nothing_stays(nothing_is_left: None) -> None:
    """Every test here."""


@pytest.fixture(params=[SharedMemoryPublisher, PipePublisher], ids=["SharedMemory", "Pipe"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Make publishers of a scheme; they are closed at the end."""
    made: list[RemotePublisher] = []

    def make_one(models: dict[str, nn.Module], **arguments: Any) -> RemotePublisher:
        made.append(request.param(models, **{"timeout_s": 30.0, **arguments}))
        return made[-1]

    yield make_one
    for publisher in made:
        publisher.close()
