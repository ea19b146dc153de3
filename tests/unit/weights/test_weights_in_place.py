"""Weights that are shared as they are, in one process; and the example of the package."""

from __future__ import annotations

import doctest
import threading

import pytest
from torch import nn

import rlruntime.weights
from rlruntime.errors import ConfigError
from rlruntime.weights.protocol import Outcome, Publisher, Receiver, Status, WeightSyncError
from rlruntime.weights.schemes.none import InPlacePublisher


def test_the_example_of_the_package_works() -> None:
    failed, attempted = doctest.testmod(rlruntime.weights)
    assert (failed, attempted) == (0, 13)


def test_versions_count_and_are_applied_at_once() -> None:
    policy = nn.Linear(2, 2)
    publisher = InPlacePublisher({"policy": policy})
    receiver = publisher.receiver("inline", {"policy": policy})
    protocol: tuple[Publisher, Receiver] = publisher, receiver
    assert protocol
    assert receiver.version == 0
    publication = publisher.publish({"policy": policy})
    assert publication.wait_applied(0.0) == {"inline": Outcome(1, Status.APPLIED)}
    assert publisher.publish({"policy": policy}).version == 2
    assert receiver.acquire(1, 0.0) == 2
    assert receiver.version == 2


def test_an_acquisition_waits_for_another_thread_to_publish() -> None:
    policy = nn.Linear(2, 2)
    publisher = InPlacePublisher({"policy": policy}, last_version=4)
    receiver = publisher.receiver("inline", {"policy": policy})
    later = threading.Timer(0.05, lambda: publisher.publish({"policy": policy}))
    later.start()
    assert receiver.acquire(0, 30.0) == 5
    later.join()


def test_a_version_that_does_not_come_is_an_error_at_the_deadline() -> None:
    policy = nn.Linear(2, 2)
    publisher = InPlacePublisher({"policy": policy})
    receiver = publisher.receiver("inline", {"policy": policy})
    with pytest.raises(WeightSyncError) as caught:
        receiver.acquire(0, 0.01)
    assert str(caught.value) == "there is no version 1 or later: it did not come within 0.01 s; the newest is 0"
    publisher.publish({"policy": policy})
    publisher.close()
    assert receiver.acquire(1, 30.0) == 1
    with pytest.raises(
        WeightSyncError, match="there is no version 2 or later: the publisher is closed; the newest is 1"
    ):
        receiver.acquire(2, 30.0)
    with pytest.raises(WeightSyncError, match="the publisher is closed"):
        publisher.publish({"policy": policy})


def test_a_copy_is_refused_on_either_side_since_it_would_never_change() -> None:
    policy, copy = nn.Linear(2, 2), nn.Linear(2, 2)
    publisher = InPlacePublisher({"policy": policy})
    words = "without transport all must hold the same tensors, and policy/bias is a copy"
    with pytest.raises(ConfigError, match=words):
        publisher.receiver("inline", {"policy": copy})
    with pytest.raises(ConfigError, match=words):
        publisher.publish({"policy": copy})
    targets = {"policy": policy}
    receiver = publisher.receiver("inline", targets)
    publisher.publish({"policy": policy})
    targets["policy"] = copy
    with pytest.raises(ConfigError, match=words):
        receiver.acquire(1, 0.0)


def test_another_shape_is_refused() -> None:
    publisher = InPlacePublisher({"policy": nn.Linear(2, 2)})
    with pytest.raises(ConfigError, match=r"policy/bias is float32\[2\] in the manifest, float32\[3\] here"):
        publisher.publish({"policy": nn.Linear(2, 3)})
    assert publisher.version == 0
