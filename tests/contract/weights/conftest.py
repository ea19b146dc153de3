"""Publishers of both schemes, closed at the end, and the proof that a test left nothing behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch import nn
from weight_processes import Make

from rlruntime.weights.schemes.pipe import PipePublisher
from rlruntime.weights.schemes.remote import RemotePublisher
from rlruntime.weights.schemes.shared_memory import SharedMemoryPublisher


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    process = psutil.Process()
    shared = sorted(os.listdir("/dev/shm")) if Path("/dev/shm").exists() else []
    before = process.num_fds(), set(process.children()), threading.active_count()
    yield
    assert (process.num_fds(), set(process.children()), threading.active_count()) == before
    assert (sorted(os.listdir("/dev/shm")) if Path("/dev/shm").exists() else []) == shared


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
