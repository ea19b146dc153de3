"""Fixtures that several folders of tests use."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest
from leftovers_here import Held

_END_TIMEOUT_S = 10.0


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute on one thread, since a second one only waits for tensors as small as those of tests."""
    import torch  # not all tests have it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """See that a test leaves no open file, process, thread or shared memory behind."""
    gc.collect()  # an earlier error's traceback may hold what is mapped
    before = Held.now()
    yield
    gc.collect()
    deadline = time.monotonic() + _END_TIMEOUT_S
    while Held.now().left_since(before) and time.monotonic() < deadline:  # a thread may be about to end
        time.sleep(0.05)
    assert Held.now().left_since(before) == {}
