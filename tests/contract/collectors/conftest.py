"""One thread for tensors, and the proof that a test left nothing behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

_END_TIMEOUT_S = 10.0


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute on one thread, and give back the others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def _nothing_is_left() -> Iterator[None]:
    gc.collect()  # an earlier error's traceback may hold what is mapped
    before = _what_is_there()
    yield
    gc.collect()
    deadline = time.monotonic() + _END_TIMEOUT_S
    while _what_is_there() != before and time.monotonic() < deadline:  # a thread that was told to end may be about to
        time.sleep(0.05)
    assert _what_is_there() == before


def _what_is_there() -> tuple[int, set[psutil.Process], int, list[str]]:
    """Return open files, processes, threads and shared memory."""
    process = psutil.Process()
    shared = sorted(os.listdir("/dev/shm")) if Path("/dev/shm").exists() else []
    return process.num_fds(), set(process.children()), threading.active_count(), shared
