"""One thread for tensors, and the proof that a test left nothing behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute on one thread, and give back the others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def _nothing_is_left() -> Iterator[None]:
    process = psutil.Process()
    shared = sorted(os.listdir("/dev/shm")) if Path("/dev/shm").exists() else []
    before = process.num_fds(), set(process.children()), threading.active_count()
    yield
    assert (process.num_fds(), set(process.children()), threading.active_count()) == before
    assert (sorted(os.listdir("/dev/shm")) if Path("/dev/shm").exists() else []) == shared
