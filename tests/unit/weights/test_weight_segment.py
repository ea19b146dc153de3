"""The shared memory of weights: how much there is, and what a system without it says."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator

import pytest
import torch

from rlruntime.weights.protocol import WeightSyncError
from rlruntime.weights.schemes.shared_memory import SharedMemoryPublisher


@pytest.fixture
def _small_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("_small_files")
def test_too_little_memory_is_an_error_at_start_that_leaves_nothing() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(WeightSyncError) as caught:
        SharedMemoryPublisher({"m": {"a": torch.zeros(1 << 17)}}, num_slots=3)
    assert str(caught.value) == "no shared memory for 3 slots of weights (1581056 bytes): File too large"
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize("num_slots", [1, 65])
def test_a_number_of_slots_that_cannot_work_is_refused(num_slots: int) -> None:
    with pytest.raises(ValueError, match=f"num_slots must be 2 to 64, got {num_slots}"):
        SharedMemoryPublisher({"m": {"a": torch.zeros(1)}}, num_slots=num_slots)


def test_a_publisher_that_is_dropped_without_close_frees_its_memory() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    publisher = SharedMemoryPublisher({"m": {"a": torch.zeros(4)}})
    publisher.publish({"m": {"a": torch.zeros(4)}})
    assert len(os.listdir("/proc/self/fd")) > before
    del publisher
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
